"""Entries at a place that a bookie named, read from the file by the client."""

# covers: ledger/read/log_file.py

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from ledger.codes import Code
from ledger.packed_entries import SIZE_BYTES, PackedEntries, pack_entries
from ledger.read.local_reads import PAUSE_S, LocalReads
from ledger.read.log_file import DescriptorLog
from ledger.wire.messages import LocatedReply

BODIES = [b"%03d" % at * (1 + at % 4) for at in range(20)]
START = 1024


class Log:
    """An entry log with ``BODIES``, which begin with entry 10."""

    def __init__(self, path: Path, bodies: list[bytes] = BODIES) -> None:
        self.path = path / "2a.log"
        packed = pack_entries(bodies)
        self.path.write_bytes(bytes(START) + bytes(packed.packed) + b"\x7f" * 40)
        starts = tuple(start - SIZE_BYTES for start in packed.starts)
        self.place = LocatedReply(Code.OK, 7, 10, 0, 0x2A, 0, 0, START, starts)
        self.descriptors: list[int] = []

    def open(self, log_id: int, _device: int, _inode: int) -> DescriptorLog:
        assert log_id == 0x2A
        self.descriptors.append(os.open(self.path, os.O_RDONLY))
        return DescriptorLog(self.descriptors[-1])

    @property
    def is_closed(self) -> bool:
        try:
            os.fstat(self.descriptors[-1])
        except OSError:
            return True
        return False


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


async def read_all(local: LocalReads, size_bytes_max: int, last: int = 29) -> list[bytes]:
    found: list[bytes] = []
    while local.holds(10 + len(found)) and 10 + len(found) <= last:
        entries = await local.read(last, size_bytes_max)
        assert entries
        found += entries
        local.advance(len(entries))
    return found


@pytest.mark.parametrize("size_bytes_max", [1, 7, 8, 50, 100, 1 << 20])
async def test_all_entries_are_returned_in_order_by_reads_of_any_size(log: Log, size_bytes_max: int) -> None:
    local = LocalReads(log.open)
    assert local.take(log.place)
    assert not local.holds(11)
    assert await read_all(local, size_bytes_max) == BODIES
    assert log.is_closed


async def test_entries_of_one_size_are_returned_likewise(tmp_path: Path) -> None:
    log = Log(tmp_path, [b"%05d" % at for at in range(30)])
    local = LocalReads(log.open)
    assert local.take(log.place)
    assert await read_all(local, 100, last=39) == [b"%05d" % at for at in range(30)]


async def test_nothing_beyond_the_last_entry_is_returned(log: Log) -> None:
    local = LocalReads(log.open)
    local.take(log.place)
    assert await read_all(local, 1 << 20, last=14) == BODIES[:5]
    assert local.holds(15)
    local.drop()


@pytest.mark.parametrize("bodies", [BODIES, [b"%05d" % at for at in range(20)]])
async def test_entries_are_taken_from_their_places_not_from_between_them(
    tmp_path: Path, bodies: list[bytes]
) -> None:
    """The known bug: an entry was added again, and its old copy is still behind the entry before it."""
    log = Log(tmp_path, bodies)
    starts = log.place.starts
    local = LocalReads(log.open)
    local.take(attrs.evolve(log.place, starts=(*starts[:7], *starts[9:])))  # entry 17 is the copy at 19
    found = await local.read(29, 1 << 20)
    assert found == bodies[:7]
    local.advance(7)
    assert local.holds(17)
    assert await local.read(29, 1 << 20) == bodies[9:]
    local.drop()


async def test_entries_that_were_not_verified_are_read_again(log: Log) -> None:
    local = LocalReads(log.open)
    local.take(log.place)
    assert await local.read(29, 1 << 20) == BODIES
    local.advance(3)
    assert local.holds(13)
    assert (await local.read(29, 1 << 20))[0] == BODIES[3]
    local.drop()
    assert log.is_closed


async def test_a_deleted_log_is_read_to_the_end_once_it_is_open(log: Log) -> None:
    local = LocalReads(log.open)
    local.take(log.place)
    log.path.unlink()
    assert await read_all(local, 50) == BODIES


async def test_a_log_that_cannot_be_opened_is_left_alone_for_a_while(
    log: Log, autojump_clock: MockClock
) -> None:
    log.path.unlink()
    local = LocalReads(log.open)
    may_locate = [local.may_locate]
    assert not local.take(log.place)
    assert not local.holds(10)
    may_locate.append(local.may_locate)
    await trio.sleep(PAUSE_S)
    assert [*may_locate, local.may_locate] == [True, False, True]


@pytest.mark.parametrize("size", [0, START - 10, START, START + 3, START + 5])
async def test_a_log_that_ends_early_gives_nothing(log: Log, size: int) -> None:
    local = LocalReads(log.open)
    local.take(log.place)
    os.truncate(log.path, size)
    assert not await local.read(29, 1 << 20)
    local.fail()
    assert log.is_closed


@pytest.mark.parametrize(("name", "value"), [("starts", ()), ("offset", -1), ("starts", (4, 9))])
async def test_a_place_that_cannot_be_is_refused(log: Log, name: str, value: object) -> None:
    local = LocalReads(log.open)
    fields: dict[str, Any] = {name: value}
    assert not local.take(attrs.evolve(log.place, **fields))
    assert not log.descriptors


@pytest.mark.parametrize("size", [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\x00\x00\x00"])
async def test_a_damaged_size_takes_no_memory_and_gives_nothing(log: Log, size: bytes) -> None:
    data = bytearray(log.path.read_bytes())
    data[START : START + 4] = size
    log.path.write_bytes(data)
    local = LocalReads(log.open)
    local.take(log.place)
    assert not await local.read(29, 1 << 20)
    local.drop()


async def test_the_file_stays_open_while_a_thread_reads_it(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number may belong to another file as soon as it is closed."""

    def refuse(*_: object) -> int:
        raise BlockingIOError  # the page cache does not have it

    monkeypatch.setattr(os, "preadv", refuse)
    local = LocalReads(log.open)
    local.take(log.place)
    found: list[PackedEntries] = []

    async def read() -> None:
        found.append(await local.read(29, 1 << 20))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.lowlevel.checkpoint()
        while not local._log or not local._log.users:
            await trio.lowlevel.checkpoint()
        local.drop()
        assert not log.is_closed
    assert found == [BODIES]
    assert log.is_closed
