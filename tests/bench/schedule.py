"""The open-loop schedule: when each record is due, whatever happened to the records before it.

Inside: due times, and the loop that hands out the records that are due. Not inside: a clock or a timer
(``work/timer``).
Always: a record's due time depends on the start and the rate only. A writer that falls behind does not move
the due times of later records, so the time that they wait counts (no coordinated omission).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs

NS = 1_000_000_000
TOGETHER_MAX = 1000  # records that a late writer takes in one step


@attrs.frozen
class Schedule:
    """``records`` records at ``rate`` per second; the first is due at ``start_ns`` of the monotonic clock."""

    start_ns: int
    rate: float
    records: int

    def due_ns(self, number: int) -> int:
        """The moment at which the record with this number, from 0, is due."""
        return self.start_ns + round(number * NS / self.rate)

    def due_count(self, now_ns: int) -> int:
        """How many records are due at ``now_ns``."""
        if now_ns < self.start_ns:
            return 0
        count = min(self.records, int((now_ns - self.start_ns) * self.rate / NS) + 1)
        # The division of floats may be off by one record at its border.
        while count < self.records and self.due_ns(count) <= now_ns:
            count += 1
        while count and self.due_ns(count - 1) > now_ns:
            count -= 1
        return count

    def due_from(self, first: int, now_ns: int) -> range:
        """The numbers of the records from ``first`` on that are due, at most ``TOGETHER_MAX`` of them."""
        return range(first, max(first, min(self.due_count(now_ns), first + TOGETHER_MAX)))


def due_ranges(schedule: Schedule, now_ns: Callable[[], int], wait: Callable[[], None]) -> Iterator[range]:
    """Yield the numbers of all records in order, each range when its records are due.

    Args:
        now_ns: The monotonic clock.
        wait: Returns some time before the next record is due, or soon after.
    """
    sent = 0
    while sent < schedule.records:
        due = schedule.due_from(sent, now_ns())
        if due:
            yield due
            sent = due.stop
        else:
            wait()


def left_out(records: int) -> int:
    """How many records at the start are not measured: 5 %, while connections and caches become warm."""
    return records // 20
