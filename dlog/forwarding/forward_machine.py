"""A shared writer as a machine: where its records go, and what becomes of them. It waits for nothing.

    event    | CONNECTING   FORWARDING  OWNER_LOST  TAKING_OVER  OWNING      DRAINING    CLOSED
    -------- | --------------------------------------------------------------------------------
    WELCOME  | FORWARDING   -           -           -            -           -           -
    TRY      | TAKING_OVER  -           -           -            -           -           -
    WIN      | -            -           -           OWNING       -           -           -
    YIELD    | -            -           -           CONNECTING   -           -           -
    LOSE     | -            OWNER_LOST  -           -            OWNER_LOST  OWNER_LOST  -
    SEEK     | CONNECTING   -           CONNECTING  -            -           -           -
    LEAVE    | -            -           -           -            DRAINING    -           -
    END      | CLOSED       CLOSED      CLOSED      CLOSED       CLOSED      CLOSED      CLOSED

A dash is an event that is illegal in that phase: it means a bug, and ``follow`` raises.

Inside: the states, sequence numbers, which records are sent to whom and sent again, outcomes, limits.
Not inside: finding the owner, becoming it, connections (``shared_writer``), what an owner does (``owner``).
Always: records are sent in the order of their sequence numbers; one without an answer is sent again to the
next owner, with the same number, before any newer one; a record gets one outcome, and DURABLE only from an
owner that stored it; an answer of a link that was replaced changes nothing.

Source: our own; docs/shared.md, "States".
"""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from dlog.errors import LogWriteError, RecordOutcome, WriteError, WriterClosedError
from dlog.format.attributes import SEQUENCE_MAX
from dlog.forwarding.frames import Records
from dlog.write.batcher import Batch
from dlog.write.steps import a_step, taken_in_step
from namespace.dlsn import DLSN, INVALID_DLSN

GROUP_HELD_BYTES = 1024  # that the objects of one call's records take in memory, about
FAILED_MAX = 1024  # groups whose errors are kept for ``flush`` and ``close``


class ForwardPhase(enum.Enum):
    """Where records go."""

    CONNECTING = "they gather; the owner is looked for"
    FORWARDING = "they are sent to the owner, another program"
    OWNER_LOST = "they gather; the owner is gone, and those without an answer will be sent again"
    TAKING_OVER = "they gather; this program has the log's lock, or tries to take it"
    OWNING = "this program writes them"
    DRAINING = "this program gives the log up; those of its own are written"
    CLOSED = "none is taken, and each has its outcome"


class ForwardEvent(enum.Enum):
    """An event that changes the phase."""

    WELCOME = "an owner answered"
    TRY = "there is no owner"
    WIN = "this program owns the log, and knows what its end holds"
    YIELD = "another program has the lock"
    LOSE = "the connection ended, or this program is the owner no more"
    SEEK = "look for the owner again"
    LEAVE = "the owner is closed"
    END = "nothing is left to do, or it stopped"


_P, _E = ForwardPhase, ForwardEvent
PHASES: Mapping[tuple[ForwardPhase, ForwardEvent], ForwardPhase] = MappingProxyType(
    {
        (_P.CONNECTING, _E.WELCOME): _P.FORWARDING,
        (_P.CONNECTING, _E.TRY): _P.TAKING_OVER,
        (_P.TAKING_OVER, _E.WIN): _P.OWNING,
        (_P.TAKING_OVER, _E.YIELD): _P.CONNECTING,
        (_P.FORWARDING, _E.LOSE): _P.OWNER_LOST,
        (_P.OWNING, _E.LOSE): _P.OWNER_LOST,
        (_P.DRAINING, _E.LOSE): _P.OWNER_LOST,
        (_P.CONNECTING, _E.SEEK): _P.CONNECTING,
        (_P.OWNER_LOST, _E.SEEK): _P.CONNECTING,
        (_P.OWNING, _E.LEAVE): _P.DRAINING,
        **{(phase, _E.END): _P.CLOSED for phase in ForwardPhase},
    }
)


class Group(Batch):
    """Records of one call, with consecutive sequence numbers. It has one outcome."""

    __slots__ = ("_dlsns", "floor", "records")

    def __init__(self, records: Records, size_bytes: int, since_s: float) -> None:
        super().__init__()
        self.records: Records | None = records  # None once it has its outcome
        self.size_bytes, self.since_s = size_bytes, since_s
        self.floor: DLSN | None = None  # known when it was sent first: its records lie after it
        self._dlsns: Sequence[DLSN] = ()

    def stored(self, dlsns: Sequence[DLSN]) -> None:
        """Settle: each record is durable at its position."""
        self._dlsns, self.records = dlsns, None
        self._settle(RecordOutcome.DURABLE)

    def failed(self, error: WriteError) -> None:
        """See ``Batch.failed``."""
        self.records = None
        super().failed(error)

    def dlsn(self, slot: int) -> DLSN:
        """See ``Batch.dlsn``."""
        if self.outcome is RecordOutcome.DURABLE:
            return self._dlsns[slot]
        return super().dlsn(slot)

    def positions(self, slot: int, count: int) -> list[DLSN]:
        """See ``Batch.positions``."""
        return list(self._dlsns[slot : slot + count])


class Link(Protocol):
    """The way to the owner."""

    def send(self, records: Records) -> None:
        """Give records to the owner. The answer comes by ``answered`` or ``refused``, perhaps at once."""


class ForwardMachine:
    """Decides for one shared writer, from its opening to its end."""

    def __init__(
        self, log: str, bytes_max: int, *, clock: Callable[[], float], on_change: Callable[[], None]
    ) -> None:
        """Args:
        clock: Seconds; only differences count.
        on_change: Called when the phase, the number of records in flight or ``stopped`` changes.
        """
        self._log, self._bytes_max, self._clock, self._on_change = log, bytes_max, clock, on_change
        self.phase = ForwardPhase.CONNECTING
        self.stopped: WriteError | None = None  # why no record is taken
        self.is_closing = False
        self.in_step = False  # see ``steps``
        self.last_txid = -1  # of the log, as far as it is known here
        self.next_sequence = 0
        self.waiting_bytes = 0  # of records without an outcome, and of what holds them
        self.lost_s = clock()  # since when there is no owner, without a link
        self.link: Link | None = None
        self.known_end = INVALID_DLSN  # the greatest position of a durable record that is known here
        self.failed: deque[Group] = deque(maxlen=FAILED_MAX)  # newest last; a caller may have got the error
        self.newest: Group | None = None
        self._groups: dict[int, Group] = {}  # without an outcome, by first sequence number and in order

    def __repr__(self) -> str:
        return f"<ForwardMachine of {self._log!r}, {self.phase.name}, {len(self._groups)} groups in flight>"

    @property
    def is_idle(self) -> bool:
        """True if each record has its outcome."""
        return not self._groups

    @property
    def is_over_limit(self) -> bool:
        """True if callers should wait before they give more records."""
        return self.waiting_bytes >= self._bytes_max

    @property
    def oldest_since_s(self) -> float:
        """When the oldest record without an outcome was taken; infinity without one."""
        for group in self._groups.values():
            return group.since_s
        return math.inf

    def now_s(self) -> float:
        """The time of the clock of ``oldest_since_s``."""
        return self._clock()

    @property
    def floor(self) -> DLSN:
        """Every record without an answer that an owner may have stored lies after it."""
        for group in self._groups.values():
            return self.known_end if group.floor is None else group.floor
        return self.known_end

    def follow(self, event: ForwardEvent) -> None:
        """Change the phase; AssertionError if the event is illegal in it."""
        target = PHASES.get((self.phase, event))
        if target is None:
            raise AssertionError(f"{event.name} in phase {self.phase.name}, a bug of the shared writer")
        self.phase = target
        self._on_change()

    # Records in.

    def take(
        self,
        payloads: Sequence[bytes],
        txids: Sequence[int] | None,
        attributes: Sequence[bytes | None] | None,
        *,
        sequence: int | None = None,
        is_atomic: bool = False,
        size_bytes: int,
    ) -> Group:
        """Take checked records: give them the next sequence numbers, and send them if there is an owner.

        Args:
            sequence: Of the first record; None: the next one.

        Raises:
            WriteError: The writer is closed or has stopped.
            TypeError, ValueError: This number cannot be used now.
            RuntimeError: A signal handler called in the middle of another step.
        """
        if self.in_step:
            raise taken_in_step(self._log)
        return self._taken(payloads, txids, attributes, sequence, is_atomic, size_bytes)

    @a_step
    def _taken(
        self,
        payloads: Sequence[bytes],
        txids: Sequence[int] | None,
        attributes: Sequence[bytes | None] | None,
        sequence: int | None,
        is_atomic: bool,
        size_bytes: int,
    ) -> Group:
        if self.stopped is not None:
            raise self.stopped.about(RecordOutcome.NOT_WRITTEN)
        if self.is_closing:
            raise WriterClosedError(self._log)
        first = self.next_sequence if sequence is None else self._checked(sequence, len(payloads))
        self.next_sequence = max(self.next_sequence, first + len(payloads))
        records = Records(first, payloads, txids, attributes, is_atomic)
        group = Group(records, size_bytes + GROUP_HELD_BYTES, self._clock())
        self._groups[first] = self.newest = group
        self.waiting_bytes += group.size_bytes
        if txids:
            self.last_txid = max(self.last_txid, txids[-1])
        if self.link is not None:
            group.floor = self.known_end
            self.link.send(records)
        return group

    def _checked(self, sequence: int, count: int) -> int:
        """A number that a caller gave. Records without an outcome keep their order, so it follows theirs."""
        if sequence.__class__ is not int:
            raise TypeError(f"a sequence number is an integer, not {type(sequence).__name__}")
        if not 0 <= sequence <= SEQUENCE_MAX - count:
            raise ValueError(f"sequence {sequence}: it lies between 0 and 2**63 - 1")
        newest = next(reversed(self._groups.values()), None)
        if newest is not None and newest.records is not None:
            end = newest.records.first + len(newest.records.payloads)
            if sequence < end:
                raise ValueError(
                    f"sequence {sequence}: records up to {end - 1} are in flight; await them first"
                )
        return sequence

    # The owner.

    @a_step
    def attached(self, link: Link, event: ForwardEvent) -> None:
        """An owner takes records by ``link``: send those without an answer, in order.

        ``event``: WELCOME or WIN.
        """
        self.follow(event)
        self.link = link
        for group in list(self._groups.values()):
            assert group.records is not None  # it has no outcome
            records, again = group.records, group.floor is not None
            if group.floor is None:
                group.floor = self.known_end
            if again:
                records = Records(
                    records.first,
                    records.payloads,
                    records.txids,
                    records.attributes,
                    records.is_atomic,
                    True,
                )
            if self.link is link:  # an owner that stops at once is lost meanwhile
                link.send(records)

    @a_step
    def lost(self, link: Link) -> None:
        """The link leads nowhere any more. Records without an answer stay, for the next owner."""
        if self.link is link:
            self.link, self.lost_s = None, self._clock()
            self.follow(ForwardEvent.LOSE)

    def answered(self, link: Link, first: int, dlsns: Sequence[DLSN]) -> None:
        """Records are durable at these positions."""
        group = self._answer_to(link, first)
        if group is None:
            return
        if dlsns[-1] > self.known_end:
            self.known_end = dlsns[-1]
        group.stored(dlsns)
        self._on_change()

    def refused(self, link: Link, first: int, error: WriteError) -> None:
        """Records were not written, or that is unknown."""
        group = self._answer_to(link, first)
        if group is not None:
            self._fail(group, error)
            self._on_change()

    def _answer_to(self, link: Link, first: int) -> Group | None:
        group = self._groups.pop(first, None) if link is self.link else None
        if group is not None:
            self.waiting_bytes -= group.size_bytes
        return group

    def _fail(self, group: Group, error: WriteError) -> None:
        while self.failed and self.failed[0].error_was_seen:
            self.failed.popleft()
        self.failed.append(group)
        group.failed(error)

    # Ends.

    def expire(self, evidence: str) -> None:
        """Fail all records that wait for an owner."""
        groups, self._groups, self.waiting_bytes = list(self._groups.values()), {}, 0
        for group in groups:
            outcome = RecordOutcome.NOT_WRITTEN if group.floor is None else RecordOutcome.UNKNOWN
            self._fail(group, LogWriteError(self._log, evidence, outcome))
        self.lost_s = self._clock()
        self._on_change()

    def stop(self, error: WriteError) -> None:
        """Take and send nothing more; each record without an outcome fails with this error."""
        if self.phase is ForwardPhase.CLOSED:
            return
        self.link, self.stopped = None, self.stopped or error
        groups, self._groups, self.waiting_bytes = list(self._groups.values()), {}, 0
        for group in groups:
            outcome = RecordOutcome.NOT_WRITTEN if group.floor is None else RecordOutcome.UNKNOWN
            self._fail(group, error.about(outcome))
        self.follow(ForwardEvent.END)

    def close(self) -> None:
        """Take nothing more; those that were taken are still written."""
        self.is_closing = True
        self._on_change()

    def end(self) -> None:
        """All is done."""
        assert self.is_idle  # the shell waited for that
        self.link = None
        self.follow(ForwardEvent.END)
