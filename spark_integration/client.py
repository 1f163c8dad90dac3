"""The log for the readers of this package: its tail, its segments, the records of a range.

A process opens one namespace per URI and files of secrets on first use and keeps it, because Spark reuses its
Python workers between micro-batches, for changing tasks. A namespace whose session with the metadata store
has ended is replaced. Nothing is opened at import, so the trio loop of ``dlog.blocking`` starts after Spark's
fork.
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
from dlog.encryption import KeyFile
from ledger import SecuritySettingsError, load_bookie_security
from spark_integration.errors import RangeUnreadableError
from spark_integration.offsets import BEFORE_EVERYTHING, WHOLE_ENTRY, Position, just_before
from spark_integration.options import SecurityFiles
from spark_integration.planning import Extent, Range

T = TypeVar("T")

_NO_FILES = SecurityFiles()
_opened: dict[tuple[int, str, SecurityFiles], dlog.blocking.Namespace] = {}
_opening = threading.Lock()


def namespace(uri: str, files: SecurityFiles = _NO_FILES) -> dlog.blocking.Namespace:
    """This process's namespace for a URI. It stays open until its session or the process ends.

    A query without the file of keys must not read with the keys of another query, so the files count too.

    Raises:
        dlog.ConfigError: A file cannot be read or used.
    """
    with _opening:
        key = (os.getpid(), uri, files)  # a forked child must not use its parent's threads
        if key not in _opened:
            _opened[key] = dlog.blocking.open_namespace(uri, config=_config(files)).__enter__()
        return _opened[key]


def _config(files: SecurityFiles) -> dlog.NamespaceConfig:
    keys = None if files.keys is None else KeyFile(files.keys)
    try:
        bookies = None if files.bookies is None else load_bookie_security(files.bookies)
    except SecuritySettingsError as exc:
        raise dlog.ConfigError(str(exc)) from exc
    return dlog.NamespaceConfig(bookie_security=bookies, reader=dlog.ReaderConfig(encryption=keys))


def _call(log: NamedLog, request: Callable[[dlog.blocking.Namespace], T]) -> T:
    """The result of a request to this process's namespace; opens another one if the namespace is lost."""
    current = namespace(log.uri, log.files)
    try:
        return request(current)
    except (dlog.NamespaceLostError, dlog.NamespaceClosedError):
        _replace(log, current)
    return request(namespace(log.uri, log.files))


def _replace(log: NamedLog, lost: dlog.blocking.Namespace) -> None:
    with _opening:
        key = (os.getpid(), log.uri, log.files)
        if _opened.get(key) is lost:  # otherwise another thread has replaced it
            del _opened[key]
            with suppress(dlog.DLogError):  # close reports the loss again
                lost.close()


class LogView(Protocol):
    """The log in the form that readers need. It is picklable, because Spark sends it to the executors."""

    def tail(self) -> Position:
        """The last record that can be read now, apart from control records."""

    def earliest(self) -> Position:
        """The position before the first record left; ``BEFORE_EVERYTHING`` if the log has no segment."""

    def extents(self) -> list[Extent]:
        """The log's segments, oldest first, each with its last known entry."""

    def read_range(self, part: Range, *, records_max: int) -> Iterator[list[dlog.Record]]:
        """The records of a range, in order, in batches of at most ``records_max``.

        The range must not start at ``BEFORE_EVERYTHING``, because truncation changes its first record.
        """


@attrs.frozen
class NamedLog:
    """One log of a namespace, read through this process's namespace.

    Each call raises the errors of ``dlog``, such as ``LogNotFoundError``.
    """

    uri: str
    stream: str
    read_timeout_ms: int
    files: SecurityFiles = _NO_FILES

    def tail(self) -> Position:
        last = _call(self, lambda namespace: namespace.last_dlsn(self.stream))
        if last is None:
            return BEFORE_EVERYTHING
        return Position(last.segment_seqno, last.entry_id, last.slot_id)

    def earliest(self) -> Position:
        first = _call(self, lambda namespace: namespace.describe_log(self.stream)).first_dlsn
        if first is None:
            return BEFORE_EVERYTHING
        return just_before(first.segment_seqno, first.entry_id, first.slot_id)

    def extents(self) -> list[Extent]:
        return [
            Extent(segment.segment_seqno, segment.last_entry_id if segment.is_completed else -1)
            for segment in _call(self, lambda namespace: namespace.segments(self.stream))
        ]

    def read_range(self, part: Range, *, records_max: int) -> Iterator[list[dlog.Record]]:
        """The records of a range, in order, in batches of at most ``records_max``.

        All records of a planned range were readable at planning time. So a reader that gets no record for
        ``read_timeout_ms`` before the end of the range raises an error and never returns fewer records.

        Raises:
            RangeUnreadableError: No record arrived for ``read_timeout_ms`` before the end of the range.
            dlog.LogTruncatedError: Records of the range were truncated after planning.
        """
        assert part.is_empty or part.start != BEFORE_EVERYTHING, part
        if part.is_empty:
            return
        first = _first_after(part.start)
        with _call(self, lambda namespace: namespace.open_reader(self.stream, start=first)) as reader:
            while True:
                batch = reader.read_batch(records_max, wait_s=self.read_timeout_ms / 1000)
                if not batch:
                    raise RangeUnreadableError(
                        f"stream {self.stream!r} in {self.uri}: no record was readable for"
                        f" {self.read_timeout_ms} ms before the end {part.end} of a planned range; check that"
                        " enough bookies run, or raise readTimeoutMs"
                    )
                last = _position_of(batch[-1])
                if last > part.end:
                    batch = [record for record in batch if _position_of(record) <= part.end]
                if batch:
                    yield batch
                if last >= part.end:
                    return


def _position_of(record: dlog.Record) -> Position:
    return Position(record.dlsn.segment_seqno, record.dlsn.entry_id, record.dlsn.slot_id)


def _first_after(position: Position) -> dlog.DLSN:
    if position.slot == WHOLE_ENTRY:
        return dlog.DLSN(position.segment, position.entry + 1, 0)
    return dlog.DLSN(position.segment, position.entry, position.slot + 1)
