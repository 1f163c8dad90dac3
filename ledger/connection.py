"""Requests in flight on one connection to a bookie: what to send, and whom each answer belongs to.

One object lives from the dialling of a connection to its loss, so no answer of an old connection can reach a
request of a new one.

Inside: cutting answers out of bytes; matching them to calls (one object each) and to adds (``add_lanes``).
Not inside: sockets, tasks, deadlines of single calls (``transport``); TLS, authentication (``handshake``).
Always: an answer reaches the one who asked that very question, or nobody. Version 2 marks answers to reads
with ledger and entry only, so questions that look alike but are not (a fencing read and a plain one) are
never in flight together: the later one waits here.

Source: PerChannelBookieClient.java, EntryCompletionKey.java, TxnCompletionKey.java; reference section 2.7.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Sequence

import attrs

from ledger.add_lanes import AddLane, AddLanes, AddsAnswered, AddSink
from ledger.errors import WireError
from ledger.outbox import Outbox
from ledger.wire import v2, v3
from ledger.wire.codes import CODE_OF_V2, Code, Operation
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

# Adds use entry id + 1 as transaction id (v3.AddEncoder); calls count from here, so the two never meet.
FIRST_TRANSACTION_ID = 1 << 62

# A version 2 answer to an add: length, header, code and ledger id are the same for a whole run of answers.
_ADD_REPLY_FRAME = struct.Struct(">20sq")
_ADD_REPLY_MARK = struct.pack(">II", v2.ADD_REPLY.size, v2.ADD_HEADER)
_CODE_AND_LEDGER = struct.Struct(">8xIq")


class Call:
    """One request that wants one answer. ``waiter`` is the shell's, who takes the answer."""

    __slots__ = ("forgotten_at", "frame", "key", "operation", "request", "waiter")

    def __init__(self, request: Request, key: int | tuple[int, int], frame: bytes, waiter: object) -> None:
        self.request = request
        self.operation = OPERATIONS[type(request)]
        self.key = key  # transaction or request id; ledger and entry id of a version 2 read
        self.frame = frame
        self.waiter: object | None = waiter  # None: forgotten; its answer is dropped
        self.forgotten_at = 0  # tick


class _LookAlikes:
    """Version 2 reads of one entry: equal frames are in flight together, others wait for their answers."""

    __slots__ = ("held", "in_flight")

    def __init__(self) -> None:
        self.in_flight: deque[Call] = deque()
        self.held: deque[Call] = deque()


@attrs.frozen
class CallAnswered:
    """The answer for ``call.waiter``, unless that has become None meanwhile."""

    call: Call
    reply: Reply


Answer = AddsAnswered | CallAnswered


@attrs.frozen
class Lost:
    """What a lost connection leaves behind. Who is forgotten meanwhile is not told."""

    lanes: list[AddLane]  # one for each sink and ledger
    calls: list[Call]


class Connection:
    """The life of one connection. Frames gather in ``outbox`` from the beginning."""

    def __init__(self, version: int, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        assert version in (2, 3), version
        self.version = version
        self.outbox = Outbox()
        self.failure: WireError | None = None  # the bookie broke the protocol: lose the connection
        self._adds = AddLanes(self.outbox)
        self._frames = FrameBuffer(frame_bytes_max)
        self._aligned = True  # the frame buffer holds no part of a frame
        self._rest = b""  # what came last and the frame buffer has not seen: less than an answer to an add
        self._calls: dict[int, Call] = {}  # by transaction id, or by request id of a batch read
        self._look_alikes: dict[tuple[int, int], _LookAlikes] = {}
        self._forgotten: dict[Call, None] = {}  # version 2 reads in flight that nobody waits for
        self._next_id = FIRST_TRANSACTION_ID
        self._ticks = 0
        self._lost = False

    def __repr__(self) -> str:
        calls = len(self._calls) + sum(len(a.in_flight) + len(a.held) for a in self._look_alikes.values())
        return (
            f"<Connection v{self.version}: {self._adds.unanswered} adds and {calls} calls unanswered, "
            f"{self.outbox.queued_bytes} bytes to send>"
        )

    # --- asking ---------------------------------------------------------------------------------------------

    def post_adds(self, ledger_id: int, frames: list[bytes], entry_ids: Sequence[int], sink: AddSink) -> None:
        """Queue adds. ``frames`` together are the adds of ``entry_ids``; joined frames are welcome."""
        assert not self._lost
        self._adds.post(ledger_id, frames, entry_ids, sink)

    def start_call(self, request: Request, high_priority: bool, waiter: object) -> Call:
        """Queue a request; its answer will come as ``CallAnswered`` with the call returned here.

        Adds are no calls: they go through ``post_adds``, which keeps two askers of one ledger apart.

        Raises:
            UnsupportedInVersionError: This version cannot say it.
        """
        assert not self._lost
        assert not isinstance(request, AddRequest | AuthRequest | StartTlsRequest), request
        number = self._next_id
        if self.version == 3:
            frame = v3.encode_request(request, transaction_id=number, high_priority=high_priority)
        elif isinstance(request, BatchReadRequest):
            ours = attrs.evolve(request, request_id=number)
            frame = v2.encode_request(ours, high_priority=high_priority)
        else:
            return self._start_read_v2(
                request, v2.encode_request(request, high_priority=high_priority), waiter
            )
        call = Call(request, number, frame, waiter)
        self._next_id += 1
        self._calls[number] = call
        self.outbox.put([frame], len(frame))
        return call

    def _start_read_v2(self, request: Request, frame: bytes, waiter: object) -> Call:
        assert isinstance(request, ReadRequest), request  # all else version 2 cannot say
        key = (request.ledger_id, request.entry_id)
        call = Call(request, key, frame, waiter)
        alike = self._look_alikes.setdefault(key, _LookAlikes())
        if alike.held or (alike.in_flight and alike.in_flight[0].frame != frame):
            # The answer to a plain read must not count as that of a fencing one: the bookie would pass for
            # fenced and go on taking the old writer's adds.
            alike.held.append(call)
        else:
            alike.in_flight.append(call)
            self.outbox.put([frame], len(frame))
        return call

    def forget_call(self, call: Call) -> None:
        """Nobody waits for this answer any more; when it comes it is dropped."""
        call.waiter = None
        if isinstance(call.key, int):
            self._calls.pop(call.key, None)  # its id is never used again, so its answer will find nothing
            return
        alike = self._look_alikes.get(call.key)
        if alike is None:
            return  # answered, or lost
        if call in alike.held:
            alike.held.remove(call)
        elif call in alike.in_flight:
            call.forgotten_at = self._ticks
            self._forgotten[call] = None

    def forget(self, ledger_id: int, whose: Callable[[AddSink], bool]) -> None:
        """No more answers for the adds of this ledger to the sinks that ``whose`` picks."""
        self._adds.forget(ledger_id, whose)

    # --- answers --------------------------------------------------------------------------------------------

    def receive(self, chunk: bytes) -> list[Answer]:
        """What the socket brought; the answers in it, in order. Afterwards look at ``failure``.

        Whoever waits for an answer in front of a protocol error gets it now or is among the lost.
        """
        assert not self._lost
        answers: list[Answer] = []
        if self.failure is not None:
            return answers
        if self._rest:
            chunk, self._rest = self._rest + chunk, b""
        try:
            if self._aligned and self._adds and self.version == 2:
                chunk = self._take_add_replies(chunk, answers)
            if chunk:
                data, payloads = self._frames.feed(chunk)
                self._aligned = bool(payloads) and payloads[-1][1] == len(data)
                self._take_payloads(data, payloads, answers)
        except WireError as exc:
            self.failure = exc
        self._adds.telling([answer.lane for answer in answers if isinstance(answer, AddsAnswered)])
        return answers

    def _take_add_replies(self, chunk: bytes, answers: list[Answer]) -> bytes:
        # Nearly all that a writer's connection brings are version 2 answers to adds, many at a time and all
        # alike in their first 20 bytes: runs are taken without looking at single frames in Python.
        # Returns what is left for the frame buffer.
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
                return chunk[start * frame_bytes :]  # another kind of answer
            stop = start + 1
            if not start and marks.count(mark) == count:
                stop = count
            while stop < count and marks[stop] == mark:
                stop += 1
            number, ledger_id = _CODE_AND_LEDGER.unpack(mark)
            code = CODE_OF_V2.get(number)
            if code is None:
                raise WireError(f"an add answered with code {number}, which version 2 does not have")
            answers.append(self._adds.take_answers(ledger_id, code, entry_ids[start:stop]))
            start = stop
        self._rest = chunk[whole_bytes:]
        return b""

    def _take_payloads(self, data: bytes, payloads: list[tuple[int, int]], answers: list[Answer]) -> None:
        run: list[int] = []
        run_ledger_id, run_code = 0, Code.OK
        for start, end in payloads:
            incoming = self._decode(data, start, end)
            reply = incoming.reply
            if isinstance(reply, AddReply):
                if run and (run_code is not reply.code or run_ledger_id != reply.ledger_id):
                    answers.append(self._adds.take_answers(run_ledger_id, run_code, run))
                    run = []
                run_ledger_id, run_code = reply.ledger_id, reply.code
                run.append(reply.entry_id)
                continue
            if run:
                answers.append(self._adds.take_answers(run_ledger_id, run_code, run))
                run = []
            self._take_reply(incoming, answers)
        if run:
            answers.append(self._adds.take_answers(run_ledger_id, run_code, run))

    def _decode(self, data: bytes, start: int, end: int) -> IncomingReply:
        if self.version == 3:
            return v3.decode_reply(data, start, end)
        if data[start] <= 7:
            return v2.decode_reply(data, start, end)
        # No version 2 payload begins so. A bookie may send one version 3 frame here: a second answer to
        # START_TLS, when its authentication plug-in is not content yet (operations reference 7.3).
        incoming = v3.decode_reply(data, start, end)
        if incoming.operation is not Operation.START_TLS:
            raise WireError("a version 3 answer on a connection that asks in version 2")
        return incoming

    def _take_reply(self, incoming: IncomingReply, answers: list[Answer]) -> None:
        reply = incoming.reply
        if isinstance(reply, StartTlsReply | AuthReply) or incoming.operation is Operation.START_TLS:
            return  # the tail of the handshake
        if incoming.operation is Operation.ADD_ENTRY:
            assert isinstance(reply, RefusedReply), reply
            raise WireError(f"an add was refused with {reply.code.name}, without saying which one")
        if self.version == 2 and isinstance(reply, ReadReply):
            call = self._take_read_reply_v2(reply.ledger_id, reply.entry_id)
        else:
            number = reply.request_id if isinstance(reply, BatchReadReply) else incoming.transaction_id
            found = self._take_numbered_reply(number, incoming.operation)
            if found is None:
                return  # forgotten
            call = found
            if isinstance(reply, BatchReadReply):
                assert isinstance(call.request, BatchReadRequest)
                reply = attrs.evolve(reply, request_id=call.request.request_id)
        if call.waiter is not None:
            answers.append(CallAnswered(call, reply))

    def _take_read_reply_v2(self, ledger_id: int, entry_id: int) -> Call:
        alike = self._look_alikes.get((ledger_id, entry_id))
        if alike is None:
            raise WireError(f"an answer to a read of entry {ledger_id}:{entry_id}, which nobody asked for")
        call = alike.in_flight.popleft()
        self._forgotten.pop(call, None)
        if not alike.in_flight:
            while alike.held and (not alike.in_flight or alike.held[0].frame == alike.in_flight[0].frame):
                alike.in_flight.append(alike.held.popleft())
                frame = alike.in_flight[-1].frame
                self.outbox.put([frame], len(frame))
            if not alike.in_flight:
                del self._look_alikes[ledger_id, entry_id]
        return call

    def _take_numbered_reply(self, number: int, operation: Operation) -> Call | None:
        call = self._calls.get(number)
        if call is None:
            if FIRST_TRANSACTION_ID <= number < self._next_id:
                return None
            raise WireError(f"an answer to {operation.name} number {number}, which nobody asked for")
        if call.operation is not operation:
            raise WireError(f"{call.operation.name} number {number} was answered as {operation.name}")
        return self._calls.pop(number)

    # --- the end --------------------------------------------------------------------------------------------

    @property
    def needs_ticks(self) -> bool:
        """Something is due that only the passing of time can show to be missing."""
        return bool(self._adds or self._forgotten)

    def tick(self) -> str | None:
        """Called every quarter of the add timeout while connected; says what is overdue, if anything."""
        self._ticks += 1
        for call in self._forgotten:
            # Its answer is still due, and would shift the answers to all later reads that look alike.
            if self._ticks - call.forgotten_at >= FORGOTTEN_TICKS:
                return f"a read of {call.key} was never answered"
        return self._adds.tick()

    @property
    def batch_read_in_flight(self) -> bool:
        """Bookies older than 4.17 answer a batch read by closing the connection."""
        return any(call.operation is Operation.BATCH_READ_ENTRY for call in self._calls.values())

    def lose(self) -> Lost:
        """The connection is no more; who has to be told. Nothing may be asked here afterwards."""
        assert not self._lost
        self._lost = True
        calls = list(self._calls.values())
        for alike in self._look_alikes.values():
            calls += (*alike.in_flight, *alike.held)
        self._calls, self._look_alikes, self._forgotten = {}, {}, {}
        self.outbox.clear()
        return Lost(self._adds.lose(), [call for call in calls if call.waiter is not None])
