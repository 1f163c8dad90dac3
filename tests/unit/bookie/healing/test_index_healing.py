"""A damaged page of an index is stored anew, with the entries that other bookies have."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from bookie.errors import EntryUnreadableError, NoEntryError
from bookie.healing.damage_healing import DamageHealing
from bookie.healing.index_healing import entries_here, is_settled
from bookie.index.index_factory import IndexConfig, IndexKind
from bookie.index.page_cache import PageIndexConfig
from bookie.index.page_file import page_file_path
from bookie.storage.storage import Storage
from ledger.metadata import Ensemble, LedgerMetadata
from tests.fakes.bookies_by_hand import Bookies, open_bookies
from tests.unit.bookie.healing.test_damage_healing import counters

pytestmark = pytest.mark.slow

A, B, C = "b1:1", "b2:1", "b3:1"
TEST_TIMEOUT_S = 30
PAGES = IndexConfig(kind=IndexKind.PAGES, pages=PageIndexConfig(page_bytes=512))
COUNT = 200  # entries of the ledger: three pages of 64 and a part of a fourth
PAGE = range(64, 128)  # the page that is damaged
LOST = 70


def flip_a_slot(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(1024 + 8 * LOST)
        file.write(b"\x7f")


def zero_the_page(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(1024 + 512)
        file.write(bytes(512))


def cut_off_its_end(path: Path) -> None:
    os.truncate(path, 1024 + 512 + 128)


class Damaged:
    """A ledger of ``COUNT`` entries on three bookies, and A with a page that cannot be read."""

    def __init__(self, bookies: Bookies, ledger_id: int) -> None:
        self.bookies, self.ledger_id = bookies, ledger_id
        self.healing = DamageHealing(self.storage, A, bookies.open_client, pause_s=0.01)

    @property
    def storage(self) -> Storage:
        return self.bookies.up[A].bookie.storage

    async def scrub(self) -> set[int]:
        """The ledgers whose index cannot be read whole."""
        (store,) = self.storage.stores
        await store.scrubber.scrub(throttled=False)
        return store.scrubber.unreadable

    @asynccontextmanager
    async def healing_runs(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.healing.run)
            yield
            nursery.cancel_scope.cancel()

    async def attempt(self) -> None:
        """Return after the next attempt of the healing."""
        before = self.healing.stats.attempts
        async with self.healing_runs():
            while self.healing.stats.attempts == before:  # noqa: ASYNC110
                await trio.sleep(0.01)

    async def read_all(self) -> list[bytes]:
        return [await self.storage.read(self.ledger_id, entry_id) for entry_id in range(COUNT)]

    async def is_unreadable(self, entry_id: int) -> bool:
        """True if a read fails. The test fails if the entry is denied."""
        try:
            await self.storage.read(self.ledger_id, entry_id)
        except EntryUnreadableError:
            return True
        except NoEntryError:
            pytest.fail(f"entry {entry_id} is denied")
        return False


@asynccontextmanager
async def damaged(
    directory: Path,
    damage: Callable[[Path], None],
    *,
    count: int = COUNT,
    close: bool = True,
    confirmed: bool = False,
) -> AsyncIterator[Damaged]:
    with trio.fail_after(TEST_TIMEOUT_S):
        async with open_bookies(directory, A, B, C, index=PAGES) as bookies:
            async with bookies.open_client() as client:
                payloads = [b"%d" % number * 50 for number in range(count)]
                writer = await client.create()
                await writer.append_many(payloads)
                if confirmed:
                    await writer.append(b"says which entries are confirmed")
                await writer.close() if close else writer.abandon()
                ledger_id = writer.ledger_id
            await bookies.stop(A)
            damage(page_file_path(bookies.directory(A) / "l" / "current", ledger_id))
            await bookies.start(A)
            made = Damaged(bookies, ledger_id)
            assert await made.scrub() == {ledger_id}
            assert await made.is_unreadable(LOST)
            yield made


@pytest.mark.parametrize("damage", [flip_a_slot, zero_the_page, cut_off_its_end, Path.unlink])
async def test_a_damaged_page_is_healed_from_other_bookies(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    async with damaged(tmp_path, damage) as made:
        await made.attempt()
        entries = await made.read_all()
        other = made.bookies.up[B].bookie.storage
        assert entries == [await other.read(made.ledger_id, entry_id) for entry_id in range(COUNT)]
        assert await made.storage.entry_ids(made.ledger_id) == [*range(COUNT)]
        with pytest.raises(NoEntryError):
            await made.storage.read(made.ledger_id, COUNT)
        assert await made.scrub() == set()
        pages = (await counters(tmp_path / "admin", made.healing))["index_pages"]
        assert pages == (4 if damage is Path.unlink else 3 if damage is cut_off_its_end else 1)
        await made.bookies.stop(A)
        await made.bookies.start(A)
        assert await made.read_all() == entries


async def test_only_the_entries_that_the_entry_log_does_not_show_are_copied(tmp_path: Path) -> None:
    async with damaged(tmp_path, flip_a_slot) as made:
        (log, *_) = (made.bookies.directory(A) / "l" / "current").glob("*.log")
        before = sum(one.stat().st_size for one in log.parent.glob("*.log"))
        await made.bookies.stop(C)
        await made.attempt()
        await made.read_all()
        written = sum(one.stat().st_size for one in log.parent.glob("*.log")) - before
        assert written < 4096  # the header of a new log and one entry


async def test_a_page_without_other_bookies_stays_damaged_until_one_returns(tmp_path: Path) -> None:
    async with damaged(tmp_path, zero_the_page) as made:
        await made.bookies.stop(B)
        await made.bookies.stop(C)
        await made.attempt()
        assert [await made.is_unreadable(entry_id) for entry_id in PAGE] == [True] * len(PAGE)
        assert made.healing.stats.healed_pages == 0
        assert made.healing.stats.last_failure is not None
        await made.bookies.start(C)
        await made.attempt()
        await made.read_all()


async def test_a_page_of_an_open_ledger_stays_damaged_until_its_entries_are_confirmed(
    tmp_path: Path,
) -> None:
    """The last entry of the page may be acknowledged here and be on no other bookie."""
    async with damaged(tmp_path, zero_the_page, count=PAGE.stop, close=False) as made:
        record = made.storage.ledger(made.ledger_id)
        assert record is not None
        assert record.lac < PAGE[-1]
        await made.attempt()
        assert [await made.is_unreadable(entry_id) for entry_id in PAGE] == [True] * len(PAGE)
        async with made.bookies.open_client() as client:
            await client.open(made.ledger_id, recover=True)
        await made.attempt()
        assert not any([await made.is_unreadable(entry_id) for entry_id in PAGE])


async def test_a_page_whose_entries_are_confirmed_is_healed_while_the_ledger_is_open(tmp_path: Path) -> None:
    async with damaged(tmp_path, zero_the_page, count=COUNT - 1, close=False, confirmed=True) as made:
        await made.attempt()
        await made.read_all()


async def test_the_page_of_a_deleted_ledger_is_left_alone(tmp_path: Path) -> None:
    async with damaged(tmp_path, zero_the_page) as made:
        await made.storage.delete_ledger(made.ledger_id)
        await made.attempt()
        assert made.healing.stats.healed_pages == 0
        assert made.storage.ledger(made.ledger_id) is None


async def test_a_page_stays_damaged_while_the_disk_has_no_space_for_the_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left: injected")

    async with damaged(tmp_path, zero_the_page) as made:
        (store,) = made.storage.stores
        with monkeypatch.context() as patch:
            patch.setattr(store.files.writer, "append", no_space)
            await made.attempt()
        assert await made.is_unreadable(LOST)
        await made.attempt()
        await made.read_all()


async def test_a_ledger_that_is_deleted_while_it_is_healed_gets_no_page_and_no_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with damaged(tmp_path, zero_the_page) as made:
        (store,) = made.storage.stores
        record = made.storage.ledger(made.ledger_id)
        assert record is not None
        (found,) = await store.damaged_ranges(made.ledger_id)
        await made.storage.delete_ledger(made.ledger_id)
        assert await store.append_copies(record, {LOST: b"\0" * 40}) == {}
        monkeypatch.setattr(store.files.index, "replace", lambda *_: pytest.fail("the page is replaced"))
        assert not await store.replace_index_range(record, found, {})


def test_settled_entries_are_those_of_a_closed_ledger_and_those_that_are_confirmed() -> None:
    metadata = LedgerMetadata(
        ensemble_size=3, write_quorum=2, ack_quorum=2, ensembles=(Ensemble(0, (A, B, C)),)
    )
    closed = metadata.closed(80, 800)
    assert [is_settled(metadata, lac, PAGE) for lac in (126, 127)] == [False, True]
    assert is_settled(closed, -1, PAGE)
    assert entries_here(metadata, range(6), A) == [0, 2, 3, 5]
    assert entries_here(closed, range(78, 100), A) == [78, 80]
