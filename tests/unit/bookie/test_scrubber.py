"""The scrubber: finds what is damaged, says nothing of what is not, takes its time."""

from __future__ import annotations

import errno
import random
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import attrs
import pytest
import trio
from directory_by_hand import Directory, WatchedDisk, sealed
from trio.testing import MockClock

from bookie.disk import RealDisk
from bookie.errors import EntryUnreadableError, StartError, StorageFailedError
from bookie.index import LedgerRun
from bookie.ledgers import LedgerRecord
from bookie.scrubber import Scrubber, ScrubConfig
from bookie.storage import open_storage
from bookie.storage_config import StorageConfig
from ledger.digest import DigestType

T = TypeVar("T")


def scrubber_of(directory: Directory, **config: Any) -> Scrubber:
    return Scrubber(
        directory.disk,
        directory.ledgers,
        directory.deleting,
        directory.index,
        directory.reader,
        directory.damaged,
        ScrubConfig(bytes_per_s=1 << 40, **config),
    )


@pytest.fixture
async def directory(tmp_path: Path) -> AsyncIterator[Directory]:
    opened = Directory(tmp_path)
    opened.make = sealed()
    yield opened
    opened.close()


def flip(directory: Directory, ledger_id: int, entry_id: int, at: int, mask: int = 1) -> None:
    """Damage a byte of an entry on the disk, counted from its first."""
    place = directory.index.locate(ledger_id, entry_id)[0]
    path = directory.path / f"{place >> 32:x}.log"
    data = bytearray(path.read_bytes())
    data[(place & 0xFFFF_FFFF) + at] ^= mask
    path.write_bytes(data)


async def found_in(directory: Directory) -> list[tuple[int, int]]:
    return [(error.ledger_id, error.entry_id) for error in await scrubber_of(directory).scrub()]


async def test_what_is_whole_raises_no_alarm_and_everything_is_looked_at(directory: Directory) -> None:
    for ledger_id in range(5):
        directory.store(ledger_id, range(0, 3000, 1 + ledger_id % 2), 50)
    directory.store(7, [0, 5], 400_000)
    scrubber = scrubber_of(directory)
    assert await scrubber.scrub() == []
    assert scrubber.figures.entries == 3 * 3000 + 2 * 1500 + 2
    assert (scrubber.figures.rounds, scrubber.figures.damaged) == (1, 0)
    assert "1 rounds, 0 damaged" in repr(scrubber)


@pytest.mark.parametrize(
    ("at", "mask"), [(0, 1), (15, 1), (-4, 0x40), (-4, 0x80), (-1, 1), (16, 1), (31, 1), (33, 8), (500, 2)]
)
async def test_any_flipped_bit_of_a_crc_sealed_entry_is_found_told_and_never_served(
    directory: Directory, at: int, mask: int, caplog: pytest.LogCaptureFixture
) -> None:
    directory.store(3, range(2000))
    assert await directory.reads.read(3, 1200) == directory.make(3, 1200, 1000)
    flip(directory, 3, 1200, at, mask)
    assert await found_in(directory) == [(3, 1200)]
    assert "entry 3:1200 was stored here but cannot be read" in caplog.text
    assert "let the ledger be replicated anew" in caplog.text
    for _ in range(2):
        with pytest.raises(EntryUnreadableError):
            await directory.reads.read(3, 1200)
        with pytest.raises(EntryUnreadableError):
            await directory.reads.read_run(3, 1200, 5, 1 << 20)
    assert await directory.reads.read(3, 1201) == directory.make(3, 1201, 1000)
    flip(directory, 3, 1200, at, mask)  # the disk has mended itself
    assert await found_in(directory) == []
    assert await directory.reads.read(3, 1200) == directory.make(3, 1200, 1000)


async def test_missing_and_shortened_logs_are_found(directory: Directory) -> None:
    directory.store(1, range(10))
    directory.writer.close()
    directory.store(2, range(10))
    (directory.path / "0.log").unlink()
    log = directory.path / "1.log"
    log.write_bytes(log.read_bytes()[: -2 * 1040])
    assert await found_in(directory) == [*((1, e) for e in range(10)), (2, 8), (2, 9)]
    assert len(directory.damaged) == 12


async def test_a_disk_that_cannot_read_is_found_and_believed_when_it_can_again(directory: Directory) -> None:
    directory.store(1, range(300))
    bad = directory.index.locate(1, 77)[0] & 0xFFFF_FFFF

    def change(data: bytes, offset: int) -> bytes:
        if offset <= bad < offset + len(data):
            raise OSError(errno.EIO, "injected")
        return data

    directory.disk.change = change
    found = await found_in(directory)
    assert (1, 77) in found
    assert len(found) < 6, "its neighbours are read one by one, with no more of it than they must"
    directory.disk.change = lambda data, offset: data
    assert await found_in(directory) == []
    assert not directory.damaged


@pytest.mark.parametrize("digest_type", [DigestType.MAC, DigestType.DUMMY])
async def test_of_a_payload_without_a_crc_nothing_is_said(
    directory: Directory, digest_type: DigestType
) -> None:
    directory.make = sealed(digest_type)
    directory.store(1, range(100))
    flip(directory, 1, 50, 500)
    assert await found_in(directory) == []
    flip(directory, 1, 50, 8)
    assert await found_in(directory) == [(1, 50)], "but its ids can be told"


async def test_crc32_is_told_as_well_and_ledgers_do_not_bear_witness_for_each_other(
    directory: Directory,
) -> None:
    for ledger_id, digest_type in enumerate(DigestType):
        directory.make = sealed(digest_type)
        directory.store(ledger_id, range(20))
    assert await found_in(directory) == []
    for ledger_id in range(4):
        flip(directory, ledger_id, 0, 700)
    crcs = [
        ledger_id
        for ledger_id, digest_type in enumerate(DigestType)
        if digest_type in (DigestType.CRC32, DigestType.CRC32C)
    ]
    assert await found_in(directory) == [(ledger_id, 0) for ledger_id in crcs]


async def test_compaction_and_deletion_under_its_hands_raise_no_alarm(directory: Directory) -> None:
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
        # As storage does: out of the ledgers first, then the index, then the log.
        if directory.ledgers.pop(1, None) is not None:
            log_id = directory.index.locate(1, 0)[0] >> 32
            directory.index.delete_ledger(1)
            (directory.path / f"{log_id:x}.log").unlink()
            directory.reader.forget(log_id)

    directory.disk.before_pread = delete
    directory.reader.forget(directory.index.locate(1, 0)[0] >> 32)
    assert await scrubber.scrub() == []
    assert 1 not in directory.ledgers


async def test_an_entry_that_has_moved_each_time_it_is_looked_for_raises_no_alarm(
    directory: Directory,
) -> None:
    directory.store(1, range(5))
    directory.writer.close()
    ask, walk = directory.index.locate, directory.index.runs
    moves_left = 3

    def move() -> None:
        nonlocal moves_left
        if moves_left:
            moves_left -= 1
            directory.index.locate = ask  # type: ignore[method-assign]
            old = ask(1, 0)[0] >> 32
            directory.move(1, range(5))
            directory.reader.forget(old)
            directory.index.locate = locate  # type: ignore[method-assign]

    def runs(ledger_id: int, first_entry_id: int = 0) -> list[LedgerRun]:
        found = list(walk(ledger_id, first_entry_id))
        move()  # what was found is old when it is used
        return found

    def locate(ledger_id: int, entry_id: int, count_max: int = 1) -> Sequence[int]:
        found = ask(ledger_id, entry_id, count_max)
        move()
        return found

    directory.index.runs = runs  # type: ignore[assignment, method-assign]
    directory.index.locate = locate  # type: ignore[method-assign]
    assert await found_in(directory) == []
    assert moves_left == 0


async def test_a_sound_entry_that_moved_is_not_taken_for_the_damaged_one_it_bears_witness_against(
    directory: Directory,
) -> None:
    directory.store(1, [0])
    directory.writer.close()
    directory.store(1, [1])
    flip(directory, 1, 0, 500)
    walk = directory.index.runs

    def runs(ledger_id: int, first_entry_id: int = 0) -> list[LedgerRun]:
        found = list(walk(ledger_id, first_entry_id))
        if first_entry_id == 1:
            directory.move(1, [1])  # what was found is old when it is used
        return found

    directory.index.runs = runs  # type: ignore[assignment, method-assign]
    assert await found_in(directory) == [(1, 0)]
    assert await directory.reads.read(1, 1) == directory.make(1, 1, 1000)
    with pytest.raises(EntryUnreadableError, match="CRC32C digest does not hold"):
        await directory.reads.read(1, 0)


@pytest.mark.parametrize("seed", range(8))
async def test_what_is_damaged_is_found_whichever_entries_can_be_read_only_at_the_second_try(
    directory: Directory, seed: int
) -> None:
    rng = random.Random(seed)
    damaged, late = set(rng.sample(range(9), 6)), set(rng.sample(range(30), 3 * seed))
    for entry_id in range(30):
        directory.store(1, [entry_id])  # each in a piece of the index by itself
    for entry_id in damaged:
        flip(directory, 1, entry_id, 500)
    read = directory.reader.read_run

    async def read_run(ledger_id: int, ids: Sequence[int], *more: Any) -> list[bytes]:
        if ids[0] in late:
            raise EntryUnreadableError(ledger_id, ids[0], "injected")
        return await read(ledger_id, ids, *more)

    directory.reader.read_run = read_run  # type: ignore[assignment, method-assign]
    scrubber = scrubber_of(directory)
    assert {error.entry_id for error in await scrubber.scrub()} == damaged
    assert scrubber.figures.damaged == len(directory.damaged) == 6, "each once"


async def test_a_ledger_made_anew_with_another_digest_while_it_is_read_raises_no_alarm(
    directory: Directory,
) -> None:
    directory.store(1, range(2000))
    asked = directory.index.runs

    def runs(ledger_id: int, first_entry_id: int = 0) -> object:
        if first_entry_id:
            directory.index.runs = asked  # type: ignore[method-assign]
            directory.index.delete_ledger(1)
            directory.ledgers[1] = LedgerRecord(1, b"k")
            directory.make = sealed(DigestType.DUMMY)
            directory.store(1, range(2000))
        return asked(ledger_id, first_entry_id)

    directory.index.runs = runs  # type: ignore[assignment, method-assign]
    assert await found_in(directory) == []


async def test_an_index_that_cannot_be_read_is_told_and_the_next_ledger_looked_at(
    directory: Directory, caplog: pytest.LogCaptureFixture
) -> None:
    directory.store(1, range(10))
    directory.store(2, range(10))
    flip(directory, 2, 3, 0)
    asked = directory.index.runs

    def runs(ledger_id: int, first_entry_id: int = 0) -> object:
        if ledger_id == 1:
            raise OSError(errno.EIO, "index: injected")
        return asked(ledger_id, first_entry_id)

    directory.index.runs = runs  # type: ignore[assignment, method-assign]
    assert await found_in(directory) == [(2, 3)]
    assert "the index of ledger 1 from entry 0 on" in caplog.text


@pytest.mark.parametrize("method", ["runs", "locate"])
async def test_what_is_known_of_a_ledger_stays_known_while_its_index_cannot_be_read(
    directory: Directory, method: str
) -> None:
    directory.store(1, range(10))
    directory.store(2, range(10))
    for ledger_id in (1, 2):
        flip(directory, ledger_id, 3, 500)
    assert await found_in(directory) == [(1, 3), (2, 3)]
    flip(directory, 2, 3, 500)
    asked = getattr(directory.index, method)

    def ask(ledger_id: int, *more: Any) -> object:
        if ledger_id == 1:
            raise OSError(errno.EIO, "index: injected")
        return asked(ledger_id, *more)

    setattr(directory.index, method, ask)
    assert await found_in(directory) == []
    setattr(directory.index, method, asked)
    with pytest.raises(EntryUnreadableError, match="digest does not hold"):
        await directory.reads.read(1, 3)
    assert await directory.reads.read(2, 3) == directory.make(2, 3, 1000)
    flip(directory, 1, 3, 500)
    assert await found_in(directory) == []
    assert await directory.reads.read(1, 3) == directory.make(1, 3, 1000)


class InlineDisk(WatchedDisk):
    async def run(self, job: Callable[..., T], *args: Any) -> T:
        await trio.lowlevel.checkpoint()  # no thread: the clock is a mock
        return job(*args)


async def test_it_keeps_to_its_rates_and_yields_to_load(
    directory: Directory, autojump_clock: MockClock
) -> None:
    directory.store(1, range(1000))
    directory.disk.run = InlineDisk.run.__get__(directory.disk)  # type: ignore[method-assign]
    busy_until = 0.0

    async def seconds(**config: Any) -> float:
        scrubber = scrubber_of(directory)
        scrubber._config = attrs.evolve(scrubber._config, **config)
        scrubber._is_busy = lambda: trio.current_time() < busy_until
        began_s = trio.current_time()
        assert await scrubber.scrub() == []
        return trio.current_time() - began_s

    assert await seconds() < 0.001
    assert 0.7 < await seconds(bytes_per_s=1 << 20) < 1.1  # one read at once is free
    assert 95 < await seconds(entries_per_s=10) < 105
    busy_until = trio.current_time() + 3
    assert 2.9 < await seconds() < 3.2
    busy_until = trio.current_time() + 1e9
    assert await seconds() < 60, "a bookie that is always busy is scrubbed, too"


async def test_rounds_begin_at_intervals_or_never(directory: Directory, autojump_clock: MockClock) -> None:
    directory.store(1, range(10))
    directory.disk.run = InlineDisk.run.__get__(directory.disk)  # type: ignore[method-assign]
    scrubber = scrubber_of(directory, interval_s=100, first_after_s=10)
    with trio.move_on_after(9):
        await scrubber.run()
    assert scrubber.figures.rounds == 0
    with trio.move_on_after(215):
        await scrubber.run()
    assert scrubber.figures.rounds == 3
    never = scrubber_of(directory, interval_s=0)
    await never.run()
    assert never.figures.rounds == 0


async def test_a_round_that_fails_is_told_and_the_next_one_comes(
    directory: Directory, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    directory.store(1, range(10))
    directory.disk.run = InlineDisk.run.__get__(directory.disk)  # type: ignore[method-assign]
    scrubber = scrubber_of(directory, interval_s=100, first_after_s=10)
    asked = directory.index.runs

    def runs(ledger_id: int, first_entry_id: int = 0) -> object:
        directory.index.runs = asked  # type: ignore[method-assign]
        raise ValueError("nobody has thought of this")

    directory.index.runs = runs  # type: ignore[assignment, method-assign]
    with trio.move_on_after(115):
        await scrubber.run()
    assert "a round of the scrubber failed" in caplog.text
    assert "nobody has thought of this" in caplog.text
    assert (scrubber.figures.rounds, scrubber.figures.entries) == (1, 10)


async def test_no_round_follows_once_the_storage_has_failed(
    directory: Directory, autojump_clock: MockClock
) -> None:
    directory.store(1, range(10))
    directory.disk.run = InlineDisk.run.__get__(directory.disk)  # type: ignore[method-assign]
    scrubber = scrubber_of(directory, interval_s=100, first_after_s=10)

    def runs(ledger_id: int, first_entry_id: int = 0) -> object:
        raise StorageFailedError("the disk is gone")

    directory.index.runs = runs  # type: ignore[assignment, method-assign]
    with trio.fail_after(20):
        await scrubber.run()
    assert scrubber.figures.rounds == 0


async def test_the_greatest_entry_id_there_can_be_is_looked_at_like_others(directory: Directory) -> None:
    directory.store(1, [0, 2**63 - 2, 2**63 - 1])
    directory.store(2, range(10))
    scrubber = scrubber_of(directory)
    assert await scrubber.scrub() == []
    assert scrubber.figures.entries == 13
    flip(directory, 1, 2**63 - 1, 500)
    assert await found_in(directory) == [(1, 2**63 - 1)]


async def test_damage_found_on_start_stops_the_start_if_that_is_wanted(tmp_path: Path) -> None:
    config = StorageConfig(journal_directories=(tmp_path / "j",), ledger_directories=(tmp_path / "l",))
    checking = attrs.evolve(config, scrub=ScrubConfig(on_start=True))
    make = sealed()
    async with open_storage(RealDisk(), config) as storage:
        record = storage.create_ledger(1, b"k" * 20)
        for entry_id in range(10):
            storage.stage_entry(record, entry_id, -1, make(1, entry_id, 100))
        synced = trio.Event()
        storage.submit(lambda _: synced.set())
        await synced.wait()
    async with open_storage(RealDisk(), checking) as storage:
        assert await storage.read(1, 5) == make(1, 5, 100)
    (log,) = (tmp_path / "l/current").glob("*.log")
    data = bytearray(log.read_bytes())
    for entry_id in range(2, 8):
        data[data.index(make(1, entry_id, 100)) + 60] ^= 1
    log.write_bytes(data)
    with pytest.raises(StartError, match=r"6 damaged entries: entry 1:2 .*CRC32C.*and 3 more.*Start without"):
        async with open_storage(RealDisk(), checking):
            pass
    async with open_storage(RealDisk(), config) as storage:
        assert await storage.read(1, 5) != make(1, 5, 100), "nobody has looked yet"
        assert len(await storage._stores[0].scrubber.scrub()) == 6
        with pytest.raises(EntryUnreadableError):
            await storage.read(1, 5)


def test_a_piece_of_the_index_can_be_asked_for_by_its_first_entry(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    ids = [*range(3000), *range(5000, 5100)]
    directory.store(1, ids, 10)
    directory.store(2, range(10), 10)

    def from_entry(first: int) -> list[int]:
        runs: Sequence[LedgerRun] = list(directory.index.runs(1, first))
        return [entry_id for run in runs for entry_id in run.entry_ids]

    for first in (0, 1, 1023, 1024, 2999, 3000, 4999, 5000, 5099, 5100, 1 << 62):
        found = from_entry(first)
        assert found == ids[len(ids) - len(found) :]
        assert set(found) >= {entry_id for entry_id in ids if entry_id >= first}
    assert len(from_entry(2999)) < 2200
    directory.close()
