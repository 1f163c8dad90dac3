"""Row 11: the directories of a bookie change hands, and neither side denies an entry of the other."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import partial

import pytest
import trio

from ledger.errors import LedgerError, LedgerFencedError
from tests.interop.clients import PASSWORD, TEST_TIMEOUT_S, our_client
from tests.interop.driver import Driver
from tests.interop.originals import START_TIMEOUT_S, Bookie, Cluster, Kind, Originals
from tests.interop.table import proves

BOOKIE = "org.apache.bookkeeper.bookie."
DB = f"{BOOKIE}storage.ldb.DbLedgerStorage"
INDEXES = {
    f"{BOOKIE}SortedLedgerStorage": "chunk index of DLog",
    f"{BOOKIE}InterleavedLedgerStorage": "chunk index of DLog",
    DB: "RocksDB",
}


def _cluster(originals: Originals, driver: Driver, root: str, kind: Kind, **settings: object) -> Cluster:
    driver.ask("init_cluster", uri=originals.uri(root, layout="hierarchical"))
    cluster = Cluster(originals, root)
    cluster.add(kind, flushInterval=200, **settings)
    return cluster


def _hand_over(cluster: Cluster, kind: Kind, storage: str | None) -> Bookie:
    """The stopped bookie's directories, as a bookie of this kind finds them."""
    (bookie,) = cluster.bookies
    cluster.stop()
    bookie.kind = kind
    bookie.settings.pop("ledgerStorageClass", None)
    if storage is not None:
        bookie.settings["ledgerStorageClass"] = storage
    return bookie


def _refusal(bookie: Bookie) -> str:
    """The log of a start that must fail."""
    bookie.launch()
    assert bookie.process.wait_ended(timeout_s=START_TIMEOUT_S) != 0
    return bookie.process.log.read_text("utf-8", "replace")


def _convert(bookie: Bookie, kind: str) -> None:
    command = [sys.executable, "-m", "dlog.cli.main", "bookie", "convert-index", "--to", kind]
    done = subprocess.run(
        [*command, "--config", str(bookie.config), "--json"],
        capture_output=True,
        text=True,
        timeout=TEST_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    assert '"fenced_ledgers": 0' in done.stdout


async def _write(cluster: Cluster, count: int) -> int:
    with trio.fail_after(TEST_TIMEOUT_S):
        async with our_client(cluster) as client:
            writer = await client.create(ensemble_size=1, write_quorum=1, ack_quorum=1, password=PASSWORD)
            for number in range(count):
                await writer.append(b"entry %d" % number)
            await writer.close()
            return writer.ledger_id


async def _check(cluster: Cluster, ledgers: dict[int, int]) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        async with our_client(cluster) as client:
            for ledger_id, count in ledgers.items():
                try:
                    reader = await client.open(ledger_id, password=PASSWORD)
                except LedgerError as exc:
                    raise AssertionError(f"ledger {ledger_id} is denied") from exc
                entries = await reader.read(0, reader.last_confirmed)
                assert [bytes(entry.payload) for entry in entries] == [b"entry %d" % n for n in range(count)]


@proves(11, "they read our entry logs")
def test_apaches_bookie_refuses_directories_with_our_chunk_index(
    originals: Originals, driver: Driver
) -> None:
    cluster = _cluster(originals, driver, "/hands-chunks", "ours", ledgerStorageClass="DbLedgerStorage")
    ledgers = {trio.run(_write, cluster, 10): 10}
    for storage, reason in INDEXES.items():
        log = _refusal(_hand_over(cluster, "java", storage))
        assert reason in log, log[-2000:]
    bookie = _hand_over(cluster, "ours", None)
    log = _refusal(bookie)
    assert "Set ledgerStorageClass to DbLedgerStorage" in log
    bookie.settings["ledgerStorageClass"] = "DbLedgerStorage"
    bookie.start()
    trio.run(_check, cluster, ledgers)
    cluster.stop()


@proves(11, "ours read theirs")
def test_directories_go_from_ours_to_apaches_bookie_and_back_without_a_key(
    originals: Originals, driver: Driver
) -> None:
    cluster = _cluster(originals, driver, "/hands-pages", "ours")
    ledgers = {trio.run(_write, cluster, 10): 10}
    _hand_over(cluster, "java", None).start()
    trio.run(_check, cluster, ledgers)
    ledgers[trio.run(_write, cluster, 1100)] = 1100
    bookie = _hand_over(cluster, "ours", None)
    bookie.start()
    ledgers[trio.run(_write, cluster, 3)] = 3
    trio.run(_check, cluster, ledgers)
    log = _refusal(_hand_over(cluster, "java", DB))
    assert "RocksDB" in log
    _convert(bookie, "chunks")
    _hand_over(cluster, "ours", "DbLedgerStorage").start()
    trio.run(_check, cluster, ledgers)
    cluster.stop()


@proves(11, "they read our entry logs", "ours read theirs")
@pytest.mark.parametrize("storage", ["SortedLedgerStorage", "InterleavedLedgerStorage"])
def test_killed_bookies_of_both_kinds_take_the_directories_from_each_other_in_turn(
    storage: str, originals: Originals, driver: Driver
) -> None:
    settings = {"gcWaitTime": 1000, "minorCompactionInterval": 2, "majorCompactionInterval": 4}
    cluster = _cluster(
        originals,
        driver,
        f"/hands-circle-{storage}",
        "ours",
        ledgerStorageClass=f"{BOOKIE}{storage}",
        **settings,
    )
    (bookie,) = cluster.bookies
    ledgers: dict[int, int] = {}

    def entry_logs() -> set[str]:
        return {each.name for each in (bookie.home / "ledgers").rglob("*.log")}

    async def turn(*, collects: bool) -> None:
        """Write, fence a ledger, delete half of what is there, and end within the writes of another one.

        Args:
            collects: Not before an entry log of an earlier turn is compacted or deleted.
        """
        before = entry_logs()
        with trio.fail_after(TEST_TIMEOUT_S):
            async with our_client(cluster) as client, our_client(cluster) as other:
                for count in (1100, 3, 700):
                    writer = await client.create(
                        ensemble_size=1, write_quorum=1, ack_quorum=1, password=PASSWORD
                    )
                    for number in range(count):
                        await writer.append(b"entry %d" % number)
                    if count == 3:
                        await (await other.open(writer.ledger_id, password=PASSWORD)).close()
                    else:
                        await writer.close()
                    ledgers[writer.ledger_id] = count
                deleted = min(ledgers)
                del ledgers[deleted]
                await client.delete(deleted)
                running = await client.create(
                    ensemble_size=1, write_quorum=1, ack_quorum=1, password=PASSWORD
                )
                for number in range(50):
                    await running.append(b"entry %d" % number)
                ledgers[running.ledger_id] = 50
                while collects and before <= entry_logs():  # noqa: ASYNC110 - another process deletes one
                    await trio.sleep(0.1)
                await trio.to_thread.run_sync(bookie.kill)

    kinds: list[Kind] = ["ours", "java", "ours", "java", "ours"]
    for number, kind in enumerate(kinds):
        bookie.kind = kind
        if not bookie.is_running:
            bookie.start()
        trio.run(_check, cluster, ledgers)
        trio.run(partial(turn, collects=number in (2, 3)))  # once by each
    bookie.start()
    trio.run(_check, cluster, ledgers)
    cluster.stop()


@proves(11, "they read our entry logs", "ours read theirs")
def test_directories_go_from_apaches_databases_to_ours_and_back(originals: Originals, driver: Driver) -> None:
    cluster = _cluster(originals, driver, "/hands-databases", "java", ledgerStorageClass=DB)
    (bookie,) = cluster.bookies
    ledgers = {trio.run(_write, cluster, 1100): 1100}

    def take_over() -> None:
        _hand_over(cluster, "ours", "DbLedgerStorage")
        refusal = _refusal(bookie)
        assert "has the RocksDB databases of Apache's DbLedgerStorage" in refusal
        assert "`dlog bookie convert-index`" in refusal
        _convert(bookie, "chunks")
        bookie.start()

    async def fence_and_take_over() -> None:
        with trio.fail_after(TEST_TIMEOUT_S):
            async with our_client(cluster) as client, our_client(cluster) as other:
                fenced, idle, deleted = [
                    await client.create(ensemble_size=1, write_quorum=1, ack_quorum=1, password=PASSWORD)
                    for _ in range(3)
                ]
                for writer in (fenced, idle, deleted):
                    for number in range(5):
                        await writer.append(b"entry %d" % number)
                await idle.write_explicit_lac()
                await (await other.open(fenced.ledger_id, password=PASSWORD)).close()
                ledgers[fenced.ledger_id] = 5
                await deleted.close()
                await client.delete(deleted.ledger_id)
                await trio.to_thread.run_sync(take_over)
                with pytest.raises(LedgerFencedError):
                    await fenced.append(b"of the fenced writer")
                reader = await other.open(idle.ledger_id, password=PASSWORD, recover=False)
                assert reader.last_confirmed == 4
                await idle.append(b"entry 5")
                await idle.close()
                ledgers[idle.ledger_id] = 6

    trio.run(fence_and_take_over)
    ours = trio.run(_write, cluster, 3)
    ledgers[ours] = 3
    trio.run(_check, cluster, ledgers)
    cluster.stop()
    _convert(bookie, "databases")
    _hand_over(cluster, "java", f"{BOOKIE}SortedLedgerStorage")
    assert "only DbLedgerStorage can read" in _refusal(bookie)
    _hand_over(cluster, "java", DB).start()
    trio.run(_check, cluster, ledgers)
    ledgers[trio.run(_write, cluster, 2)] = 2
    cluster.stop()
    code, text = originals.shell(bookie, "ledger", str(ours))
    assert code == 0, text
    assert set(re.findall(r"^entry (\d+)\t", text, re.MULTILINE)) == {"0", "1", "2"}, text
    take_over()
    trio.run(_check, cluster, ledgers)
    cluster.stop()
