"""Which records of which producer the end of a log holds, so that a repeated record is stored once.

Inside: the window. Not inside: filling it from the log (``window_reading``), the answer to a repeated record
(``owner``).
Always: every record of a producer at or after ``covers`` is in the window, and none that the log will not
have. A batch that fails ends the owner, and its window with it.

Source: our own; docs/shared.md, "Once".
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence

import attrs

from dlog.write.batcher import Batch
from namespace.dlsn import DLSN

Place = DLSN | tuple[Batch, int]
"""Where a record is: its position, or its batch with its slot there, as long as that is in flight."""

RECORDS_MAX = 20_000  # that a window holds


@attrs.define(eq=False)
class _Run:
    """Records with consecutive numbers in consecutive slots of one entry."""

    producer: str
    first: int  # number of the first record
    where: DLSN | Batch
    slot: int  # of the first record
    checksums: Sequence[int]  # ``repeat_checksum`` of each record
    forgotten: int = 0  # how many of them have left the window

    @property
    def begin(self) -> int:
        """The number of the first record that has not left."""
        return self.first + self.forgotten

    @property
    def end(self) -> int:
        """After the number of the last record."""
        return self.first + len(self.checksums)

    def find(self, sequence: int) -> tuple[Place, int]:
        """The place and the checksum of one of its records."""
        at = sequence - self.first
        where, slot = self.where, self.slot + at
        if isinstance(where, DLSN):
            return DLSN(where.segment_seqno, where.entry_id, slot), self.checksums[at]
        return (where, slot), self.checksums[at]

    @property
    def is_stored(self) -> bool:
        """False while the log may lack the records."""
        return isinstance(self.where, DLSN) or (self.where.error is None and self.where.is_settled)

    def next_slot(self) -> DLSN:
        """The position after the record that left last. Only if they are stored."""
        where, slot = self.where, self.slot + self.forgotten
        if isinstance(where, DLSN):
            return DLSN(where.segment_seqno, where.entry_id, slot)
        return where.dlsn(slot)


@attrs.define
class _Numbers:
    """The runs of one producer by their numbers. No number is in two of them."""

    last: int = -1  # number of the record that was added last
    runs: list[_Run] = attrs.field(factory=list)
    gone: int = 0  # how many of the first ones have left the window; dropped when they are many

    @property
    def end(self) -> int:
        """After the greatest number."""
        return self.runs[-1].end if len(self.runs) > self.gone else 0

    def find(self, sequence: int) -> _Run | None:
        at = bisect_right(self.runs, sequence, lo=self.gone, key=_begin)
        run = self.runs[at - 1] if at > self.gone else None
        return None if run is None or sequence >= run.end else run

    def add(self, run: _Run) -> None:
        self.last = run.end - 1
        if run.first >= self.end:
            self.runs.append(run)
        else:  # a producer that counts from a lower number again
            self.runs.insert(bisect_right(self.runs, run.first, lo=self.gone, key=_begin), run)

    def remove(self, run: _Run) -> None:
        if self.runs[self.gone] is not run:
            self.runs.remove(run)
            return
        self.gone += 1
        if 2 * self.gone > len(self.runs):
            del self.runs[: self.gone]
            self.gone = 0


def _begin(run: _Run) -> int:
    return run.begin


class ProducerWindow:
    """The records of producers at the end of a log, in its order."""

    def __init__(self, covers: DLSN, records_max: int = RECORDS_MAX) -> None:
        """``covers``: no record of a producer at or after it is missing here."""
        self.covers, self._records_max = covers, records_max
        self._numbers: dict[str, _Numbers] = {}  # by producer
        self._order: deque[_Run] = deque()  # as in the log
        self._count = 0

    def __repr__(self) -> str:
        what = f"{self._count} records of {len(self._numbers)} producers"
        return f"<ProducerWindow of {what} from {self.covers}>"

    def __len__(self) -> int:
        return self._count

    def find(self, producer: str, sequence: int) -> tuple[Place, int] | None:
        """Where this record is, and its ``repeat_checksum``; None if it is not in the window."""
        numbers = self._numbers.get(producer)
        run = None if numbers is None else numbers.find(sequence)
        return None if run is None else run.find(sequence)

    def bounds(self, producer: str) -> tuple[int, int]:
        """The least and the last sequence number of a producer in the window; -1 without one."""
        numbers = self._numbers.get(producer)
        return (-1, -1) if numbers is None else (numbers.runs[numbers.gone].begin, numbers.last)

    def add(self, producer: str, first: int, place: Place, checksums: Sequence[int]) -> None:
        """Add records that follow all others in the log, in consecutive slots and with consecutive numbers.

        A number that the window has already is that of its first record.
        """
        numbers = self._numbers.setdefault(producer, _Numbers())
        where, slot = (place, place.slot_id) if isinstance(place, DLSN) else place
        if first >= numbers.end:
            self._add(numbers, _Run(producer, first, where, slot, checksums))
        else:
            for at, checksum in enumerate(checksums):
                if numbers.find(first + at) is None:
                    self._add(numbers, _Run(producer, first + at, where, slot + at, [checksum]))
        while self._count > self._records_max and self._forget_oldest():
            pass

    def _add(self, numbers: _Numbers, run: _Run) -> None:
        numbers.add(run)
        self._order.append(run)
        self._count += len(run.checksums)

    def _forget_oldest(self) -> bool:
        """False if the oldest records are in flight: they must be found if they are repeated."""
        run = self._order[0]
        if not run.is_stored:
            return False
        left = len(run.checksums) - run.forgotten
        count = min(left, self._count - self._records_max)
        run.forgotten += count
        self._count -= count
        self.covers = max(self.covers, run.next_slot())
        if count == left:
            self._order.popleft()
            numbers = self._numbers[run.producer]
            numbers.remove(run)
            if len(numbers.runs) == numbers.gone:
                del self._numbers[run.producer]
        return True
