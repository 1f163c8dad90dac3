"""What an unexpected error ends: one connection, or the bookie by name after a half-made change."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import trio
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from bookie.bookie import Bookie, open_bookie
from bookie.errors import StorageFailedError
from bookie.requests.in_progress import InProgress
from bookie.requests.long_polls import LongPolls
from bookie.requests.reads import DeferredReplies
from bookie.requests.session import ClientSession
from bookie.server.reply_queue import ReplyQueue
from bookie.storage.config import StorageConfig
from bookie.storage.write_cache import WriteCache
from ledger.codes import Code
from ledger.digest import DigestType, EntryCodec, master_key
from ledger.runtime.tasks.failure_domain import contained_failures
from ledger.wire.messages import AddReply, AddRequest, ReadReply, ReadRequest, Reply
from tests.unit.bookie.server.gated_bookie import Peer

KEY = master_key(b"pass")
ENTRIES = EntryCodec(DigestType.CRC32C, b"pass")
FAULTS = [
    KeyError("a fault"),
    AssertionError("a rule of ours"),
    MemoryError(),
    RecursionError(),
    ExceptionGroup("two", [ValueError("one"), OSError("other")]),
]


def config_of(path: Path) -> StorageConfig:
    return StorageConfig(journal_directories=(path / "j",), ledger_directories=(path / "l",))


Connect = Callable[[], Peer]
Break = Callable[[type, str, Exception], None]


def body(entry_id: int, ledger_id: int = 1) -> bytes:
    return ENTRIES.pack(ledger_id, entry_id, entry_id - 1, 5, b"bytes")


def add(entry_id: int, ledger_id: int = 1) -> AddRequest:
    return AddRequest(ledger_id, entry_id, KEY, body(entry_id, ledger_id))


@pytest.fixture
async def bookie(tmp_path: Path) -> AsyncIterator[Bookie]:
    async with open_bookie(config_of(tmp_path)) as bookie:
        yield bookie


@pytest.fixture
def connect(bookie: Bookie, nursery: trio.Nursery) -> Connect:
    def connect() -> Peer:
        ours, theirs = memory_stream_pair()
        nursery.start_soon(bookie.serve_stream, theirs)
        return Peer(ours)

    return connect


@pytest.fixture
def break_once(monkeypatch: pytest.MonkeyPatch) -> Break:
    """The next call of a method raises."""

    def break_once(kind: type, name: str, error: Exception) -> None:
        right = getattr(kind, name)

        def wrong(*args: object, **kwargs: object) -> object:
            monkeypatch.setattr(kind, name, right)
            raise error

        monkeypatch.setattr(kind, name, wrong)

    return break_once


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(
    ("kind", "name"),
    [(ClientSession, "_dispatch"), (ClientSession, "encode"), (DeferredReplies, "reply_to")],
)
async def test_an_error_of_a_request_or_of_its_reply_ends_its_connection_only(
    bookie: Bookie, connect: Connect, break_once: Break, kind: type, name: str, fault: Exception
) -> None:
    good, evil = connect(), connect()
    assert await good.ask(add(0), version=2) == AddReply(Code.OK, 1, 0)
    await bookie.storage.flush()
    before = contained_failures["connection"]
    break_once(kind, name, fault)
    assert await evil.ask(ReadRequest(1, 0)) is None, "the connection is closed"
    assert contained_failures["connection"] == before + 1
    assert await good.ask(add(1), version=2) == AddReply(Code.OK, 1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
async def test_an_error_of_an_acknowledgement_ends_its_connection_and_no_other_add_of_its_group(
    bookie: Bookie, connect: Connect, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    right = ReplyQueue.put

    def put(queue: ReplyQueue, frames: bytes) -> None:
        if (666).to_bytes(8, "big") in frames:
            raise fault
        right(queue, frames)

    monkeypatch.setattr(ReplyQueue, "put", put)
    good, evil = connect(), connect()
    async with trio.open_nursery() as nursery:
        replies: list[object] = []

        async def ask(peer: Peer, ledger_id: int) -> None:
            replies.append(await peer.ask(add(0, ledger_id), version=2))

        nursery.start_soon(ask, evil, 666)
        nursery.start_soon(ask, good, 2)
    assert sorted(map(repr, replies)) == [repr(AddReply(Code.OK, 2, 0)), "None"]
    assert bookie.storage.failure.error is None


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
async def test_an_error_of_a_long_poll_does_not_reach_the_writer_that_woke_it(
    connect: Connect, break_once: Break, fault: Exception
) -> None:
    writer, reader = connect(), connect()
    assert await writer.ask(add(0), version=2) == AddReply(Code.OK, 1, 0)
    async with trio.open_nursery() as nursery:
        ended = trio.Event()

        async def poll() -> None:
            assert await reader.ask(ReadRequest(1, -1, previous_lac=0, timeout_ms=60_000)) is None
            ended.set()

        nursery.start_soon(poll)
        await wait_all_tasks_blocked()
        break_once(LongPolls, "_slice", fault)
        assert await writer.ask(add(1), version=2) == AddReply(Code.OK, 1, 1)
        assert await writer.ask(add(2), version=2) == AddReply(Code.OK, 1, 2)
        await ended.wait()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (WriteCache, "begin"),
        (InProgress, "begin_batch"),
        (WriteCache, "seal"),
        (WriteCache, "remove_flushed"),
    ],
)
async def test_an_error_in_the_middle_of_a_change_stops_the_bookie_by_name(
    tmp_path: Path, break_once: Break, kind: type, name: str
) -> None:
    """An entry that is in the cache and not in the journal would be acknowledged when it is sent again."""
    reply: Reply | None = None

    async def run() -> None:
        nonlocal reply
        async with open_bookie(config_of(tmp_path)) as bookie, trio.open_nursery() as nursery:
            ours, theirs = memory_stream_pair()
            nursery.start_soon(bookie.serve_stream, theirs)
            break_once(kind, name, KeyError("a fault"))
            reply = await Peer(ours).ask(add(0), version=2)
            with pytest.raises(StorageFailedError):
                await bookie.storage.flush()
            await trio.sleep_forever()

    with pytest.raises(StorageFailedError, match="failed: 'a fault'"):
        await run()
    assert (reply is None) is (kind is InProgress or name == "begin"), "acknowledged only if journaled"
    async with open_bookie(config_of(tmp_path)) as bookie:
        if reply is not None:
            assert await bookie.storage.read(1, 0) == body(0)


async def test_an_unexpected_error_of_a_job_that_writes_stops_the_bookie_by_name(tmp_path: Path) -> None:
    def job() -> None:
        raise KeyError("a fault")

    with pytest.raises(StorageFailedError, match="failed: 'a fault'"):
        async with open_bookie(config_of(tmp_path)) as bookie:
            await bookie.storage.stores[0].in_thread(job)


async def test_counts_of_all_connections_that_contradict_each_other_stop_the_bookie_by_name(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with open_bookie(config_of(tmp_path)) as bookie, trio.open_nursery() as nursery:
            ours, theirs = memory_stream_pair()
            nursery.start_soon(bookie.serve_stream, theirs)
            await wait_all_tasks_blocked()
            bookie.server.memory.used_bytes = -1_000_000
            await ours.send_all(b"\0\0\1\0" + bytes(10))
            await wait_all_tasks_blocked()
            await ours.aclose()
            await trio.sleep_forever()

    with pytest.raises(StorageFailedError, match="counting what all connections hold"):
        await run()


async def test_a_timeout_without_a_previous_lac_makes_an_ordinary_read(connect: Connect) -> None:
    """As Apache's bookie: only ``previousLAC`` makes a long poll. The read is answered at once."""
    peer = connect()
    assert await peer.ask(add(0), version=2) == AddReply(Code.OK, 1, 0)
    for entry_id, code in ((5, Code.NO_ENTRY), (0, Code.OK), (-1, Code.OK)):
        reply = await peer.ask(ReadRequest(1, entry_id, timeout_ms=600_000))
        assert isinstance(reply, ReadReply)
        assert (reply.code, reply.entry_id) == (code, entry_id)
    assert await peer.ask(add(1), version=2) == AddReply(Code.OK, 1, 1)
