"""Reads of one ledger directory: what they cost, what they keep, what a bad disk makes of them."""

from __future__ import annotations

import errno
import random
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from bookie.damage.damaged_entries import DamagedEntry
from bookie.entrylog.reader import EntryLogReader
from bookie.errors import EntryUnreadableError, NoEntryError, NoLedgerError
from bookie.storage.entry_reads import ReadConfig
from tests.fakes.directory_by_hand import Directory, body


@pytest.fixture
async def directory(tmp_path: Path) -> AsyncIterator[Directory]:
    opened = Directory(tmp_path)
    yield opened
    opened.close()


async def test_a_ledger_read_in_order_costs_a_pread_for_many_entries(directory: Directory) -> None:
    directory.store(1, range(2000))
    for entry_id in range(2000):
        assert await directory.reads.read(1, entry_id) == body(1, entry_id)
    assert len(directory.disk.preads) < 4 + 2000 * 1036 / (256 << 10)
    assert max(size for _, size in directory.disk.preads) <= 300 << 10


async def test_so_does_a_striped_one(directory: Directory) -> None:
    ids = [entry_id for entry_id in range(3000) if entry_id % 3]
    directory.store(1, ids)
    for entry_id in ids:
        assert await directory.reads.read(1, entry_id) == body(1, entry_id)
    assert len(directory.disk.preads) < 4 + len(ids) * 1036 / (256 << 10)
    with pytest.raises(NoEntryError):
        await directory.reads.read(1, 3)


@pytest.mark.slow
async def test_a_random_read_costs_one_pread_of_its_own_size(directory: Directory) -> None:
    directory.store(1, range(500), 60_000)
    for entry_id in (400, 3, 77, 210, 120):
        assert await directory.reads.read(1, entry_id) == body(1, entry_id, 60_000)
    assert [size for _, size in directory.disk.preads] == [60_036] * 5


@pytest.mark.slow
async def test_a_cold_page_cache_is_asked_now_and_then_and_a_warm_one_each_time(
    directory: Directory,
) -> None:
    directory.store(1, range(20_000), 10)
    ids = iter(random.Random(2).sample(range(0, 20_000, 40), 400))
    for _ in range(160):
        await directory.reads.read(1, next(ids))
    assert 3 + 9 <= directory.disk.looks <= 3 + 11
    assert len(directory.disk.preads) == 160
    directory.disk.is_warm = True
    for _ in range(100):
        await directory.reads.read(1, next(ids))
    assert len(directory.disk.preads) <= 160 + 16, "soon it is known to be warm"
    assert directory.disk.looks > 90


async def test_what_was_brought_is_in_memory_for_the_next_who_asks(directory: Directory) -> None:
    directory.store(1, range(40))
    record = directory.ledgers[1]
    assert directory.reads.read_cached(record, 1) is None
    for entry_id in (0, 1):
        await directory.reads.read(1, entry_id)
    assert directory.reads.read_cached(record, 20) == body(1, 20)
    directory.reads.drop_ledger(1)
    assert directory.reads.read_cached(record, 20) is None


async def test_runs_are_read_at_once_and_small_ones_ahead(directory: Directory) -> None:
    directory.store(1, range(1000))
    run = await directory.reads.read_batch(1, 0, 100, 1 << 20)
    assert run == [body(1, e) for e in range(100)]
    assert len(directory.disk.preads) == 1
    got: list[bytes] = []
    while len(got) < 900:
        got += await directory.reads.read_batch(1, 100 + len(got), 10, 1 << 20)
    assert got == [body(1, e) for e in range(100, 1000)]
    assert len(directory.disk.preads) < 1 + 900 * 1036 / (150 << 10)
    assert await directory.reads.read_batch(1, 500, 10, 2100) == [body(1, 500), body(1, 501)]


async def test_a_run_of_entries_ends_with_the_greatest_id_there_can_be(directory: Directory) -> None:
    ids = [2**63 - 3, 2**63 - 2, 2**63 - 1]
    directory.store(1, ids)
    for at in range(3):
        assert await directory.reads.read_batch(1, ids[at], 10, 1 << 20) == [body(1, e) for e in ids[at:]]
    assert [await directory.reads.read(1, entry_id) for entry_id in ids] == [body(1, e) for e in ids]


async def test_a_re_added_entry_is_served_as_the_index_says_not_as_it_was_kept(directory: Directory) -> None:
    directory.store(1, range(10))
    for entry_id in range(3):
        await directory.reads.read(1, entry_id)
    directory.store(1, [2], 50)
    assert await directory.reads.read(1, 2) == body(1, 2, 50)
    assert await directory.reads.read_batch(1, 1, 2, 1 << 20) == [body(1, 1), body(1, 2, 50)]


async def test_an_entry_that_compaction_moves_while_it_is_read_is_found(directory: Directory) -> None:
    directory.store(1, range(10))
    directory.writer.close()
    directory.store(2, range(10))
    moved: list[int] = []

    def move() -> None:
        if not moved:
            moved.append(1)
            directory.move(1, range(10))

    # The file is open and read on: also the deleted log's bytes are right.
    directory.disk.before_pread = move
    assert await directory.reads.read(1, 5) == body(1, 5)
    assert moved
    # And when it is not open yet, but the index has been asked:
    directory.store(3, range(10))
    directory.writer.close()
    place = directory.index.locate(3, 4)[0]
    moved.clear()
    asked = directory.index.locate

    def locate(ledger_id: int, entry_id: int, count_max: int = 1) -> Sequence[int]:
        found = asked(ledger_id, entry_id, count_max)
        if not moved:
            moved.append(1)
            directory.index.locate = asked  # type: ignore[method-assign]
            directory.move(3, range(10))
        return found

    directory.index.locate = locate  # type: ignore[method-assign]
    assert await directory.reads.read(3, 4) == body(3, 4)
    assert directory.index.locate(3, 4)[0] != place
    assert await directory.reads.read_batch(3, 0, 10, 1 << 20) == [body(3, e) for e in range(10)]


@pytest.mark.slow
async def test_reads_that_race_with_many_moves_never_fail(directory: Directory) -> None:
    directory.store(1, range(60))
    directory.writer.close()
    rng = random.Random(5)
    is_over = False

    async def read() -> None:
        while not is_over:
            entry_id = rng.randrange(60)
            directory.reads.drop_ledger(1)
            if rng.random() < 0.5:
                assert await directory.reads.read(1, entry_id) == body(1, entry_id)
            else:
                run = await directory.reads.read_batch(1, entry_id, 5, 1 << 20)
                assert run == [body(1, e) for e in range(entry_id, entry_id + len(run))]

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(read)
        for _ in range(15):
            old = directory.index.locate(1, 0)[0] >> 32
            await trio.to_thread.run_sync(directory.move, 1, range(60))
            directory.reader.forget(old)
        is_over = True


async def test_an_i_o_error_is_no_missing_entry_and_passes_when_the_disk_is_well(
    directory: Directory,
) -> None:
    directory.store(1, range(100))

    def fail() -> None:
        raise OSError(errno.EIO, "injected")

    directory.disk.before_pread = fail
    for entry_id in (0, 1, 2, 50):
        with pytest.raises(EntryUnreadableError, match="injected"):
            await directory.reads.read(1, entry_id)
        with pytest.raises(EntryUnreadableError, match="injected"):
            await directory.reads.read_batch(1, entry_id, 20, 1 << 20)
    with pytest.raises(NoEntryError):
        await directory.reads.read(1, 100)
    directory.disk.before_pread = lambda: None
    assert await directory.reads.read_batch(1, 0, 100, 1 << 20) == [body(1, e) for e in range(100)]


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [0, 256 << 10])
async def test_short_reads_and_flipped_ids_and_lengths_give_the_entry_or_an_error(
    tmp_path: Path, ahead: int
) -> None:
    directory = Directory(tmp_path, ReadConfig(cache_bytes_max=1 << 16, ahead_bytes_max=ahead))
    directory.store(1, range(50), 100)
    rng = random.Random(11)
    places = {e: directory.index.locate(1, e)[0] & 0xFFFF_FFFF for e in range(50)}
    bad: set[int] = set()

    def change(data: bytes, offset: int) -> bytes:
        changed = bytearray(data)
        for entry_id in bad:
            at = places[entry_id] - 4 - offset
            if at >= 0 and at + 20 <= len(changed):
                changed[at + flip // 8] ^= 1 << flip % 8
        return bytes(changed[: rng.randrange(len(changed) + 1)] if rng.random() < 0.2 else changed)

    directory.disk.change = change
    good, refused = 0, 0
    for flip in range(160):
        bad = set(rng.sample(range(50), 2))
        directory.reads.drop_ledger(1)
        for first in (*bad, rng.randrange(50)):
            try:
                if rng.random() < 0.5:
                    found = [await directory.reads.read(1, first)]
                else:
                    found = list(await directory.reads.read_batch(1, first, 8, 1 << 20))
            except EntryUnreadableError:
                refused += 1
                continue
            for entry_id, data in enumerate(found, first):
                # A length that is too small looks like a shorter entry. Only the digest shows the damage.
                whole = body(1, entry_id, 100)
                assert data == whole or (entry_id in bad and data[:16] == whole[:16] and flip < 32)
                good += data == whole
    assert good > 300
    assert refused > 200
    directory.close()


async def test_a_length_that_reaches_into_the_next_entry_is_not_believed(directory: Directory) -> None:
    directory.store(1, range(10), 100)
    place = directory.index.locate(1, 4)[0] & 0xFFFF_FFFF

    def change(data: bytes, offset: int) -> bytes:
        changed = bytearray(data)
        at = place - 1 - offset  # the lowest byte of its length: 132 becomes 196
        if 0 <= at < len(changed):
            changed[at] |= 64
        return bytes(changed)

    directory.disk.change = change
    with pytest.raises(EntryUnreadableError, match="overlaps the next entry"):
        await directory.reads.read(1, 4)
    assert await directory.reads.read_batch(1, 2, 8, 1 << 20) == [body(1, 2, 100), body(1, 3, 100)]
    assert await directory.reads.read(1, 5) == body(1, 5, 100)


async def test_a_deleted_ledger_is_unknown_and_nothing_of_it_is_kept(directory: Directory) -> None:
    directory.store(1, range(10))
    for entry_id in range(3):
        await directory.reads.read(1, entry_id)

    async def read_late() -> None:
        with pytest.raises(NoLedgerError):
            await directory.reads.read(2, 0)

    del directory.ledgers[1]
    directory.reads.drop_ledger(1)
    assert directory.reads.read_cache.size_bytes == 0
    with pytest.raises(NoLedgerError):
        await directory.reads.read(1, 0)
    await read_late()


async def test_a_ledger_deleted_while_it_is_read_leaves_nothing_behind(directory: Directory) -> None:
    directory.store(1, range(10))

    def delete() -> None:
        directory.ledgers.pop(1, None)
        directory.reads.drop_ledger(1)

    directory.disk.before_pread = delete
    assert await directory.reads.read(1, 0) == body(1, 0)
    assert directory.reads.read_cache.size_bytes == 0


async def test_open_logs_are_bounded_and_a_deleted_log_is_let_go(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    directory.reader = EntryLogReader(directory.disk, tmp_path, open_logs_max=3)
    places = []
    for ledger_id in range(6):
        directory.store(ledger_id, [0])
        directory.writer.close()
        places.append(directory.index.locate(ledger_id, 0)[0])
    for ledger_id in (0, 1, 2, 3, 4, 5, 0):
        assert await directory.reader.read(ledger_id, 0, places[ledger_id]) == body(ledger_id, 0)
        assert directory.reader.open_logs_count <= 3
    directory.reader.forget(0)
    assert directory.reader.open_logs_count == 2
    # Deleted while it is being opened: it must not be kept open, and with it its space on the disk.
    go = trio.Event()
    opening = directory.disk.run

    async def run(job: Callable[..., object], *args: object) -> object:
        result = await opening(job, *args)
        await go.wait()
        return result

    directory.disk.run = run  # type: ignore[method-assign, assignment]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(directory.reader.read, 1, 0, places[1])
        await wait_all_tasks_blocked(0.01)
        directory.reader.forget(1)
        go.set()
    assert directory.reader.open_logs_count == 2
    directory.close()


async def test_an_entry_known_to_be_damaged_is_refused_whatever_its_place_holds(directory: Directory) -> None:
    directory.store(1, range(10))
    for entry_id in range(3):
        await directory.reads.read(1, entry_id)  # the others are in memory now
    place = directory.index.locate(1, 5)[0]
    directory.damaged.add(DamagedEntry(1, 5, place, "its digest does not hold"))
    with pytest.raises(EntryUnreadableError, match="digest does not hold"):
        await directory.reads.read(1, 5)
    with pytest.raises(EntryUnreadableError, match="digest does not hold"):
        await directory.reads.read_batch(1, 5, 3, 1 << 20)
    assert directory.reads.read_cached(directory.ledgers[1], 5) is None
    assert directory.reads.read_cached(directory.ledgers[1], 6) == body(1, 6)
    assert await directory.reads.read_batch(1, 3, 10, 1 << 20) == [body(1, 3), body(1, 4)]
    assert await directory.reads.read(1, 6) == body(1, 6)
    directory.store(1, [5])  # another replica's copy
    assert await directory.reads.read(1, 5) == body(1, 5)
    directory.reads.drop_ledger(1)
    assert not directory.damaged


async def test_a_batch_takes_in_the_next_chunks_of_the_index_by_one_read(directory: Directory) -> None:
    directory.store(1, range(10))
    directory.store(1, range(10, 30))
    directory.store(1, range(30, 40))
    assert await directory.reads.read_batch(1, 3, 100, 1 << 20) == [body(1, e) for e in range(3, 40)]
    assert len(directory.disk.preads) == 1
    assert await directory.reads.read_batch(1, 5, 20, 1 << 20) == [body(1, e) for e in range(5, 25)]
    assert await directory.reads.read_batch(1, 5, 100, 12 * 1036) == [body(1, e) for e in range(5, 17)]


async def test_an_entry_in_the_write_cache_ends_a_batch_from_the_disk(directory: Directory) -> None:
    directory.store(1, range(10))
    directory.store(1, range(10, 20))
    directory.cache.begin(directory.ledgers[1])[10] = body(1, 10, 77)  # newer than that in the index
    assert await directory.reads.read_batch(1, 0, 11, 1 << 20) == [
        *[body(1, e) for e in range(10)],
        body(1, 10, 77),
    ]


async def test_a_batch_over_chunks_gives_what_single_reads_give(directory: Directory) -> None:
    """Other ledgers between them, entries of other sizes, some written again, one damaged."""
    rng, first = random.Random(2), 0
    sizes: dict[int, int] = {}
    while first < 300:
        count, size = rng.randrange(1, 30), rng.choice((1000, 1000, 1000, 50))
        directory.store(1, range(first, first + count), size)
        sizes.update(dict.fromkeys(range(first, first + count), size))
        first += count
        if rng.random() < 0.3:
            directory.store(2, [first])
    directory.store(1, range(40, 45), 1000)
    sizes.update(dict.fromkeys(range(40, 45), 1000))
    unflushed = directory.cache.begin(directory.ledgers[1])
    for entry_id in range(first, first + 5):
        unflushed[entry_id] = body(1, entry_id, 77)
        sizes[entry_id] = 77
    damaged = rng.randrange(200, first)
    place = directory.index.locate(1, damaged)[0]
    directory.damaged.add(DamagedEntry(1, damaged, place, "by this test"))
    at = 0
    while at < first + 5:
        if at == damaged:
            with pytest.raises(EntryUnreadableError):
                await directory.reads.read_batch(1, at, 40, 30_000)
            at += 1
            continue
        found = await directory.reads.read_batch(1, at, 40, 30_000)
        assert found
        assert list(found) == [body(1, e, sizes[e]) for e in range(at, at + len(found))]
        at += len(found)
