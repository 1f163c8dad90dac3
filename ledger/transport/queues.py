"""The queues of one connection: frames to be sent, and adds in flight.

Adds in flight are counted for each ledger, not listed. The reply to an add names the ledger and the entry,
but not the sink that sent it. If two sinks add to one ledger over one connection (an old handle and a
recovery in one process, for example), the reply for one could be taken for the other. Therefore each ledger
has one ``AddQueue`` at a time. The adds of the next sink wait until the queue is empty, also if the first
sink was forgotten.

Inside: joining frames, counting bytes, the turns of sinks, the number of replies due, the sinks that a lost
connection concerns, noticing a silent bookie.
Not inside: which entries have no reply yet (the sink knows), decoding replies (``connection_protocol``),
sending (``bookie_connection``), clocks.
Always: frames leave in the order they came in, each whole and once; a reply goes to the sink that sent the
add, or is dropped; a lost connection is reported once to each sink and ledger.

Source: PerChannelBookieClient.java, EntryCompletionKey.java; docs/protocol.md 2.7.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import attrs

from ledger.codes import Code
from ledger.errors import WireError

SEND_BYTES_MAX = 1_048_576  # small frames are joined up to here
SEND_ALONE_BYTES_MIN = 65_536  # from here on copying a frame costs more than a system call of its own
SILENT_TICKS = 4  # of a quarter of the add timeout each


class SendQueue:
    """Frames to be sent. ``queued_bytes`` includes frames that were taken but not yet reported as sent."""

    __slots__ = ("_bytes", "_frames", "queued_bytes")

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self._bytes = 0
        self.queued_bytes = 0

    def put(self, frames: list[bytes], size_bytes: int) -> None:
        """Append frames of ``size_bytes`` in all."""
        self._frames += frames
        self._bytes += size_bytes
        self.queued_bytes += size_bytes

    def take(self) -> list[bytes]:
        """Take all frames, joined into pieces worth one system call each. Report each piece with ``sent``."""
        frames, size_bytes = self._frames, self._bytes
        if not frames:
            return []
        self._frames, self._bytes = [], 0
        if size_bytes <= SEND_BYTES_MAX and max(map(len, frames)) < SEND_ALONE_BYTES_MIN:
            return [b"".join(frames)]
        pieces: list[bytes] = []
        gathered: list[bytes] = []
        gathered_bytes = 0
        for frame in frames:
            size = len(frame)
            if gathered and (size >= SEND_ALONE_BYTES_MIN or gathered_bytes + size > SEND_BYTES_MAX):
                pieces.append(b"".join(gathered))
                gathered, gathered_bytes = [], 0
            if size >= SEND_ALONE_BYTES_MIN:
                pieces.append(frame)
            else:
                gathered.append(frame)
                gathered_bytes += size
        if gathered:
            pieces.append(b"".join(gathered))
        return pieces

    def sent(self, size_bytes: int) -> None:
        """Report that the operating system accepted ``size_bytes`` of the pieces taken."""
        self.queued_bytes -= size_bytes
        if self.queued_bytes < self._bytes:  # ``take`` counted these bytes
            raise AssertionError("more was sent than taken")

    def clear(self) -> None:
        """Drop all frames: the connection is lost."""
        self._frames, self._bytes, self.queued_bytes = [], 0, 0


class AddSink(Protocol):
    """Receives the outcome of adds. Called on the event loop; must not block or raise."""

    def on_add_replies(self, bookie: str, code: Code, entry_ids: Sequence[int]) -> None:
        """The bookie replied to these adds, to all of them with ``code``."""

    def on_bookie_lost(self, bookie: str, cause: Exception) -> None:
        """The connection is lost. Each add of this ledger without a reply may or may not be stored."""


@attrs.frozen
class _WaitingAdds:
    sink: AddSink
    frames: list[bytes]
    size_bytes: int
    entry_ids: Sequence[int]


class AddQueue:
    """The adds of one ledger: those of one sink in flight, and those that wait for their turn."""

    __slots__ = ("ledger_id", "marks", "posted", "replied", "sink", "waiting")

    def __init__(self, ledger_id: int, sink: AddSink) -> None:
        self.ledger_id = ledger_id
        self.sink: AddSink | None = sink  # None: forgotten; the replies still due are dropped
        self.posted = 0
        self.replied = 0
        self.marks: deque[tuple[int, int]] = deque()  # (tick, posted by then), until as many have replies
        self.waiting: deque[_WaitingAdds] = deque()


@attrs.frozen
class AddReplies:
    """Replies to adds of one ledger, all with one code, for ``queue.sink``.

    The sink may become None before they are delivered; then they are dropped.
    """

    queue: AddQueue
    code: Code
    entry_ids: Sequence[int]


class AddQueues:
    """The add queues of one connection, by ledger."""

    def __init__(self, send_queue: SendQueue) -> None:
        self._send_queue = send_queue
        self.queues: dict[int, AddQueue] = {}  # empty while no add is in flight
        self.notifying: list[AddQueue] = []  # of the replies taken last, whose sinks are called next
        self._ticks = 0
        self._is_closed = False

    @property
    def replies_due(self) -> int:
        """The number of adds in flight."""
        return sum(queue.posted - queue.replied for queue in self.queues.values())

    def post(self, ledger_id: int, frames: list[bytes], entry_ids: Sequence[int], sink: AddSink) -> None:
        """Queue adds, to be sent when it is the sink's turn.

        Args:
            frames: Together the adds of ``entry_ids``; an element may hold several frames.
        """
        assert not self._is_closed  # the owner drops the connection at ``close``
        size_bytes = sum(map(len, frames))
        queue = self.queues.get(ledger_id)
        if queue is None:
            queue = self.queues[ledger_id] = AddQueue(ledger_id, sink)
        elif queue.sink is not sink or queue.waiting:
            queue.waiting.append(_WaitingAdds(sink, frames, size_bytes, entry_ids))
            return
        queue.posted += len(entry_ids)
        self._send_queue.put(frames, size_bytes)

    def take_replies(self, ledger_id: int, code: Code, entry_ids: Sequence[int]) -> AddReplies:
        """Count replies to adds of one ledger; return them with the queue they belong to.

        ``forget`` also applies to that queue while it is in ``notifying``.

        Raises:
            WireError: There are more replies than adds in flight. None of them was counted.
        """
        queue = self.queues.get(ledger_id)
        if queue is None or len(entry_ids) > queue.posted - queue.replied:
            raise WireError(
                f"{len(entry_ids)} replies to adds of ledger {ledger_id}, more than adds in flight"
            )
        queue.replied += len(entry_ids)
        while queue.marks and queue.marks[0][1] <= queue.replied:
            queue.marks.popleft()
        if queue.replied == queue.posted:
            del self.queues[ledger_id]
            if queue.waiting:
                self._next_turn(queue)
        self.notifying.append(queue)
        return AddReplies(queue, code, entry_ids)

    def _next_turn(self, before: AddQueue) -> None:
        queue = AddQueue(before.ledger_id, before.waiting[0].sink)
        self.queues[queue.ledger_id] = queue
        queue.waiting, before.waiting = before.waiting, deque()
        while queue.waiting and queue.waiting[0].sink is queue.sink:
            adds = queue.waiting.popleft()
            queue.posted += len(adds.entry_ids)
            self._send_queue.put(adds.frames, adds.size_bytes)

    def forget(self, ledger_id: int, matches: Callable[[AddSink], bool]) -> None:
        """From now on drop the replies for this ledger to each sink that ``matches`` accepts."""
        queue = self.queues.get(ledger_id)
        if queue is not None:
            queue.waiting = deque(adds for adds in queue.waiting if not matches(adds.sink))  # never sent
        for one in [queue, *self.notifying] if queue is not None else self.notifying:
            if one.ledger_id == ledger_id and one.sink is not None and matches(one.sink):
                one.sink = None

    def tick(self) -> str | None:
        """Return which replies are overdue, or None. Call it every quarter of the add timeout while
        connected.

        A bookie is silent if, within ``SILENT_TICKS`` ticks, it has not sent as many replies as were due at
        the first of them. Ticks are counted, not seconds: a stalled event loop must not take its own silence
        for the bookie's.
        """
        self._ticks += 1
        for queue in self.queues.values():
            if queue.marks and self._ticks - queue.marks[0][0] >= SILENT_TICKS:
                return f"{queue.marks[0][1] - queue.replied} adds of ledger {queue.ledger_id} have no reply"
            if not queue.marks or queue.marks[-1][1] < queue.posted:
                queue.marks.append((self._ticks, queue.posted))
        return None

    def close(self) -> list[AddQueue]:
        """Drop all adds: the connection is lost. Return a queue for each ledger and sink to be notified."""
        self._is_closed = True
        lost: list[AddQueue] = []
        for queue in self.queues.values():
            lost += _one_for_each_sink(
                [queue, *(AddQueue(queue.ledger_id, adds.sink) for adds in queue.waiting)],
            )
        self.queues = {}
        self.notifying = lost
        return lost


def _one_for_each_sink(queues: Iterable[AddQueue]) -> list[AddQueue]:
    seen: dict[int, AddQueue] = {}
    for queue in queues:
        if queue.sink is not None:
            seen.setdefault(id(queue.sink), queue)
    return list(seen.values())
