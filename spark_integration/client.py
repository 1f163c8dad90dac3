"""The log as this package sees it: where its tail is, what its segments hold, the records of a range.

One namespace per process and URI, opened on first use and kept: Spark reuses its Python workers between
micro-batches, and which worker serves which task changes. One that turns out to be over, because its session
with the metadata store is, is replaced. The trio loop behind ``dlog.blocking`` starts after Spark's fork,
since nothing here is opened at import.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Protocol, TypeVar

import attrs

import dlog
import dlog.blocking
from spark_integration.errors import RangeUnreadableError
from spark_integration.offsets import BEFORE_EVERYTHING, WHOLE_ENTRY, Position, just_before
from spark_integration.planning import Extent, Range

T = TypeVar("T")

_opened: dict[tuple[int, str], dlog.blocking.Namespace] = {}
_opening = threading.Lock()


def namespace(uri: str) -> dlog.blocking.Namespace:
    """This process's namespace for a URI; it stays open until it is lost or the process ends."""
    with _opening:
        key = (os.getpid(), uri)  # a forked child must not use its parent's threads
        if key not in _opened:
            _opened[key] = dlog.blocking.open_namespace(uri).__enter__()
        return _opened[key]


def _asked(uri: str, question: Callable[[dlog.blocking.Namespace], T]) -> T:
    """The answer of this process's namespace, or, where that is over, of a new one."""
    asked = namespace(uri)
    try:
        return question(asked)
    except (dlog.NamespaceLostError, dlog.NamespaceClosedError):
        _replace(uri, asked)
    return question(namespace(uri))


def _replace(uri: str, lost: dlog.blocking.Namespace) -> None:
    with _opening:
        key = (os.getpid(), uri)
        if _opened.get(key) is lost:  # else another thread has replaced it already
            del _opened[key]
            with suppress(dlog.DLogError):  # that it is over is known
                lost.close()


class LogView(Protocol):
    """What the readers need of a log; picklable, since it travels to the executors."""

    def tail(self) -> Position:
        """The last record that can be read now; control records do not count."""

    def earliest(self) -> Position:
        """Just before the first record left; ``BEFORE_EVERYTHING`` while the log has no segment."""

    def extents(self) -> list[Extent]:
        """The log's segments, oldest first, with the last entry known of each."""

    def read_range(self, wanted: Range, *, records_max: int) -> Iterator[list[dlog.Record]]:
        """The records of a range, in order, in runs of at most ``records_max``.

        The range begins at a position, never at ``BEFORE_EVERYTHING``: what that means changes.
        """


@attrs.frozen
class NamedLog:
    """One log of a namespace, looked at through this process's connection to it.

    Raises, in each call, what ``dlog`` raises: ``LogNotFoundError`` if there is no such log.
    """

    uri: str
    stream: str
    read_timeout_ms: int

    def tail(self) -> Position:
        last = _asked(self.uri, lambda namespace: namespace.last_dlsn(self.stream))
        if last is None:
            return BEFORE_EVERYTHING
        return Position(last.segment_seqno, last.entry_id, last.slot_id)

    def earliest(self) -> Position:
        first = _asked(self.uri, lambda namespace: namespace.describe_log(self.stream)).first_dlsn
        if first is None:
            return BEFORE_EVERYTHING
        return just_before(first.segment_seqno, first.entry_id, first.slot_id)

    def extents(self) -> list[Extent]:
        return [
            Extent(segment.segment_seqno, segment.last_entry_id if segment.is_completed else -1)
            for segment in _asked(self.uri, lambda namespace: namespace.segments(self.stream))
        ]

    def read_range(self, wanted: Range, *, records_max: int) -> Iterator[list[dlog.Record]]:
        """As promised above.

        A range is planned from what was readable then, so all of it must be readable now: standing
        still before its end for ``read_timeout_ms`` is an error, never a short answer.

        Raises:
            RangeUnreadableError: The end of the range was not reached in time.
            dlog.LogTruncatedError: Records of the range were given up since.
        """
        assert wanted.is_empty or wanted.start != BEFORE_EVERYTHING, wanted
        if wanted.is_empty:
            return
        first = _first_after(wanted.start)
        with _asked(self.uri, lambda namespace: namespace.open_reader(self.stream, start=first)) as reader:
            while True:
                run = reader.read_batch(records_max, wait_s=self.read_timeout_ms / 1000)
                if not run:
                    raise RangeUnreadableError(
                        f"stream {self.stream!r}: nothing readable for {self.read_timeout_ms} ms before the"
                        f" end {wanted.end} of a planned range; are enough bookies up?"
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


def _first_after(position: Position) -> dlog.DLSN:
    if position.slot == WHOLE_ENTRY:
        return dlog.DLSN(position.segment, position.entry + 1, 0)
    return dlog.DLSN(position.segment, position.entry, position.slot + 1)
