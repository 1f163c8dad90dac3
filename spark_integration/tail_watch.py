"""Waiting at the end of one stream, with a reader that stays open between micro-batches.

A record that arrives ends the wait at once, without a request for the end of the stream every few
milliseconds. What has arrived is remembered, so that a small micro-batch is planned without a request.

Inside: the reader of the driver, and when it is given up. Not inside: streams with a backlog, of which the
driver reads nothing (``stream``).
Always: the end that is returned was readable. A watch is never sent to another process.

Source: our own; docs/performance.md has what it saves.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import dlog
from spark_integration.offsets import Position
from spark_integration.planning import Range

if TYPE_CHECKING:
    from dlog.blocking import LogReader

RECORDS_MAX = 1_000  # more at once are a backlog: the tasks read it, and the driver does not
BYTES_MAX = 256 << 10
READS_MAX = 64  # as often as a tail with lone appends brings records one by one


class Watchable(Protocol):
    """The log in the form that this module needs."""

    def tail(self) -> Position:
        """The last record that can be read now."""

    def follow(self, position: Position) -> LogReader:
        """A reader of the records after a position, which the caller closes."""


class TailWatch:
    """The wait for records of one stream."""

    def __init__(self, log: Watchable) -> None:
        self._log = log
        self._reader: LogReader | None = None
        self._at: Position | None = None  # the reader is after this record
        self._arrived: tuple[Range, dlog.RecordBatch] | None = None
        self._sealed_at: Position | None = None  # no record can follow this one

    def __reduce__(self) -> tuple[object, ...]:
        return TailWatch, (self._log,)

    def is_at(self, position: Position) -> bool:
        """True if a reader waits after this position."""
        return self._reader is not None and self._at == position

    def wait(self, position: Position, timeout_s: float) -> Position | None:
        """The end of the stream after records came after a position; None if none came in time.

        Raises:
            dlog.DLogError: The stream cannot be read here. The next call opens another reader.
        """
        if position == self._sealed_at:
            return None
        try:
            if not self.is_at(position):
                self.close()
                self._reader, self._at = self._log.follow(position), position
            assert self._reader is not None  # opened by the caller
            batch = self._reader.read_batch(RECORDS_MAX, wait_s=timeout_s)
            if not batch:
                if batch is None:
                    self.close()
                    self._sealed_at = position
                return None
            batch = self._all_that_is_there(self._reader, batch)
            if batch is None:
                self.close()
                return self._log.tail()
        except BaseException:
            self.close()
            raise
        last = batch.last_dlsn
        self._at = Position(last.segment_seqno, last.entry_id, last.slot_id)
        self._arrived = Range(position, self._at), batch
        return self._at

    @staticmethod
    def _all_that_is_there(reader: LogReader, first: dlog.RecordBatch) -> dlog.RecordBatch | None:
        """What the reader has fetched; None for a backlog.

        A reader returns the records of one request at a time, which are one entry while it is at the tail. A
        micro-batch of one entry would be slower than a writer that appends records one by one.
        """
        found, records, size = [first], len(first), first.payload_bytes
        while records < RECORDS_MAX and size < BYTES_MAX and len(found) < READS_MAX:
            batch = reader.read_batch(RECORDS_MAX, wait_s=0)
            if not batch:
                return dlog.RecordBatch.joined(found)
            found.append(batch)
            records += len(batch)
            size += batch.payload_bytes
        return None

    def arrived(self, whole: Range) -> dlog.RecordBatch | None:
        """The records of this range, if they are what the last wait returned."""
        if self._arrived is None or self._arrived[0] != whole:
            return None
        return self._arrived[1]

    def close(self) -> None:
        """Give the reader up; a later wait opens another one."""
        reader, self._reader, self._at, self._arrived = self._reader, None, None, None
        if reader is not None:
            with suppress(dlog.DLogError):
                reader.close()
