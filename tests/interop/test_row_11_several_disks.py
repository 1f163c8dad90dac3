"""Row 11, several disks: our code reads the journals and ledger directories of a killed Apache bookie."""

from __future__ import annotations

from pathlib import Path

import attrs
import trio

from bookie.disk.real_disk import RealDisk
from bookie.journal.format import NO_MARK, JournalMark, decode_mark
from bookie.offline.index_rebuild import rebuild_indexes
from bookie.storage.config import StorageConfig
from bookie.storage.opening import open_storage
from ledger.digest import DigestType, EntryCodec, master_key
from tests.interop.clients import PASSWORD, TEST_TIMEOUT_S, our_client
from tests.interop.driver import Driver
from tests.interop.originals import Bookie, Cluster, Originals
from tests.interop.table import proves

LEDGERS = 6
ENTRIES = 40


@attrs.frozen
class Left:
    """The files of a killed bookie with two journals and two ledger directories."""

    bookie: Bookie
    payloads: dict[tuple[int, int], bytes]
    fenced: int

    def paths(self, name: str) -> list[Path]:
        return [self.bookie.home / f"{name}-{number}" for number in range(2)]


def _mark(path: Path) -> JournalMark:
    """The mark; ``NO_MARK`` if the file is missing or empty. Apache's bookie empties it before it writes."""
    data = path.read_bytes() if path.exists() else b""
    return decode_mark(data) if data else NO_MARK


def _left_by_apaches(originals: Originals, driver: Driver) -> Left:
    root = "/several-disks"
    driver.ask("init_cluster", uri=originals.uri(root, layout="hierarchical"))
    cluster = Cluster(originals, root)
    bookie = Bookie(originals, "java", root)
    for name, key in (("journal", "journalDirectories"), ("ledgers", "ledgerDirectories")):
        bookie.settings[key] = ",".join(str(bookie.home / f"{name}-{number}") for number in range(2))
    bookie.settings["flushInterval"] = 500
    bookie.settings["ledgerStorageClass"] = "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage"
    for name in ("journal-0", "journal-1", "ledgers-0", "ledgers-1"):
        (bookie.home / name).mkdir(parents=True)
    cluster.bookies.append(bookie)
    bookie.start()
    payloads: dict[tuple[int, int], bytes] = {}
    fenced: list[int] = []
    files = [
        bookie.home / f"ledgers-{number}/current/lastMark.{nth}" for number in range(2) for nth in range(2)
    ]

    async def checkpoint() -> None:
        """Wait until each mark was seen past the beginning of its journal."""
        for path in files:
            while _mark(path) <= NO_MARK:  # noqa: ASYNC110
                await trio.sleep(0.05)

    async def fill() -> None:
        with trio.fail_after(TEST_TIMEOUT_S):
            async with our_client(cluster) as client, our_client(cluster) as other:
                writers = [
                    await client.create(
                        ensemble_size=1,
                        write_quorum=1,
                        ack_quorum=1,
                        digest_type=DigestType.CRC32C,
                        password=PASSWORD,
                    )
                    for _ in range(LEDGERS)
                ]
                for number in range(ENTRIES):
                    for writer in writers:
                        payload = b"%d of %d" % (number, writer.ledger_id)
                        payloads[writer.ledger_id, await writer.append(payload)] = payload
                    if number == ENTRIES // 2:
                        await checkpoint()
                await other.open(writers[3].ledger_id, password=PASSWORD)
                fenced.append(writers[3].ledger_id)
                bookie.kill()

    trio.run(fill)
    return Left(bookie, payloads, fenced[0])


@proves(11, "ours read theirs")
def test_all_entries_of_a_killed_apache_bookie_with_several_disks_are_read(
    originals: Originals, driver: Driver
) -> None:
    left = _left_by_apaches(originals, driver)
    assert all(list(path.glob("current/*.txn")) for path in left.paths("journal")), "both journals were used"
    # A kill while the bookie writes a mark leaves an empty file. Here that is so in every run.
    (left.paths("ledgers")[1] / "current/lastMark.1").write_bytes(b"")
    config = StorageConfig(
        journal_directories=left.paths("journal"),
        ledger_directories=left.paths("ledgers"),
    )
    rebuilt = rebuild_indexes(RealDisk(), config, fences_unreadable=False)
    assert [one.stats.fenced for one in rebuilt] == [0, 0], "the databases of both directories were read"

    async def read() -> None:
        codec = EntryCodec(DigestType.CRC32C, PASSWORD)
        async with open_storage(RealDisk(), config) as storage:
            for (ledger_id, entry_id), payload in left.payloads.items():
                body = await storage.read(ledger_id, entry_id)
                assert bytes(codec.unpack(body, ledger_id, entry_id).payload) == payload
            for ledger_id in {ledger_id for ledger_id, _ in left.payloads}:
                ledger = storage.ledger(ledger_id)
                assert ledger is not None
                assert ledger.fenced == (ledger_id == left.fenced)
                assert ledger.master_key == master_key(PASSWORD)

    trio.run(read)
