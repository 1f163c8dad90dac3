"""The requests in flight on one connection to a bookie, and matching replies to them.

One ``ConnectionProtocol`` lives from the dialling of a connection to its loss. A reply from an old connection
can therefore not reach a request on a new one.

Inside: cutting replies out of bytes; matching them to calls (one object each) and to adds (``queues``).
Not inside: sockets, tasks, deadlines of single calls (``transport``); TLS, authentication (``handshake``).
Always: a reply reaches the call that requested it, or is dropped. Version 2 marks the reply to a read with
ledger and entry only. So reads of one entry with different frames (a fencing read and a plain one) are never
in flight together: the later one waits here.

Source: PerChannelBookieClient.java, EntryCompletionKey.java, TxnCompletionKey.java; docs/protocol.md 2.7.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable

import attrs

from ledger.codes import CODE_OF_V2, Code, Operation
from ledger.errors import WireError
from ledger.transport.queues import AddQueue, AddQueues, AddReplies, AddSink, SendQueue
from ledger.wire import v2, v3
from ledger.wire.frame import FRAME_BYTES_MAX, FrameBuffer
from ledger.wire.messages import (
    AddReply,
    AddRequest,
    AuthReply,
    AuthRequest,
    BatchReadReply,
    BatchReadRequest,
    BookieInfoRequest,
    ForceLedgerRequest,
    IncomingReply,
    ListEntriesRequest,
    LocatedReply,
    ReadLacRequest,
    ReadReply,
    ReadRequest,
    RefusedReply,
    Reply,
    Request,
    StartTlsReply,
    StartTlsRequest,
    WriteLacRequest,
)

FORGOTTEN_TICKS = 12  # of a quarter of the add timeout each

OPERATIONS: dict[type[Request], Operation] = {
    AddRequest: Operation.ADD_ENTRY,
    ReadRequest: Operation.READ_ENTRY,
    BatchReadRequest: Operation.BATCH_READ_ENTRY,
    WriteLacRequest: Operation.WRITE_LAC,
    ReadLacRequest: Operation.READ_LAC,
    ForceLedgerRequest: Operation.FORCE_LEDGER,
    BookieInfoRequest: Operation.GET_BOOKIE_INFO,
    ListEntriesRequest: Operation.LIST_ENTRIES,
    StartTlsRequest: Operation.START_TLS,
    AuthRequest: Operation.AUTH,
}

# Adds use entry id + 1 as transaction id (v3.AddEncoder). Calls count from here, so the two never collide.
FIRST_TRANSACTION_ID = 1 << 62

# A version 2 reply to an add: frame length, header, code and ledger id (20 bytes); entry id. Consecutive
# replies often share the first 20 bytes.
_ADD_REPLY_FRAME = struct.Struct(">20sq")
_ADD_REPLY_MARK = struct.pack(">II", v2.ADD_REPLY.size, v2.ADD_HEADER)
_CODE_AND_LEDGER = struct.Struct(">8xIq")


class Call:
    """One request and its replies due, mostly one. ``waiter`` is the shell's object that takes them."""

    __slots__ = ("forgotten_at", "frame", "key", "operation", "replies_left", "request", "waiter")

    def __init__(self, request: Request, key: int | tuple[int, int], frame: bytes, waiter: object) -> None:
        self.request = request
        self.operation = OPERATIONS[type(request)]
        self.key = key  # transaction or request id; ledger and entry id of a version 2 read
        self.frame = frame
        self.waiter: object | None = waiter  # None: forgotten; its reply is dropped
        self.forgotten_at = 0  # tick
        self.replies_left = request.replies_max if isinstance(request, ReadRequest) else 1


class _ReadsOfEntry:
    """Version 2 reads of one entry: reads with equal frames are in flight together, the others are held."""

    __slots__ = ("held", "in_flight")

    def __init__(self) -> None:
        self.in_flight: deque[Call] = deque()
        self.held: deque[Call] = deque()


@attrs.frozen
class CallReply:
    """The reply for ``call.waiter``. The waiter may become None before delivery; then it is dropped."""

    call: Call
    reply: Reply


Received = AddReplies | CallReply


@attrs.frozen
class LostRequests:
    """The requests that a lost connection leaves without a reply; forgotten ones are not among them."""

    queues: list[AddQueue]  # one for each sink and ledger
    calls: list[Call]


class ConnectionProtocol:
    """The state of one connection. Frames gather in ``send_queue``, also before the connection is open."""

    def __init__(self, version: int, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        assert version in (2, 3), version  # TransportConfig validates it
        self.version = version
        self.send_queue = SendQueue()
        self.failure: WireError | None = None  # the bookie broke the protocol: give the connection up
        self._adds = adds = AddQueues(self.send_queue)
        self.post_adds = adds.post  # the replies go to the sink
        self._frames = FrameBuffer(frame_bytes_max)
        self._aligned = True  # the frame buffer holds no part of a frame
        self._rest = b""  # the last bytes received, if they are less than one reply to an add
        self._calls: dict[int, Call] = {}  # by transaction id, or by request id of a batch read
        self._reads_v2: dict[tuple[int, int], _ReadsOfEntry] = {}  # by ledger and entry id
        self._forgotten: dict[Call, None] = {}  # version 2 reads in flight without a waiter
        self._next_id = FIRST_TRANSACTION_ID
        self._ticks = 0
        self._is_closed = False

    def __repr__(self) -> str:
        calls = len(self._calls) + sum(
            len(reads.in_flight) + len(reads.held) for reads in self._reads_v2.values()
        )
        return (
            f"<ConnectionProtocol v{self.version}: {self._adds.replies_due} adds and {calls} calls in flight,"
            f" {self.send_queue.queued_bytes} bytes to send>"
        )

    # --- requests -------------------------------------------------------------------------------------------

    def start_call(self, request: Request, high_priority: bool, waiter: object) -> Call:
        """Queue a request; return its call. The reply arrives as a ``CallReply`` with this call.

        Adds must go through ``post_adds``, which keeps the sinks of one ledger apart.

        Raises:
            UnsupportedInVersionError: The protocol version has no such request.
        """
        assert not self._is_closed  # the owner drops the connection at ``close``
        # callers use ``post_adds`` and the handshake
        assert not isinstance(request, AddRequest | AuthRequest | StartTlsRequest), request
        request_id = self._next_id
        if self.version == 3:
            frame = v3.encode_request(request, transaction_id=request_id, high_priority=high_priority)
        elif isinstance(request, BatchReadRequest):
            numbered = attrs.evolve(request, request_id=request_id)
            frame = v2.encode_request(numbered, high_priority=high_priority)
        else:
            return self._start_read_v2(
                request, v2.encode_request(request, high_priority=high_priority), waiter
            )
        call = Call(request, request_id, frame, waiter)
        self._next_id += 1
        self._calls[request_id] = call
        self.send_queue.put([frame], len(frame))
        return call

    def post_hint(self, request: WriteLacRequest) -> None:
        """Queue a request that gets no reply; one that comes all the same, as a refusal, is dropped."""
        assert request.hint  # made by LacHints
        frame = v3.encode_request(request, transaction_id=self._next_id)
        self._next_id += 1
        self.send_queue.put([frame], len(frame))

    def _start_read_v2(self, request: Request, frame: bytes, waiter: object) -> Call:
        assert isinstance(request, ReadRequest), request  # version 2 has no other requests
        key = (request.ledger_id, request.entry_id)
        call = Call(request, key, frame, waiter)
        reads = self._reads_v2.setdefault(key, _ReadsOfEntry())
        if reads.held or (reads.in_flight and reads.in_flight[0].frame != frame):
            # The reply to a plain read must not be taken for the reply to a fencing read: the bookie would
            # pass for fenced and still accept adds of the old writer.
            reads.held.append(call)
        else:
            reads.in_flight.append(call)
            self.send_queue.put([frame], len(frame))
        return call

    def forget_call(self, call: Call) -> None:
        """Drop the reply of this call when it arrives. A call that is still held is never sent."""
        call.waiter = None
        if isinstance(call.key, int):
            self._calls.pop(call.key, None)  # the id is never used again, so a late reply matches no call
            return
        reads = self._reads_v2.get(call.key)
        if reads is None:
            return  # the reply has arrived, or the connection is lost
        if call in reads.held:
            reads.held.remove(call)
        elif call in reads.in_flight:
            call.forgotten_at = self._ticks
            self._forgotten[call] = None

    def forget(self, ledger_id: int, matches: Callable[[AddSink], bool]) -> None:
        """From now on drop the replies to adds of this ledger for each sink that ``matches`` accepts."""
        self._adds.forget(ledger_id, matches)

    # --- replies --------------------------------------------------------------------------------------------

    def receive(self, chunk: bytes) -> list[Received]:
        """Take bytes from the socket; return the replies in them, in order.

        Check ``failure`` afterwards. If the bytes break the protocol, the replies in front of the error are
        returned, and the requests after it are among those that ``close`` returns.
        """
        assert not self._is_closed  # the owner drops the connection at ``close``
        received: list[Received] = []
        self._adds.notifying = []
        if self.failure is not None:
            return received
        if self._rest:
            chunk, self._rest = self._rest + chunk, b""
        try:
            if self._aligned and self._adds.queues and self.version == 2:
                chunk = self._take_add_replies_v2(chunk, received)
            if chunk:
                data, payloads = self._frames.feed(chunk)
                self._aligned = bool(payloads) and payloads[-1][1] == len(data)
                self._take_payloads(data, payloads, received)
        except WireError as exc:
            self.failure = exc
        return received

    def _take_add_replies_v2(self, chunk: bytes, received: list[Received]) -> bytes:
        # Almost all bytes on a writer's connection are version 2 replies to adds. Consecutive ones mostly
        # agree in their first 20 bytes, so they are taken together, without a look at each frame in Python.
        # Returns the bytes that are left for the frame buffer.
        frame_bytes = _ADD_REPLY_FRAME.size
        count = len(chunk) // frame_bytes
        if not count or not chunk.startswith(_ADD_REPLY_MARK):
            return chunk
        whole_bytes = count * frame_bytes
        whole = chunk if whole_bytes == len(chunk) else chunk[:whole_bytes]
        marks, entry_ids = zip(*_ADD_REPLY_FRAME.iter_unpack(whole), strict=True)
        start = 0
        while start < count:
            mark: bytes = marks[start]
            if not mark.startswith(_ADD_REPLY_MARK):
                return chunk[start * frame_bytes :]  # a reply to another operation
            stop = start + 1
            if not start and marks.count(mark) == count:
                stop = count
            while stop < count and marks[stop] == mark:
                stop += 1
            number, ledger_id = _CODE_AND_LEDGER.unpack(mark)
            code = CODE_OF_V2.get(number)
            if code is None:
                raise WireError(f"a reply to an add with code {number}, which version 2 does not have")
            received.append(self._adds.take_replies(ledger_id, code, entry_ids[start:stop]))
            start = stop
        self._rest = chunk[whole_bytes:]
        return b""

    def _take_payloads(self, data: bytes, payloads: list[tuple[int, int]], received: list[Received]) -> None:
        # Consecutive replies to adds of one ledger with one code are handed over together.
        entry_ids: list[int] = []
        ledger_id, code = 0, Code.OK
        for start, end in payloads:
            incoming = self._decode(data, start, end)
            reply = incoming.reply
            if isinstance(reply, AddReply):
                if entry_ids and (code is not reply.code or ledger_id != reply.ledger_id):
                    received.append(self._adds.take_replies(ledger_id, code, entry_ids))
                    entry_ids = []
                ledger_id, code = reply.ledger_id, reply.code
                entry_ids.append(reply.entry_id)
                continue
            if entry_ids:
                received.append(self._adds.take_replies(ledger_id, code, entry_ids))
                entry_ids = []
            self._take_reply(incoming, received)
        if entry_ids:
            received.append(self._adds.take_replies(ledger_id, code, entry_ids))

    def _decode(self, data: bytes, start: int, end: int) -> IncomingReply:
        if self.version == 3:
            return v3.decode_reply(data, start, end)
        if data[start] <= 7:
            return v2.decode_reply(data, start, end)
        # No version 2 payload begins with this byte. A bookie may send one version 3 frame here: a second
        # reply to START_TLS, while its authentication plug-in is not satisfied yet (docs/protocol.md 12.2).
        incoming = v3.decode_reply(data, start, end)
        if incoming.operation is not Operation.START_TLS:
            raise WireError("a version 3 reply on a version 2 connection")
        return incoming

    def _take_reply(self, incoming: IncomingReply, received: list[Received]) -> None:
        reply = incoming.reply
        if isinstance(reply, StartTlsReply | AuthReply) or incoming.operation is Operation.START_TLS:
            return  # the end of the handshake
        if incoming.operation is Operation.ADD_ENTRY:
            assert isinstance(reply, RefusedReply), reply  # ``_take_payloads`` took the AddReply
            raise WireError(f"an add was refused with {reply.code.name}; the reply does not say which one")
        if self.version == 2 and isinstance(reply, ReadReply):
            call = self._take_read_reply_v2(reply.ledger_id, reply.entry_id)
        else:
            if isinstance(reply, BatchReadReply | LocatedReply):
                request_id = reply.request_id
            else:
                request_id = incoming.transaction_id
            more_follow = isinstance(reply, ReadReply) and reply.more_follow
            found = self._take_numbered_reply(request_id, incoming.operation, more_follow)
            if found is None:
                return  # forgotten
            call = found
            if isinstance(reply, BatchReadReply | LocatedReply):
                assert isinstance(call.request, BatchReadRequest)  # its operation was compared above
                reply = attrs.evolve(reply, request_id=call.request.request_id)
        if call.waiter is not None:
            received.append(CallReply(call, reply))

    def _take_read_reply_v2(self, ledger_id: int, entry_id: int) -> Call:
        reads = self._reads_v2.get((ledger_id, entry_id))
        if reads is None:
            raise WireError(f"a reply to a read of entry {ledger_id}:{entry_id}, which was not requested")
        call = reads.in_flight.popleft()
        self._forgotten.pop(call, None)
        if not reads.in_flight:
            while reads.held and (not reads.in_flight or reads.held[0].frame == reads.in_flight[0].frame):
                reads.in_flight.append(reads.held.popleft())
                frame = reads.in_flight[-1].frame
                self.send_queue.put([frame], len(frame))
            if not reads.in_flight:
                del self._reads_v2[ledger_id, entry_id]
        return call

    def _take_numbered_reply(self, request_id: int, operation: Operation, more_follow: bool) -> Call | None:
        call = self._calls.get(request_id)
        if call is None:
            if FIRST_TRANSACTION_ID <= request_id < self._next_id:
                return None
            raise WireError(f"a reply to {operation.name} number {request_id}, which was not requested")
        if call.operation is not operation:
            raise WireError(f"a reply to {operation.name} for {call.operation.name} number {request_id}")
        if more_follow:
            call.replies_left -= 1
            if call.replies_left < 1:
                raise WireError(f"more replies to {operation.name} number {request_id} than were requested")
            return call
        return self._calls.pop(request_id)

    # --- the end --------------------------------------------------------------------------------------------

    @property
    def needs_ticks(self) -> bool:
        """True while a reply is due whose absence only ``tick`` can show."""
        return bool(self._adds.queues or self._forgotten)

    def tick(self) -> str | None:
        """Return which reply is overdue, or None. Call it every quarter of the add timeout while
        connected."""
        self._ticks += 1
        for call in self._forgotten:
            # Its reply is still due. Without it the replies to later equal reads would all be off by one.
            if self._ticks - call.forgotten_at >= FORGOTTEN_TICKS:
                return f"a read of {call.key} has no reply"
        return self._adds.tick()

    @property
    def missing_bytes(self) -> int:
        """How many bytes at least complete the incomplete reply; 0 without one."""
        return self._frames.missing_bytes

    @property
    def batch_read_in_flight(self) -> bool:
        """Bookies older than 4.17 close the connection when they receive a batch read."""
        return any(call.operation is Operation.BATCH_READ_ENTRY for call in self._calls.values())

    def close(self) -> LostRequests:
        """Drop all requests: the connection is lost. No other method may be called afterwards.

        Returns:
            The requests without a reply.
        """
        assert not self._is_closed  # the owner drops the connection at ``close``
        self._is_closed = True
        calls = list(self._calls.values())
        for reads in self._reads_v2.values():
            calls += (*reads.in_flight, *reads.held)
        self._calls, self._reads_v2, self._forgotten = {}, {}, {}
        self.send_queue.clear()
        return LostRequests(self._adds.close(), [call for call in calls if call.waiter is not None])
