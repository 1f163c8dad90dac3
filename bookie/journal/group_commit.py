"""Write batches, and the rule which of them share one write and one sync.

Inside: the value of a batch, and the two rules. Not inside: threads, files.

A group takes the batches that are waiting, up to a size, and never waits for more. The next group forms while
this one is being synced. The size of a group adapts by itself to the disk and to the load. No timer does
better.

Source: Journal.java (its group wait, thresholds and queue); docs/storage-format.md 2.6.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

OnDurable = Callable[[BaseException | None], None]

LENGTH_BYTES = 4  # of the length in front of each record in the journal


class WriteBatch:
    """Records that are submitted together and acknowledged together. One object per batch, none per record.

    ``Storage.stage_entry`` and the other methods that stage fill ``records``. The caller then submits the
    batch, once. The journals set the other fields.
    """

    __slots__ = (
        "awaited_journals",
        "on_durable",
        "parts_left",
        "records",
        "sizes_bytes",
        "submitted_s",
        "sync",
    )

    def __init__(self, journal_count: int = 1) -> None:
        # One list for each journal; nearly always there is one.
        self.records: list[list[bytes]] = [[]] if journal_count == 1 else [[] for _ in range(journal_count)]
        self.awaited_journals: set[int] = set()
        self.on_durable: OnDurable = _not_submitted
        self.sync = True
        self.sizes_bytes: list[int] = []  # for each journal: its records, with 4 bytes of length each
        self.submitted_s = 0.0  # on the clock of the disk
        self.parts_left = 0  # journals that have not written their part yet

    @property
    def is_empty(self) -> bool:
        """True if it holds no record and awaits no ledger."""
        return not self.awaited_journals and not any(self.records)

    def await_ledger(self, ledger_id: int) -> None:
        """Acknowledge this batch only after all earlier records of the ledger are durable too."""
        self.awaited_journals.add(ledger_id % len(self.records))


def _not_submitted(error: BaseException | None) -> None:
    raise AssertionError("acknowledged before it was submitted")


def take_group(waiting: deque[WriteBatch], journal: int, size_bytes_max: int) -> list[WriteBatch]:
    """Take batches from the left until the group is full or none waits; at least one, if any waits.

    Only the part of each batch for this ``journal`` counts. Safe while another thread appends to the right.
    """
    group: list[WriteBatch] = []
    size_bytes = 0
    while size_bytes < size_bytes_max:
        try:
            batch = waiting.popleft()
        except IndexError:
            break
        group.append(batch)
        size_bytes += batch.sizes_bytes[journal]
    return group


def cut_records(records: Sequence[bytes], size_bytes_max: int) -> Iterator[Sequence[bytes]]:
    """Cut records, in order, into pieces of about ``size_bytes_max``; a longer record is alone."""
    start = size_bytes = 0
    for index, record in enumerate(records):
        if index > start and size_bytes + len(record) + LENGTH_BYTES > size_bytes_max:
            yield records[start:index]
            start, size_bytes = index, 0
        size_bytes += len(record) + LENGTH_BYTES
    if start < len(records):
        yield records[start:]
