"""The log as this package sees it: where its tail is, what its segments hold, the records of a range.

One namespace per process and URI, opened on first use and kept: Spark reuses its Python workers between
micro-batches, and which worker serves which task changes. The trio loop behind ``dlog.blocking`` starts
after Spark's fork, since nothing here is opened at import.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import dlog
import dlog.blocking
from spark_integration.errors import RangeUnreadableError
from spark_integration.offsets import BEFORE_EVERYTHING, WHOLE_ENTRY, Position
from spark_integration.planning import Extent, Range

_opened: dict[tuple[int, str], dlog.blocking.Namespace] = {}
_opening = threading.Lock()


def namespace(uri: str) -> dlog.blocking.Namespace:
    """This process's namespace for a URI; it stays open until the process ends."""
    with _opening:
        key = (os.getpid(), uri)  # a forked child must not use its parent's threads
        if key not in _opened:
            _opened[key] = dlog.blocking.open_namespace(uri).__enter__()
        return _opened[key]


def tail(uri: str, stream: str) -> Position:
    """The last record that can be read now; control records do not count.

    Raises:
        dlog.LogNotFoundError: There is no such log.
    """
    last = namespace(uri).last_dlsn(stream)
    if last is None:
        return BEFORE_EVERYTHING
    return Position(last.segment_seqno, last.entry_id, last.slot_id)


def extents(uri: str, stream: str) -> list[Extent]:
    """The log's segments, oldest first, with the last entry known of each."""
    return [
        Extent(segment.segment_seqno, segment.last_entry_id if segment.is_completed else -1)
        for segment in namespace(uri).segments(stream)
    ]


def read_range(
    uri: str, stream: str, wanted: Range, *, records_max: int, timeout_ms: int
) -> Iterator[list[dlog.Record]]:
    """The records of a range, in order, in runs of at most ``records_max``.

    A range is planned from what was readable then, so all of it must be readable now: standing still
    before its end for ``timeout_ms`` is an error, never a short answer.

    Raises:
        RangeUnreadableError: The end of the range was not reached in time.
    """
    if wanted.is_empty:
        return
    with namespace(uri).open_reader(stream, start=_first_after(wanted.start)) as reader:
        while True:
            started = time.monotonic()
            run = reader.read_batch(records_max, wait_s=timeout_ms / 1000)
            if not run:
                raise RangeUnreadableError(
                    f"stream {stream!r}: nothing readable for {time.monotonic() - started:.0f} s"
                    f" before the end {wanted.end} of a planned range; are enough bookies up?"
                )
            last = _position_of(run[-1])
            if last > wanted.end:
                run = [record for record in run if _position_of(record) <= wanted.end]
            if run:
                yield run
            if last >= wanted.end:
                return


def _position_of(record: dlog.Record) -> Position:
    return Position(record.dlsn.segment_seqno, record.dlsn.entry_id, record.dlsn.slot_id)


def _first_after(position: Position) -> dlog.DLSN | dlog.Start:
    if position == BEFORE_EVERYTHING:
        return dlog.EARLIEST
    if position.slot == WHOLE_ENTRY:
        return dlog.DLSN(position.segment, position.entry + 1, 0)
    return dlog.DLSN(position.segment, position.entry, position.slot + 1)
