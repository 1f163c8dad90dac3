"""The scrubber beside compaction and deletion: nothing that moves or goes meanwhile is reported."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, TypeVar

import pytest

from bookie.errors import EntryUnreadableError
from bookie.index.entry_index import EntryRange
from bookie.ledger_record import LedgerRecord
from ledger.digest import DigestType
from tests.fakes.directory_by_hand import Directory, sealed
from tests.unit.bookie.damage.scrubbed import flip, found_in, scrubber_of

T = TypeVar("T")


@pytest.mark.slow
async def test_concurrent_compaction_and_deletion_cause_no_report(directory: Directory) -> None:
    for ledger_id in range(3):
        directory.store(ledger_id, range(400))
        directory.writer.close()
    scrubber = scrubber_of(directory)
    rng = random.Random(3)
    steps = 0

    def move_something() -> None:
        nonlocal steps
        steps += 1
        if steps % 2 == 0:
            ledger_id = rng.choice(sorted(directory.ledgers))
            old = directory.index.locate(ledger_id, 0)[0] >> 32
            directory.move(ledger_id, range(400))
            directory.reader.forget(old)

    directory.disk.before_pread = move_something
    for _ in range(5):
        assert await scrubber.scrub() == []
    assert steps > 10

    def delete() -> None:
        # In the order of the storage: the ledger, its index entries, the log.
        if directory.ledgers.pop(1, None) is not None:
            log_id = directory.index.locate(1, 0)[0] >> 32
            directory.index.delete_ledger(1)
            (directory.path / f"{log_id:x}.log").unlink()
            directory.reader.forget(log_id)

    directory.disk.before_pread = delete
    directory.reader.forget(directory.index.locate(1, 0)[0] >> 32)
    assert await scrubber.scrub() == []
    assert 1 not in directory.ledgers


async def test_an_entry_that_moves_before_each_read_is_not_reported(
    directory: Directory,
) -> None:
    directory.store(1, range(5))
    directory.writer.close()
    original_locate, original_ranges = directory.index.locate, directory.index.ranges
    moves_left = 3

    def move() -> None:
        nonlocal moves_left
        if moves_left:
            moves_left -= 1
            directory.index.locate = original_locate  # type: ignore[method-assign]
            old = original_locate(1, 0)[0] >> 32
            directory.move(1, range(5))
            directory.reader.forget(old)
            directory.index.locate = locate  # type: ignore[method-assign]

    def ranges(ledger_id: int, first_entry_id: int = 0) -> list[EntryRange]:
        found = list(original_ranges(ledger_id, first_entry_id))
        move()  # the result is outdated when it is used
        return found

    def locate(ledger_id: int, entry_id: int, count_max: int = 1) -> Sequence[int]:
        found = original_locate(ledger_id, entry_id, count_max)
        move()
        return found

    directory.index.ranges = ranges  # type: ignore[assignment, method-assign]
    directory.index.locate = locate  # type: ignore[method-assign]
    assert await found_in(directory) == []
    assert moves_left == 0


async def test_only_the_damaged_entry_is_reported_if_a_sound_one_moves(
    directory: Directory,
) -> None:
    directory.store(1, [0])
    directory.writer.close()
    directory.store(1, [1])
    flip(directory, 1, 0, 500)
    original_ranges = directory.index.ranges

    def ranges(ledger_id: int, first_entry_id: int = 0) -> list[EntryRange]:
        found = list(original_ranges(ledger_id, first_entry_id))
        if first_entry_id == 1:
            directory.move(1, [1])  # the result is outdated when it is used
        return found

    directory.index.ranges = ranges  # type: ignore[assignment, method-assign]
    assert await found_in(directory) == [(1, 0)]
    assert await directory.reads.read(1, 1) == directory.make(1, 1, 1000)
    with pytest.raises(EntryUnreadableError, match="CRC32C digest does not match"):
        await directory.reads.read(1, 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
async def test_all_damaged_entries_are_found_if_some_are_readable_only_at_the_second_try(
    directory: Directory, seed: int
) -> None:
    rng = random.Random(seed)
    damaged, late = set(rng.sample(range(9), 6)), set(rng.sample(range(30), 3 * seed))
    for entry_id in range(30):
        directory.store(1, [entry_id])  # each in its own index range
    for entry_id in damaged:
        flip(directory, 1, entry_id, 500)
    read = directory.reader.read_batch

    async def read_batch(ledger_id: int, ids: Sequence[int], *more: Any) -> Sequence[bytes]:
        if ids[0] in late:
            raise EntryUnreadableError(ledger_id, ids[0], "injected")
        return await read(ledger_id, ids, *more)

    directory.reader.read_batch = read_batch  # type: ignore[assignment, method-assign]
    scrubber = scrubber_of(directory)
    assert {error.entry_id for error in await scrubber.scrub()} == damaged
    assert scrubber.stats.damaged == len(directory.damaged) == 6, "each is counted once"


async def test_a_ledger_recreated_with_another_digest_during_the_scan_causes_no_report(
    directory: Directory,
) -> None:
    directory.store(1, range(2000))
    original_ranges = directory.index.ranges

    def ranges(ledger_id: int, first_entry_id: int = 0) -> object:
        if first_entry_id:
            directory.index.ranges = original_ranges  # type: ignore[method-assign]
            directory.index.delete_ledger(1)
            directory.ledgers[1] = LedgerRecord(1, b"k")
            directory.make = sealed(DigestType.DUMMY)
            directory.store(1, range(2000))
        return original_ranges(ledger_id, first_entry_id)

    directory.index.ranges = ranges  # type: ignore[assignment, method-assign]
    assert await found_in(directory) == []
