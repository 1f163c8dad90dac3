"""A damaged entry is read from another bookie and stored anew."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from struct import pack

import pytest
import trio

from bookie.errors import EntryUnreadableError
from bookie.healing.damage_healing import DamageHealing
from bookie.healing.index_healing import belongs_on
from ledger.metadata import Ensemble, LedgerMetadata
from tests.fakes.bookies_by_hand import Bookies, open_bookies
from tests.unit.bookie.healing.test_integrity import write_ledger
from tests.unit.bookie.http.test_admin import send_request, serving

pytestmark = pytest.mark.slow

A, B, C = "b1:1", "b2:1", "b3:1"
TEST_TIMEOUT_S = 30


class Damaged:
    """A closed ledger of eight entries on three bookies, of which A has damaged entry 5."""

    def __init__(self, bookies: Bookies, ledger_id: int) -> None:
        self.bookies, self.ledger_id = bookies, ledger_id
        self.storage = bookies.up[A].bookie.storage
        self.healing = DamageHealing(self.storage, A, bookies.open_client, pause_s=0.01)

    async def scrub(self) -> list[int]:
        """The damaged entries."""
        await self.storage.flush()
        return [one.entry_id for store in self.storage.stores for one in await store.scrubber.scrub()]

    @asynccontextmanager
    async def healing_runs(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.healing.run)
            yield
            nursery.cancel_scope.cancel()

    async def wait_healed(self, count: int = 1) -> None:
        while self.healing.stats.healed < count:  # noqa: ASYNC110
            await trio.sleep(0.01)


@pytest.fixture
async def damaged(tmp_path: Path) -> AsyncIterator[Damaged]:
    with trio.fail_after(TEST_TIMEOUT_S):
        async with open_bookies(tmp_path, A, B, C) as bookies:
            async with bookies.open_client() as client:
                ledger_id = await write_ledger(client, [b"%d" % number * 100 for number in range(8)])
            made = Damaged(bookies, ledger_id)
            await made.storage.flush()
            (log,) = [
                one
                for one in bookies.directory(A).rglob("*.log")
                if pack(">qq", ledger_id, 5) in one.read_bytes()
            ]
            data = bytearray(log.read_bytes())
            data[data.index(pack(">qq", ledger_id, 5))] ^= 1
            with log.open("r+b") as file:
                file.write(data)
            for store in made.storage.stores:
                store.reads.read_cache.drop_ledger(ledger_id)
            assert await made.scrub() == [5]
            yield made


async def test_a_damaged_entry_is_stored_anew_byte_for_byte(damaged: Damaged) -> None:
    storage, ledger_id = damaged.storage, damaged.ledger_id
    with pytest.raises(EntryUnreadableError):
        await storage.read(ledger_id, 5)
    async with damaged.healing_runs():
        await damaged.wait_healed()
    other = damaged.bookies.up[B].bookie.storage
    assert await storage.read(ledger_id, 5) == await other.read(ledger_id, 5)
    assert await damaged.scrub() == []
    assert await storage.read(ledger_id, 5) == await other.read(ledger_id, 5)
    assert damaged.healing.stats.healed == 1


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def cut_to_nothing(path: Path) -> None:
    path.write_bytes(b"")


async def counters(directory: Path, healing: DamageHealing) -> dict[str, int]:
    """The counters of the healing, as a bookie's ``/metrics`` prints them."""
    async with serving(directory) as (admin, url):
        admin.healing = healing.stats
        status, body = await send_request(url, "GET", "/metrics")
    assert status == 200
    found = re.findall(r"^bookie_healing_(\w+) (\d+)$", body.decode(), re.MULTILINE)
    return {name: int(value) for name, value in found}


@pytest.mark.parametrize("ruin", [Path.unlink, zero, cut_to_nothing])
async def test_an_entry_log_that_is_gone_is_healed_as_a_whole(
    tmp_path: Path, ruin: Callable[[Path], None]
) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        async with open_bookies(tmp_path, A, B, C) as bookies:
            async with bookies.open_client() as client:
                ids = [await write_ledger(client, [b"%d" % n * 100 for n in range(40)]) for _ in range(2)]
            await bookies.stop(A)
            (path,) = (bookies.directory(A) / "l" / "current").glob("*.log")
            ruin(path)
            await bookies.start(A)  # not refused: the index is sound, and other bookies have the entries
            made = Damaged(bookies, ids[0])
            other = bookies.up[B].bookie.storage
            assert await made.scrub() == [*range(40), *range(40)]
            before = await counters(tmp_path / "admin", made.healing)
            async with made.healing_runs():
                await made.wait_healed(80)
                while not made.healing.stats.attempts:  # noqa: ASYNC110
                    await trio.sleep(0.01)
            for ledger_id in ids:
                for entry_id in range(40):
                    assert await made.storage.read(ledger_id, entry_id) == await other.read(
                        ledger_id, entry_id
                    )
            assert await made.scrub() == []
            assert before == {"attempts": 0, "entries": 0, "index_pages": 0}
            after = await counters(tmp_path / "admin", made.healing)
            assert after == {"attempts": 1, "entries": 80, "index_pages": 0}


async def test_an_entry_that_no_other_bookie_returns_stays_damaged_until_one_does(damaged: Damaged) -> None:
    await damaged.bookies.stop(B)
    await damaged.bookies.stop(C)
    async with damaged.healing_runs():
        while damaged.healing.stats.last_failure is None:  # noqa: ASYNC110
            await trio.sleep(0.01)
        assert damaged.healing.stats.healed == 0
        with pytest.raises(EntryUnreadableError):
            await damaged.storage.read(damaged.ledger_id, 5)
        await damaged.bookies.start(C)
        await damaged.wait_healed()
    assert await damaged.scrub() == []


async def test_a_ledger_that_was_deleted_gets_no_entry(damaged: Damaged) -> None:
    async with damaged.bookies.open_client() as client:
        await client.delete(damaged.ledger_id)
    async with damaged.healing_runs():
        while damaged.healing.stats.last_failure is None:  # noqa: ASYNC110
            await trio.sleep(0.01)
    assert damaged.healing.stats.healed == 0


async def test_nothing_is_stored_while_the_disks_are_too_full(damaged: Damaged) -> None:
    looks = 0

    def may_write() -> bool:
        nonlocal looks
        looks += 1
        return False

    damaged.healing = DamageHealing(
        damaged.storage, A, damaged.bookies.open_client, may_write=may_write, pause_s=0.01
    )
    async with damaged.healing_runs():
        while looks < 3:  # noqa: ASYNC110
            await trio.sleep(0.01)
    assert damaged.healing.stats.attempts == 0


async def test_an_entry_that_the_metadata_place_elsewhere_is_left_alone(damaged: Damaged) -> None:
    ledger_id = damaged.ledger_id
    async with damaged.bookies.open_client() as client:
        current = await client.context.catalog.get(ledger_id)
        bookies = ["b9:1" if one == A else one for one in current.metadata.last_ensemble.bookies]
        changed = current.metadata.with_replicas(0, bookies)
        await client.context.catalog.put(ledger_id, changed, expected=current.version)
    async with damaged.healing_runs():
        while not damaged.healing.stats.attempts:  # noqa: ASYNC110
            await trio.sleep(0.01)
    assert damaged.healing.stats.healed == 0


def test_an_entry_belongs_on_the_bookies_of_its_write_set() -> None:
    metadata = LedgerMetadata(
        ensemble_size=3,
        write_quorum=2,
        ack_quorum=2,
        ensembles=(Ensemble(0, (A, B, C)), Ensemble(10, ("b9:1", B, C))),
    )
    assert [entry for entry in range(12) if belongs_on(metadata, entry, A)] == [0, 2, 3, 5, 6, 8, 9]
