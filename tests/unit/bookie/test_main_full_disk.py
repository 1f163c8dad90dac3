"""A bookie of a cluster that is started on a disk on which nothing is free."""

# covers: bookie/main.py

from __future__ import annotations

import errno
import os
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import trio

from bookie import main
from bookie.bookie import Bookie
from bookie.disk.reserve import LOAN_BYTES, START_RESERVE_BYTES
from bookie.errors import DirectoryError
from ledger.codes import Code
from ledger.digest import DigestType, EntryCodec
from ledger.metadata_store.memory import MemoryTree
from ledger.wire import v2
from ledger.wire.messages import AddReply, ReadReply, ReadRequest
from tests.fakes.small_disk import SmallDirectory, SmallDisk, small_directory
from tests.unit.bookie.test_main import add_one, config_for, running

LINES = "bookieId=b1\nflushReserveBytes=1048576\ncompactionReserveBytes=0\ndiskCheckInterval=1\n"
ENTRY = EntryCodec(DigestType.CRC32C, b"").pack(1, 0, -1, 2, b"hi")


async def read_one(port: int) -> bytes:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(v2.encode_request(ReadRequest(1, 0)))
        frame = b""
        while len(frame) < 4 or len(frame) < 4 + int.from_bytes(frame[:4], "big"):
            frame += await stream.receive_some(4096)
        reply = v2.decode_reply(frame, 4, len(frame)).reply
    assert isinstance(reply, ReadReply)
    return bytes(reply.body or b"")


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


async def size_is(path: Path, size_bytes: int) -> None:
    with trio.fail_after(60):
        while size_of(path) != size_bytes:  # noqa: ASYNC110
            await trio.sleep(0.01)


def kill(small: SmallDirectory) -> Path:
    """As after a kill: another program takes what the bookie was given, and all that was free."""
    current = small.path / "ledgers/current"
    os.truncate(current / "flush.reserve", 0)
    small.fill()
    return current / "start.reserve"


@pytest.mark.mounts
@pytest.mark.slow
async def test_a_bookie_starts_after_its_given_reserve_was_taken(tmp_path: Path) -> None:
    tree = MemoryTree()
    with small_directory(tmp_path / "disk", 64 << 20) as small:
        config = config_for(small.path, LINES)
        async with running(config, tree) as bookie:
            assert await add_one(bookie.port) == AddReply(Code.OK, 1, 0)
            await size_is(small.path / "ledgers/current/start.reserve", START_RESERVE_BYTES)
            await size_is(small.path / "ledgers/current/flush.reserve", 1 << 20)
        for _ in range(4):
            kill(small)
            async with running(config, tree) as bookie:
                small.fill()
                assert await read_one(bookie.port) == ENTRY
                assert await add_one(bookie.port, 3) == AddReply(Code.READ_ONLY, 3, 0)
        reserve = kill(small)
        assert START_RESERVE_BYTES - reserve.stat().st_size >= 4 * LOAN_BYTES
        small.free()
        async with running(config, tree) as bookie:
            await size_is(reserve, START_RESERVE_BYTES)
            assert await add_one(bookie.port, 3) == AddReply(Code.OK, 3, 0)


@pytest.mark.parametrize("loans", [0, 3])
async def test_a_start_takes_each_loan_and_then_says_that_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loans: int
) -> None:
    disk, tree, starts = SmallDisk(tmp_path, 64 << 20), MemoryTree(), 0
    async with running(config_for(tmp_path, LINES), tree):
        pass  # it has its cookie

    def refuse(*_args: object, **_more: object) -> AbstractAsyncContextManager[Bookie]:
        nonlocal starts
        starts += 1
        raise DirectoryError("no bookie") from OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(main, "open_bookie", refuse)
    reserve = tmp_path / "ledgers/current/start.reserve"
    reserve.write_bytes(bytes(loans * LOAN_BYTES + 1))
    disk.others_bytes = disk.free_bytes() - START_RESERVE_BYTES // 2
    with pytest.RaisesGroup(pytest.RaisesExc(DirectoryError, match="no bookie")):
        async with running(config_for(tmp_path, LINES), tree, disk=disk):
            pass
    assert starts == loans + 1
    assert reserve.stat().st_size == 1
