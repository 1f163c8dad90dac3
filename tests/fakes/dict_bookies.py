"""Bookies made of dictionaries, with the real protocol over streams inside this process.

They obey the rules of docs/protocol.md 9 that clients depend on (fence, recovery adds, highest entry, denial
against error). A test can stop, wipe and silence them, and make them refuse requests. They have no disk and
no journal.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import attrs
import trio
import trio.testing

from ledger.catalog.availability import encode_availability
from ledger.catalog.paths import available_path
from ledger.client import LedgerClient, open_ledger_client
from ledger.codes import Code
from ledger.config import ClientConfig
from ledger.metadata_store.memory import MemoryTree, open_memory_store
from ledger.metadata_store.store import MetadataStore
from ledger.transport.dial import Address
from ledger.transport.pipe import PipeStream, stream_pair
from ledger.wire import v2, v3
from ledger.wire.frame import FrameBuffer
from ledger.wire.messages import (
    LAST_ENTRY,
    AddReply,
    AddRequest,
    BatchReadReply,
    BatchReadRequest,
    BookieInfoReply,
    BookieInfoRequest,
    ForceLedgerReply,
    ForceLedgerRequest,
    IncomingRequest,
    ListEntriesReply,
    ListEntriesRequest,
    ReadLacReply,
    ReadLacRequest,
    ReadReply,
    ReadRequest,
    Reply,
    WriteLacReply,
    WriteLacRequest,
)

ENDS_WITHIN_S = 20.0  # of real time, and of CPU time; a client's part of a test takes less than one second
MOCK_ENDS_WITHIN_S = 3_600.0


class _SpinBound(trio.abc.Instrument):
    """Cancels a scope after too much CPU time: a mock clock does not advance while tasks spin."""

    def __init__(self, scope: trio.CancelScope) -> None:
        self._scope, self._end = scope, time.thread_time() + ENDS_WITHIN_S

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if time.thread_time() > self._end:
            self._scope.cancel()


@contextlib.contextmanager
def spin_bound(scope: trio.CancelScope) -> Iterator[None]:
    """End the block after a limited CPU time, whatever the clock of the test and the load of the machine."""
    bound = _SpinBound(scope)
    trio.lowlevel.add_instrument(bound)
    try:
        yield
    finally:
        trio.lowlevel.remove_instrument(bound)


class DictLedger:
    """One ledger on one bookie."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.entries: dict[int, bytes] = {}
        self.fenced = False
        self.lac = -1
        self.lac_body: bytes | None = None
        self.changed = trio.Event()

    def raise_lac(self, lac: int) -> None:
        if lac > self.lac:
            self.lac = lac
            self.wake()

    def wake(self) -> None:
        self.changed.set()
        self.changed = trio.Event()


class DictBookie:
    """One bookie. If ``refuse(request)`` returns a code, the bookie replies with it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ledgers: dict[int, DictLedger] = {}
        self.refuse: Callable[[object], Code | None] = lambda request: None
        self.has_batch_reads = True
        self.obeys_count_max = True  # if False, a batch may have more entries than requested
        self.is_silent = False
        self.unanswered: tuple[type, ...] = ()  # requests that get no reply
        self.goes_on = False  # if True, a long poll may get several replies
        self.delay_s = 0.0  # before each reply
        self.free_bytes = 1
        self.synced: list[int] = []  # the ledger of each FORCE_LEDGER
        self.requests: list[object] = []
        self.request_streams: list[PipeStream] = []  # the connection of each request
        self.urgent_requests: list[object] = []  # the requests with high priority

    async def serve(self, stream: PipeStream) -> None:
        frames = FrameBuffer()
        lock = trio.Lock()
        async with trio.open_nursery() as nursery:
            # Inside the nursery: outside it the error would be in a group, which Python 3.11 does not
            # suppress.
            with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                while chunk := await stream.receive_some():
                    data, payloads = frames.feed(chunk)
                    for start, end in payloads:
                        codec = v2 if data[start] <= 7 else v3
                        incoming = codec.decode_request(data, start, end)
                        self.requests.append(incoming.request)
                        self.request_streams.append(stream)
                        if incoming.high_priority:
                            self.urgent_requests.append(incoming.request)
                        if isinstance(incoming.request, BatchReadRequest) and not self.has_batch_reads:
                            nursery.cancel_scope.cancel()
                            break
                        if self.delay_s:
                            await trio.sleep(self.delay_s)
                        if isinstance(incoming.request, self.unanswered):
                            continue
                        reply = None if self.is_silent else self._reply_to(incoming)
                        if reply is not None:
                            await self._send(stream, lock, incoming, reply)
                        elif not self.is_silent:
                            nursery.start_soon(self._long_poll, stream, lock, incoming)
                nursery.cancel_scope.cancel()
        await stream.aclose()

    async def _send(
        self, stream: PipeStream, lock: trio.Lock, incoming: IncomingRequest, reply: Reply
    ) -> None:
        codec = v2 if incoming.version < 3 else v3
        frame = codec.encode_reply(
            reply,
            version=incoming.version,
            operation=incoming.operation,
            transaction_id=incoming.transaction_id,
        )
        async with lock:
            await stream.send_all(frame)

    async def _long_poll(self, stream: PipeStream, lock: trio.Lock, incoming: IncomingRequest) -> None:
        request = incoming.request
        assert isinstance(request, ReadRequest)
        assert request.previous_lac is not None
        ledger = self.ledgers[request.ledger_id]
        seen, left = request.previous_lac, request.replies_max if self.goes_on else 1
        more_follow = True
        while more_follow:
            with trio.move_on_after((request.timeout_ms or 0) / 1000):
                while ledger.lac <= seen and not ledger.fenced:
                    await ledger.changed.wait()
            left -= 1
            more_follow = left > 0 and ledger.lac > seen and not ledger.fenced
            seen = ledger.lac
            reply = attrs.evolve(self._read(request), more_follow=more_follow)
            with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await self._send(stream, lock, incoming, reply)

    def _reply_to(self, incoming: IncomingRequest) -> Reply | None:
        # None: a long poll.
        request = incoming.request
        code = self.refuse(request)
        match request:
            case AddRequest():
                return AddReply(code or self._add(request), request.ledger_id, request.entry_id)
            case ReadRequest():
                if code is not None:
                    return ReadReply(code, request.ledger_id, request.entry_id)
                if request.previous_lac is not None and request.ledger_id in self.ledgers:
                    return None
                return self._read(request)
            case BatchReadRequest():
                return self._batch(request) if code is None else self._no_batch(request, code)
            case WriteLacRequest():
                ledger = self.ledgers.setdefault(request.ledger_id, DictLedger(request.master_key))
                ledger.lac_body = request.body
                ledger.raise_lac(request.lac)
                return WriteLacReply(code or Code.OK, request.ledger_id)
            case ReadLacRequest():
                return self._read_lac(request, code)
            case BookieInfoRequest():
                return BookieInfoReply(code or Code.OK, 2 * self.free_bytes, self.free_bytes)
            case ForceLedgerRequest():
                self.synced.append(request.ledger_id)
                return ForceLedgerReply(code or Code.OK, request.ledger_id)
            case ListEntriesRequest():
                return self._list(request, code)
            case _:
                raise AssertionError(request)

    def _list(self, request: ListEntriesRequest, code: Code | None) -> ListEntriesReply:
        if code is not None or request.ledger_id not in self.ledgers:
            return ListEntriesReply(code or Code.NO_LEDGER, request.ledger_id)
        entries = sorted(self.ledgers[request.ledger_id].entries)
        return ListEntriesReply(Code.OK, request.ledger_id, encode_availability(entries))

    def _add(self, request: AddRequest) -> Code:
        ledger = self.ledgers.setdefault(request.ledger_id, DictLedger(request.master_key))
        if ledger.key != request.master_key:
            return Code.UNAUTHORIZED
        if ledger.fenced and not request.recovery:
            return Code.FENCED
        ledger.entries[request.entry_id] = request.body
        ledger.raise_lac(int.from_bytes(request.body[16:24], "big", signed=True))
        return Code.OK

    def _read(self, request: ReadRequest) -> ReadReply:
        if request.fence:
            assert request.master_key is not None
            ledger = self.ledgers.setdefault(request.ledger_id, DictLedger(request.master_key))
            if ledger.key != request.master_key:
                return ReadReply(Code.UNAUTHORIZED, request.ledger_id, request.entry_id)
            ledger.fenced = True
            ledger.wake()
        elif request.ledger_id not in self.ledgers:
            return ReadReply(Code.NO_LEDGER, request.ledger_id, request.entry_id)
        else:
            ledger = self.ledgers[request.ledger_id]
        entry_id = request.entry_id
        if entry_id == LAST_ENTRY:
            entry_id = max(ledger.entries, default=LAST_ENTRY)
        body = ledger.entries.get(entry_id)
        if body is None:
            return ReadReply(Code.NO_ENTRY, request.ledger_id, request.entry_id)
        return ReadReply(Code.OK, request.ledger_id, request.entry_id, body, max_lac=ledger.lac)

    def _batch(self, request: BatchReadRequest) -> BatchReadReply:
        if request.ledger_id not in self.ledgers:
            return self._no_batch(request, Code.NO_LEDGER)
        entries = self.ledgers[request.ledger_id].entries
        bodies: list[bytes] = []
        size, entry_id = 36, request.entry_id
        count_max = request.count_max if self.obeys_count_max and request.count_max > 0 else len(entries)
        while entry_id in entries and len(bodies) < count_max:
            size += len(entries[entry_id]) + 4
            if bodies and size > request.size_bytes_max:
                break
            bodies.append(entries[entry_id])
            entry_id += 1
        if not bodies:
            return self._no_batch(request, Code.NO_ENTRY)
        return BatchReadReply(Code.OK, request.ledger_id, request.entry_id, request.request_id, tuple(bodies))

    def _no_batch(self, request: BatchReadRequest, code: Code) -> BatchReadReply:
        return BatchReadReply(code, request.ledger_id, request.entry_id, request.request_id)

    def _read_lac(self, request: ReadLacRequest, code: Code | None) -> ReadLacReply:
        ledger = self.ledgers.get(request.ledger_id)
        if code is not None or ledger is None or (not ledger.entries and ledger.lac_body is None):
            return ReadLacReply(code or Code.NO_ENTRY, request.ledger_id)
        last = ledger.entries[max(ledger.entries)] if ledger.entries else None
        return ReadLacReply(Code.OK, request.ledger_id, ledger.lac_body, last)


class DictCluster:
    """Bookies by name, a metadata tree, and the network between them and clients."""

    def __init__(self, tree: MemoryTree, registrar: MetadataStore, nursery: trio.Nursery) -> None:
        self.tree = tree
        self.bookies: dict[str, DictBookie] = {}
        self._registrar, self._nursery = registrar, nursery
        self._scopes: dict[str, set[trio.CancelScope]] = {}  # the connections of each running bookie

    async def start(self, name: str, *, session: MetadataStore | None = None) -> DictBookie:
        """Start a new bookie, or one that was stopped, with its entries; register it in this session, or in
        that of all bookies."""
        bookie = self.bookies.setdefault(name, DictBookie(name))
        self._scopes[name] = set()
        session = session or self._registrar
        await session.create(available_path("/ledgers", name), b"", ephemeral=True, parents=True)
        return bookie

    async def stop(self, name: str, *, registered: bool = False) -> None:
        """Break a bookie's connections and refuse new ones; delete its node too, unless ``registered``."""
        for scope in self._scopes.pop(name):
            scope.cancel()
        if not registered:
            await self._registrar.delete(available_path("/ledgers", name))

    def wipe(self, name: str) -> None:
        """Replace a bookie by an empty one of the same name."""
        self.bookies[name] = DictBookie(name)

    def revive(self, name: str) -> None:
        """Accept connections again for a bookie that was stopped as ``registered``."""
        self._scopes[name] = set()

    async def dial(self, address: Address) -> PipeStream:
        await trio.lowlevel.checkpoint()
        name = str(address)
        if name not in self._scopes:
            raise OSError(f"{name} refuses connections")
        ours, theirs = stream_pair()
        self._nursery.start_soon(self._serve, name, theirs)
        return ours

    async def _serve(self, name: str, stream: PipeStream) -> None:
        try:
            with trio.CancelScope() as scope:
                if name in self._scopes:
                    self._scopes[name].add(scope)
                    await self.bookies[name].serve(stream)
        finally:
            self._scopes.get(name, set()).discard(scope)
            await trio.aclose_forcefully(stream)

    @asynccontextmanager
    async def client(
        self, config: ClientConfig | None = None, *, ends_within_s: float | None = None
    ) -> AsyncIterator[LedgerClient]:
        """A client for a limited time: if a rule is broken, the test fails instead of waiting for ever."""
        if ends_within_s is None:
            is_mocked = isinstance(trio.lowlevel.current_clock(), trio.testing.MockClock)
            ends_within_s = MOCK_ENDS_WITHIN_S if is_mocked else ENDS_WITHIN_S
        with trio.fail_after(ends_within_s) as scope, spin_bound(scope):
            async with (
                open_memory_store(self.tree) as store,
                open_ledger_client(store, self.dial, config or ClientConfig()) as client,
            ):
                yield client


@asynccontextmanager
async def open_cluster(bookie_count: int = 3) -> AsyncIterator[DictCluster]:
    """A cluster of the bookies ``b1:1``, ``b2:1``, ... and an empty metadata tree."""
    tree = MemoryTree()
    async with open_memory_store(tree) as registrar, trio.open_nursery() as nursery:
        cluster = DictCluster(tree, registrar, nursery)
        for number in range(1, bookie_count + 1):
            await cluster.start(f"b{number}:1")
        yield cluster
        nursery.cancel_scope.cancel()


async def abandon_ledger(client: LedgerClient, count: int) -> int:
    """Make an open ledger without a writer. Its bookies cannot know that the last entry is confirmed."""
    writer = await client.create()
    for number in range(count):
        await writer.append(b"%d" % number)
    await trio.testing.wait_all_tasks_blocked()
    writer.abandon()
    return writer.ledger_id
