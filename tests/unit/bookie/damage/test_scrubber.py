"""The scrubber: it finds damaged entries, reports no sound ones, and respects its rate."""

# covers: bookie/damage/directory_entries.py

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import attrs
import pytest
import trio
from trio.testing import MockClock

from bookie.damage.scrubber import ScrubConfig
from bookie.disk.real_disk import RealDisk
from bookie.errors import EntryUnreadableError, StartError, StorageFailedError
from bookie.index.entry_index import EntryRange
from bookie.storage.config import StorageConfig
from bookie.storage.opening import open_storage
from ledger.digest import DigestType
from tests.fakes.directory_by_hand import Directory, WatchedDisk, sealed
from tests.unit.bookie.damage.scrubbed import flip, found_in, scrubber_of

T = TypeVar("T")


@pytest.mark.slow
async def test_all_entries_are_checked_and_sound_ones_are_not_reported(directory: Directory) -> None:
    for ledger_id in range(5):
        directory.store(ledger_id, range(0, 3000, 1 + ledger_id % 2), 50)
    directory.store(7, [0, 5], 400_000)
    scrubber = scrubber_of(directory)
    assert await scrubber.scrub() == []
    assert scrubber.stats.entries == 3 * 3000 + 2 * 1500 + 2
    assert (scrubber.stats.rounds, scrubber.stats.damaged) == (1, 0)
    assert "1 rounds, 0 damaged" in repr(scrubber)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("at", "mask"), [(0, 1), (15, 1), (-4, 0x40), (-4, 0x80), (-1, 1), (16, 1), (31, 1), (33, 8), (500, 2)]
)
async def test_any_flipped_bit_of_an_entry_with_a_crc_is_reported_and_reads_fail(
    directory: Directory, at: int, mask: int, caplog: pytest.LogCaptureFixture
) -> None:
    directory.store(3, range(2000))
    assert await directory.reads.read(3, 1200) == directory.make(3, 1200, 1000)
    flip(directory, 3, 1200, at, mask)
    assert await found_in(directory) == [(3, 1200)]
    assert "entry 3:1200 was stored here but cannot be read" in caplog.text
    assert "a bookie of a cluster copies it from there" in caplog.text
    for _ in range(2):
        with pytest.raises(EntryUnreadableError):
            await directory.reads.read(3, 1200)
        with pytest.raises(EntryUnreadableError):
            await directory.reads.read_batch(3, 1200, 5, 1 << 20)
    assert await directory.reads.read(3, 1201) == directory.make(3, 1201, 1000)
    flip(directory, 3, 1200, at, mask)  # the damage is gone
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


async def test_an_entry_that_stays_damaged_is_counted_once(directory: Directory) -> None:
    directory.store(1, range(20))
    scrubber = scrubber_of(directory)
    flip(directory, 1, 3, 500, 2)
    for _ in range(3):
        assert len(await scrubber.scrub()) == 1
    assert scrubber.stats.damaged == 1
    flip(directory, 1, 9, 500, 2)
    await scrubber.scrub()
    assert scrubber.stats.damaged == 2


async def test_an_entry_that_the_disk_cannot_read_is_damaged_until_it_can_be_read_again(
    directory: Directory,
) -> None:
    directory.store(1, range(300))
    bad = directory.index.locate(1, 77)[0] & 0xFFFF_FFFF

    def change(data: bytes, offset: int) -> bytes:
        if offset <= bad < offset + len(data):
            raise OSError(errno.EIO, "injected")
        return data

    directory.disk.change = change
    found = await found_in(directory)
    assert (1, 77) in found
    assert len(found) < 6, "its neighbours are read one by one"
    directory.disk.change = lambda data, offset: data
    assert await found_in(directory) == []
    assert not directory.damaged


@pytest.mark.parametrize("digest_type", [DigestType.MAC, DigestType.DUMMY])
async def test_a_changed_payload_without_a_crc_is_not_found(
    directory: Directory, digest_type: DigestType
) -> None:
    directory.make = sealed(digest_type)
    directory.digest_types[1] = digest_type
    directory.store(1, range(100))
    flip(directory, 1, 50, 500)
    assert await found_in(directory) == []
    flip(directory, 1, 50, 8)
    assert await found_in(directory) == [(1, 50)], "a changed id is found"


async def test_each_ledger_has_its_own_digest_type_and_crc32_is_found_too(
    directory: Directory,
) -> None:
    for ledger_id, digest_type in enumerate(DigestType):
        directory.make = sealed(digest_type)
        directory.digest_types[ledger_id] = digest_type
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


def plant(directory: Directory, ledger_id: int, ids: Sequence[int]) -> None:
    """A peer that knows the master key adds entries with a valid CRC32C to a ledger of another type."""
    make, directory.make = directory.make, sealed()
    directory.store(ledger_id, ids)
    directory.make = make


@pytest.mark.parametrize("digest_type", [DigestType.MAC, DigestType.DUMMY, DigestType.CRC32])
@pytest.mark.parametrize("planted", [range(20), range(100, 120)], ids=["before", "behind"])
async def test_planted_entries_with_another_digest_make_no_sound_entry_look_damaged(
    directory: Directory, digest_type: DigestType, planted: range
) -> None:
    directory.make = sealed(digest_type)
    directory.digest_types[1] = digest_type
    plant(directory, 1, planted)
    sound = [entry_id for entry_id in range(120) if entry_id not in planted]
    directory.store(1, sound)
    assert await found_in(directory) == []
    assert directory.asked == ([] if digest_type is DigestType.CRC32 else [1])
    for entry_id in (sound[0], sound[-1]):
        assert await directory.reads.read(1, entry_id) == directory.make(1, entry_id, 1000)


async def test_without_metadata_an_entry_that_could_have_a_mac_is_not_damaged(directory: Directory) -> None:
    directory.make = sealed(DigestType.MAC)
    plant(directory, 1, range(50))
    directory.store(1, range(50, 100))
    directory.store(2, range(10))
    scrubber = scrubber_of(directory)
    scrubber._digest_type_of = None
    assert await scrubber.scrub() == []
    flip(directory, 2, 3, 8)
    (damaged,) = await scrubber.scrub()
    assert (damaged.ledger_id, damaged.entry_id) == (2, 3), "a changed id is found"
    flip(directory, 2, 3, 8)
    assert await scrubber.scrub() == []
    assert not directory.damaged, "no doubt remains"


async def test_while_the_metadata_cannot_be_read_nothing_is_reported_and_known_damage_remains(
    directory: Directory,
) -> None:
    directory.store(1, range(100))
    directory.store(2, range(100))
    flip(directory, 1, 5, 500)
    assert await found_in(directory) == [(1, 5)]
    flip(directory, 2, 7, 500)

    async def unknown(ledger_id: int) -> None:
        return None

    scrubber = scrubber_of(directory)
    scrubber._digest_type_of = unknown
    assert await scrubber.scrub() == []
    with pytest.raises(EntryUnreadableError, match="CRC32C digest does not match"):
        await directory.reads.read(1, 5)
    assert await found_in(directory) == [(1, 5), (2, 7)]


@pytest.mark.slow
async def test_the_metadata_are_read_once_in_a_round_and_only_for_entries_without_checksum(
    directory: Directory,
) -> None:
    for ledger_id, digest_type in enumerate(DigestType):
        directory.make = sealed(digest_type)
        directory.digest_types[ledger_id] = digest_type
        directory.store(ledger_id, range(3000))
    assert await found_in(directory) == []
    without = [number for number, one in enumerate(DigestType) if one in (DigestType.MAC, DigestType.DUMMY)]
    assert directory.asked == without


async def test_an_index_that_cannot_be_read_is_logged_and_the_next_ledger_is_checked(
    directory: Directory, caplog: pytest.LogCaptureFixture
) -> None:
    directory.store(1, range(10))
    directory.store(2, range(10))
    flip(directory, 2, 3, 0)
    original_ranges = directory.index.ranges

    def ranges(ledger_id: int, first_entry_id: int = 0) -> object:
        if ledger_id == 1:
            raise OSError(errno.EIO, "index: injected")
        return original_ranges(ledger_id, first_entry_id)

    directory.index.ranges = ranges  # type: ignore[assignment, method-assign]
    scrubber = scrubber_of(directory)
    assert [(error.ledger_id, error.entry_id) for error in await scrubber.scrub()] == [(2, 3)]
    assert "the index of ledger 1 cannot be read from entry 0 on" in caplog.text
    assert scrubber.unreadable == {1}
    directory.index.ranges = original_ranges  # type: ignore[method-assign]
    await scrubber.scrub()
    assert scrubber.unreadable == set()


@pytest.mark.parametrize("method", ["ranges", "locate"])
async def test_known_damage_of_a_ledger_is_kept_while_its_index_cannot_be_read(
    directory: Directory, method: str
) -> None:
    directory.store(1, range(10))
    directory.store(2, range(10))
    for ledger_id in (1, 2):
        flip(directory, ledger_id, 3, 500)
    assert await found_in(directory) == [(1, 3), (2, 3)]
    flip(directory, 2, 3, 500)
    original = getattr(directory.index, method)

    def failing(ledger_id: int, *more: Any) -> object:
        if ledger_id == 1:
            raise OSError(errno.EIO, "index: injected")
        return original(ledger_id, *more)

    setattr(directory.index, method, failing)
    assert await found_in(directory) == []
    setattr(directory.index, method, original)
    with pytest.raises(EntryUnreadableError, match="digest does not match"):
        await directory.reads.read(1, 3)
    assert await directory.reads.read(2, 3) == directory.make(2, 3, 1000)
    flip(directory, 1, 3, 500)
    assert await found_in(directory) == []
    assert await directory.reads.read(1, 3) == directory.make(1, 3, 1000)


class InlineDisk(WatchedDisk):
    async def run(self, job: Callable[..., T], *args: Any) -> T:
        await trio.lowlevel.checkpoint()  # no thread: the clock is a mock
        return job(*args)


async def test_the_scrubber_respects_its_rates_and_yields_to_load(
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
    assert 0.7 < await seconds(bytes_per_s=1 << 20) < 1.1  # a burst of one read is allowed
    assert 95 < await seconds(entries_per_s=10) < 105
    busy_until = trio.current_time() + 3
    assert 2.9 < await seconds() < 3.2
    busy_until = trio.current_time() + 1e9
    assert await seconds() < 60, "a bookie that is always busy is scrubbed too"


async def test_rounds_start_at_intervals_or_never(directory: Directory, autojump_clock: MockClock) -> None:
    directory.store(1, range(10))
    directory.disk.run = InlineDisk.run.__get__(directory.disk)  # type: ignore[method-assign]
    scrubber = scrubber_of(directory, interval_s=100, first_after_s=10)
    with trio.move_on_after(9):
        await scrubber.run()
    assert scrubber.stats.rounds == 0
    with trio.move_on_after(215):
        await scrubber.run()
    assert scrubber.stats.rounds == 3
    never = scrubber_of(directory, interval_s=0)
    await never.run()
    assert never.stats.rounds == 0


async def test_an_error_of_one_ledger_is_logged_and_the_next_round_runs(
    directory: Directory, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    directory.store(1, range(10))
    directory.disk.run = InlineDisk.run.__get__(directory.disk)  # type: ignore[method-assign]
    scrubber = scrubber_of(directory, interval_s=100, first_after_s=10)
    original_ranges = directory.index.ranges

    def ranges(ledger_id: int, first_entry_id: int = 0) -> object:
        directory.index.ranges = original_ranges  # type: ignore[method-assign]
        raise ValueError("an unexpected error")

    directory.index.ranges = ranges  # type: ignore[assignment, method-assign]
    with trio.move_on_after(115):
        await scrubber.run()
    assert "scrubbing, ledger 1: ended by ValueError: an unexpected error" in caplog.text
    assert (scrubber.stats.rounds, scrubber.stats.entries) == (2, 10)


async def test_no_round_follows_once_the_storage_has_failed(
    directory: Directory, autojump_clock: MockClock
) -> None:
    directory.store(1, range(10))
    directory.disk.run = InlineDisk.run.__get__(directory.disk)  # type: ignore[method-assign]
    scrubber = scrubber_of(directory, interval_s=100, first_after_s=10)

    def ranges(ledger_id: int, first_entry_id: int = 0) -> object:
        raise StorageFailedError("the disk is gone")

    directory.index.ranges = ranges  # type: ignore[assignment, method-assign]
    with trio.fail_after(20):
        await scrubber.run()
    assert scrubber.stats.rounds == 0


async def test_the_greatest_possible_entry_id_is_checked_like_others(directory: Directory) -> None:
    directory.store(1, [0, 2**63 - 2, 2**63 - 1])
    directory.store(2, range(10))
    scrubber = scrubber_of(directory)
    assert await scrubber.scrub() == []
    assert scrubber.stats.entries == 13
    flip(directory, 1, 2**63 - 1, 500)
    assert await found_in(directory) == [(1, 2**63 - 1)]


@pytest.mark.slow
async def test_the_check_on_start_refuses_a_damaged_store(tmp_path: Path) -> None:
    config = StorageConfig(journal_directories=(tmp_path / "j",), ledger_directories=(tmp_path / "l",))
    checking = attrs.evolve(config, scrub=ScrubConfig(on_start=True))
    make = sealed()

    async def crc32c(ledger_id: int) -> DigestType:
        return DigestType.CRC32C

    async with open_storage(RealDisk(), config) as storage:
        batch = storage.new_batch()
        record = storage.create_ledger(batch, 1, b"k" * 20)
        for entry_id in range(10):
            storage.stage_entry(batch, record, entry_id, -1, make(1, entry_id, 100))
        synced = trio.Event()
        storage.submit(batch, lambda _: synced.set())
        await synced.wait()
    async with open_storage(RealDisk(), checking) as storage:
        assert await storage.read(1, 5) == make(1, 5, 100)
    (log,) = (tmp_path / "l/current").glob("*.log")
    data = bytearray(log.read_bytes())
    for entry_id in range(2, 8):
        data[data.index(make(1, entry_id, 100)) + 60] ^= 1
    log.write_bytes(data)
    with pytest.raises(StartError, match=r"6 damaged entries: entry 1:2 .*CRC32C.*and 3 more.*Start without"):
        async with open_storage(RealDisk(), checking, digest_type_of=crc32c):
            pass
    async with open_storage(RealDisk(), config, digest_type_of=crc32c) as storage:
        assert await storage.read(1, 5) != make(1, 5, 100), "the entry has not been checked yet"
        assert len(await storage.stores[0].scrubber.scrub()) == 6
        with pytest.raises(EntryUnreadableError):
            await storage.read(1, 5)


def test_a_scan_of_the_index_can_begin_at_an_entry(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    ids = [*range(3000), *range(5000, 5100)]
    directory.store(1, ids, 10)
    directory.store(2, range(10), 10)

    def from_entry(first: int) -> list[int]:
        ranges: Sequence[EntryRange] = list(directory.index.ranges(1, first))
        return [entry_id for entry_range in ranges for entry_id in entry_range.entry_ids]

    for first in (0, 1, 1023, 1024, 2999, 3000, 4999, 5000, 5099, 5100, 1 << 62):
        found = from_entry(first)
        assert found == ids[len(ids) - len(found) :]
        assert set(found) >= {entry_id for entry_id in ids if entry_id >= first}
    assert len(from_entry(2999)) < 2200
    directory.close()
