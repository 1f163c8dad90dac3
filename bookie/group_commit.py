"""Which waiting runs share one write and one sync.

Inside: the value of a run, and the two rules. Not inside: threads, files.

A group takes what is waiting, up to a size, and never waits for more: the next group forms while
this one is being synced, which adapts by itself to the disk and to the load. No timer can do better.

Source: Journal.java (its group wait, thresholds and queue); reference on bookie storage 2.2 and 8.4.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

OnDurable = Callable[[BaseException | None], None]


class Run:
    """Records that arrived together and are answered together. One object per run, none per entry."""

    __slots__ = ("on_durable", "records", "size_bytes", "sync")

    def __init__(self, records: list[bytes], size_bytes: int, on_durable: OnDurable, sync: bool) -> None:
        self.records = records
        self.size_bytes = size_bytes  # of the records, with 4 bytes of length each
        self.on_durable = on_durable
        self.sync = sync


def take_group(waiting: deque[Run], size_bytes_max: int) -> list[Run]:
    """Take runs from the left until the group is full or nothing waits; one run at least, if any.

    Safe while another thread appends to the right.
    """
    group: list[Run] = []
    size_bytes = 0
    while size_bytes < size_bytes_max:
        try:
            run = waiting.popleft()
        except IndexError:
            break
        group.append(run)
        size_bytes += run.size_bytes
    return group


def cut_batches(records: Sequence[bytes], size_bytes_max: int) -> Iterator[Sequence[bytes]]:
    """Cut records, in order, into batches of about ``size_bytes_max``; a longer record is alone."""
    start = size_bytes = 0
    for index, record in enumerate(records):
        if index > start and size_bytes + len(record) + 4 > size_bytes_max:
            yield records[start:index]
            start, size_bytes = index, 0
        size_bytes += len(record) + 4
    if start < len(records):
        yield records[start:]
