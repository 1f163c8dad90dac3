"""A bookie on several disks, from its configuration file to a reply: directories, cookies, expansion."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from bookie.config.bookie_config import parse_config
from bookie.config.classes import BookieConfig
from bookie.errors import CookieError
from bookie.identity.address import Machine
from bookie.main import run_bookie
from ledger.codes import Code
from ledger.digest import DigestType, EntryCodec, master_key
from ledger.metadata_store.memory import MemoryTree, open_memory_store
from ledger.wire import v2
from ledger.wire.messages import AddReply, AddRequest, IncomingReply, ReadReply, ReadRequest

ENTRIES = EntryCodec(DigestType.CRC32C, b"")
MACHINE = Machine(lambda name: "127.0.0.1", lambda: "localhost", lambda host: "127.0.0.1")


def config_for(directory: Path, *, journals: int, ledgers: int, more: str = "") -> BookieConfig:
    def several(name: str, count: int) -> str:
        return ",".join(f"{directory}/{name}-{number}" for number in range(count))

    return parse_config(
        "metadataServiceUri=zk+null://nowhere:1/ledgers\nlisteningInterface=lo\nallowLoopback=true\n"
        "bookieId=of-several-disks\nbookiePort=0\nallowEphemeralPorts=true\n"
        "diskUsageThreshold=1\ndiskUsageWarnThreshold=1\n"
        "journalMaxSizeMB=1\njournalPreAllocSizeMB=1\njournalMaxBackups=1\n"
        f"journalDirectories={several('journal', journals)}\n"
        f"ledgerDirectories={several('ledgers', ledgers)}\n"
        f"indexDirectories={several('index', ledgers)}\n{more}",
        "test.conf",
    )


@asynccontextmanager
async def serving(config: BookieConfig, tree: MemoryTree) -> AsyncIterator[trio.SocketStream]:
    """A connection to the running bookie; leaving the block stops it cleanly."""
    stop = trio.Event()

    async def run(*, task_status: trio.TaskStatus[int]) -> None:
        await run_bookie(
            config,
            open_store=lambda: open_memory_store(tree),
            stop=stop,
            machine=MACHINE,
            task_status=task_status,
        )

    async with trio.open_nursery() as nursery:
        port: int = await nursery.start(run)
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            yield stream
        stop.set()


async def reply_from(stream: trio.SocketStream) -> object:
    frame = b""
    while len(frame) < 4 or len(frame) < 4 + int.from_bytes(frame[:4], "big"):
        received = await stream.receive_some()
        assert received
        frame += received
    incoming: IncomingReply = v2.decode_reply(frame, 4, len(frame))
    return incoming.reply


async def add(stream: trio.SocketStream, ledger_id: int) -> None:
    body = ENTRIES.pack(ledger_id, 0, -1, 2, b"hi")
    await stream.send_all(v2.encode_request(AddRequest(ledger_id, 0, master_key(b""), body)))
    assert await reply_from(stream) == AddReply(Code.OK, ledger_id, 0)


async def check(stream: trio.SocketStream, ledger_id: int) -> None:
    await stream.send_all(v2.encode_request(ReadRequest(ledger_id, 0)))
    reply = await reply_from(stream)
    assert isinstance(reply, ReadReply)
    assert reply.body == ENTRIES.pack(ledger_id, 0, -1, 2, b"hi")


def found(directory: Path, pattern: str) -> int:
    return len(list(directory.glob(pattern)))


@pytest.mark.slow
async def test_all_directories_are_used_also_those_added_by_an_expansion(
    tmp_path: Path,
) -> None:
    tree = MemoryTree()
    async with serving(config_for(tmp_path, journals=2, ledgers=2), tree) as stream:
        for ledger_id in range(6):
            await add(stream, ledger_id)
    for pattern, count in (
        ("journal-*/current/*.txn", 2),
        ("ledgers-*/current/*.log", 2),
        ("ledgers-*/current/lastMark.[01]", 4),
        ("index-*/current/index", 2),
        ("*/current/VERSION", 6),
    ):
        assert found(tmp_path, pattern) >= count, pattern
    wider = config_for(tmp_path, journals=2, ledgers=3)
    with pytest.raises(ExceptionGroup) as caught:
        async with serving(wider, tree):
            raise AssertionError("started with another list of directories")
    assert caught.group_contains(CookieError)
    wider = config_for(tmp_path, journals=2, ledgers=3, more="allowStorageExpansion=true\n")
    async with serving(wider, tree) as stream:
        for ledger_id in range(6):
            await check(stream, ledger_id)
        await add(stream, 8)
        await check(stream, 8)
    assert found(tmp_path, "ledgers-2/current/*.log")
    async with serving(wider, tree) as stream:
        for ledger_id in (*range(6), 8):
            await check(stream, ledger_id)


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["journal-1", "ledgers-1"])
async def test_a_lost_directory_may_be_replaced_by_an_empty_one(tmp_path: Path, lost: str) -> None:
    tree = MemoryTree()
    async with serving(config_for(tmp_path, journals=2, ledgers=2), tree) as stream:
        for ledger_id in range(4):
            await add(stream, ledger_id)
    (tmp_path / lost).rename(tmp_path / "gone")
    if lost == "ledgers-1":
        (tmp_path / "index-1").rename(tmp_path / "gone-too")
    config = config_for(tmp_path, journals=2, ledgers=2, more="dataIntegrityStampMissingCookies=true\n")
    async with serving(config, tree) as stream:
        for ledger_id in (0, 2):
            await check(stream, ledger_id)
        await add(stream, 5)
    async with serving(config_for(tmp_path, journals=2, ledgers=2), tree) as stream:
        await check(stream, 5)


@pytest.mark.slow
async def test_a_bookie_does_not_start_without_one_of_its_journals(tmp_path: Path) -> None:
    tree = MemoryTree()
    async with serving(config_for(tmp_path, journals=2, ledgers=1), tree) as stream:
        await add(stream, 0)
    fewer = config_for(tmp_path, journals=1, ledgers=1, more="allowStorageExpansion=true\n")
    with pytest.raises(ExceptionGroup) as caught:
        async with serving(fewer, tree):
            raise AssertionError("started without a journal")
    assert caught.group_contains(CookieError)
