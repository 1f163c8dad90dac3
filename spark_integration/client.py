"""The streams of a query for the readers of this package: their names, tails, segments, places, records.

A process opens one namespace per URI and settings on first use and keeps it, because Spark reuses its
Python workers between micro-batches, for changing tasks. A namespace whose session with the metadata store
has ended is replaced. With ``readOnly`` each request opens a namespace of its own: in the directory of a
``file:`` namespace it is a snapshot, which does not show what is written later. Nothing is opened at import,
so the trio loop of ``dlog.blocking`` starts after Spark's fork.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Protocol, TypeVar

import attrs

import dlog
import dlog.blocking
from dlog.settings import load_settings
from ledger.runtime.log_lines import get_logger
from spark_integration.errors import RangeUnreadableError
from spark_integration.offsets import BEFORE_EVERYTHING, WHOLE_ENTRY, Position, just_before
from spark_integration.options import ClientOptions, Selection
from spark_integration.planning import Extent, Range

logger = get_logger(__name__)
TAILS_AT_ONCE = 16  # requests for the ends of streams
_SLOT_MAX = 2**63 - 1

T = TypeVar("T")

_NO_OPTIONS = ClientOptions()
_SECURED = {"key_file", "bookie_security"}
_opened: dict[tuple[int, str, ClientOptions], dlog.blocking.Namespace] = {}
_opening = threading.Lock()


def namespace(uri: str, options: ClientOptions = _NO_OPTIONS) -> dlog.blocking.Namespace:
    """This process's namespace for a URI. It stays open until its session or the process ends.

    A query without the file of keys must not read with the keys of another query, so the settings count too.

    Raises:
        dlog.ConfigError: A setting is wrong, or a file cannot be read or used.
    """
    with _opening:
        key = (os.getpid(), uri, options)  # a forked child must not use its parent's threads
        if key not in _opened:
            _opened[key] = dlog.blocking.open_namespace(
                uri, config_file=options.config_file, settings=options.all_settings
            ).__enter__()
        return _opened[key]


@contextmanager
def _reading(log: NamedLog) -> Iterator[dlog.blocking.Namespace]:
    """A namespace of its own, read-only."""
    options = log.options
    with dlog.blocking.open_namespace(
        log.uri, config_file=options.config_file, settings=options.all_settings, read_only=True
    ) as namespace:
        yield namespace


def _call(log: NamedLog, request: Callable[[dlog.blocking.Namespace], T]) -> T:
    """The result of a request to this process's namespace; opens another one if the namespace is lost."""
    if log.options.read_only:
        with _reading(log) as snapshot:
            return request(snapshot)
    current = namespace(log.uri, log.options)
    try:
        return request(current)
    except (dlog.NamespaceLostError, dlog.NamespaceClosedError):
        _replace(log, current)
    return request(namespace(log.uri, log.options))


def with_namespace(uri: str, options: ClientOptions, request: Callable[[dlog.blocking.Namespace], T]) -> T:
    """The result of a request to this process's namespace, which is opened if necessary.

    If the namespace was lost, the request is made again to another one, so it must bear repetition.
    """
    return _call(NamedLog(uri, "", 0, options), request)


def with_namespace_once(
    uri: str, options: ClientOptions, request: Callable[[dlog.blocking.Namespace], T]
) -> T:
    """The result of a request that must not be repeated, such as one that consumes an iterator.

    Raises:
        dlog.NamespaceLostError, dlog.NamespaceClosedError: The namespace was lost. The next request of this
            process opens another one.
    """
    current = namespace(uri, options)
    try:
        return request(current)
    except (dlog.NamespaceLostError, dlog.NamespaceClosedError):
        _replace(NamedLog(uri, "", 0, options), current)
        raise


def _replace(log: NamedLog, lost: dlog.blocking.Namespace) -> None:
    with _opening:
        key = (os.getpid(), log.uri, log.options)
        if _opened.get(key) is lost:  # otherwise another thread has replaced it
            del _opened[key]
            with suppress(dlog.DLogError):  # close reports the loss again
                lost.close()


class LogView(Protocol):
    """One stream in the form that readers need. It is picklable, because Spark sends it to the executors."""

    def tail(self) -> Position:
        """The last record that can be read now, apart from control records."""

    def earliest(self) -> Position:
        """The position before the first record left; ``BEFORE_EVERYTHING`` if the log has no segment."""

    def extents(self) -> list[Extent]:
        """The log's segments, oldest first, each with its last known entry."""

    def entry_totals(self, entries: Iterable[tuple[int, int]]) -> list[dlog.EntryTotals | None]:
        """Records and bytes of segments up to and including an entry; None for an entry that is missing."""

    def slots(self, segment: int, entry: int) -> list[int]:
        """The slots of an entry's records; none if they cannot be read any more."""

    def before_txid(self, txid: int) -> Position | None:
        """The position before the first record with at least this transaction id; None if there is none."""

    @property
    def can_follow(self) -> bool:
        """False for a snapshot, which shows nothing new."""

    def follow(self, position: Position) -> dlog.blocking.LogReader:
        """A reader of the records after a position, which the caller closes."""

    def cursor(self, name: str) -> Position | None:
        """The position of a cursor; None if the log has no cursor of this name."""

    def read_range(
        self, part: Range, *, records_max: int, skip_lost: bool = False
    ) -> Iterator[dlog.RecordBatch]:
        """The records of a range, in order, in batches of at most ``records_max``.

        The range must not start at ``BEFORE_EVERYTHING``, because truncation changes its first record.
        """


class StreamsView(Protocol):
    """The streams of a query. It is picklable, too."""

    def names(self) -> list[str]:
        """The streams that exist now, sorted. A list of streams is returned as it was given."""

    def log(self, stream: str) -> LogView:
        """One stream."""

    def tails(self, streams: Sequence[str]) -> dict[str, Position | None]:
        """The tail of each stream; None for a log that does not exist."""

    def identities(self, streams: Sequence[str]) -> dict[str, str | None]:
        """The identity of each log that exists, None for a log without one."""

    @property
    def is_confidential(self) -> bool:
        """True if payloads are encrypted, or the way to the bookies is secured, by any setting."""


@attrs.frozen
class NamedStreams:
    """Streams of a namespace, read through this process's namespace."""

    uri: str
    selection: Selection
    read_timeout_ms: int
    options: ClientOptions = _NO_OPTIONS

    def names(self) -> list[str]:
        chosen = self.selection
        if chosen.pattern is not None:
            return self._call(lambda namespace: namespace.list_logs(pattern=chosen.pattern))
        if chosen.sharded is not None:
            name = chosen.sharded
            return self._call(lambda namespace: dlog.blocking.shard_names(namespace, name))
        return list(chosen.names)

    def log(self, stream: str) -> NamedLog:
        return NamedLog(self.uri, stream, self.read_timeout_ms, self.options)

    def tails(self, streams: Sequence[str]) -> dict[str, Position | None]:
        return self._each(self._tail, streams)

    def identities(self, streams: Sequence[str]) -> dict[str, str | None]:
        found = self._each(self._identity, streams)
        return {stream: one[0] for stream, one in found.items() if one is not None}

    def _each(self, ask: Callable[[str], T], streams: Sequence[str]) -> dict[str, T]:
        if len(streams) < 2:
            return {stream: ask(stream) for stream in streams}
        with ThreadPoolExecutor(min(TAILS_AT_ONCE, len(streams)), "dlog tails") as threads:
            return dict(zip(streams, threads.map(ask, streams), strict=True))

    @property
    def is_confidential(self) -> bool:
        given = load_settings(
            self.uri, config_file=self.options.config_file, settings=self.options.all_settings
        ).given
        return any(name in _SECURED or name.startswith("bookies.") for name in given)

    def _identity(self, stream: str) -> tuple[str | None] | None:
        """None: there is no such log."""
        try:
            return (self._call(lambda namespace: namespace.log_identity(stream)),)
        except dlog.LogNotFoundError:
            return None

    def _tail(self, stream: str) -> Position | None:
        try:
            return self.log(stream).tail()
        except dlog.LogNotFoundError:
            return None

    def _call(self, request: Callable[[dlog.blocking.Namespace], T]) -> T:
        return _call(self.log(""), request)


@attrs.frozen
class NamedLog:
    """One log of a namespace, read through this process's namespace.

    Each call raises the errors of ``dlog``, such as ``LogNotFoundError``.
    """

    uri: str
    stream: str
    read_timeout_ms: int
    options: ClientOptions = _NO_OPTIONS

    def tail(self) -> Position:
        last = _call(self, lambda namespace: namespace.last_dlsn(self.stream))
        return BEFORE_EVERYTHING if last is None else _position_of(last)

    def earliest(self) -> Position:
        first = _call(self, lambda namespace: namespace.describe_log(self.stream)).first_dlsn
        return BEFORE_EVERYTHING if first is None else _before(first)

    def extents(self) -> list[Extent]:
        return [
            Extent(
                segment.segment_seqno,
                segment.last_entry_id if segment.is_completed else -1,
                segment.record_count,
            )
            for segment in _call(self, lambda namespace: namespace.segments(self.stream))
        ]

    def entry_totals(self, entries: Iterable[tuple[int, int]]) -> list[dlog.EntryTotals | None]:
        wanted = list(entries)
        return _call(self, lambda namespace: namespace.entry_totals(self.stream, wanted))

    def slots(self, segment: int, entry: int) -> list[int]:
        first, last = dlog.DLSN(segment, entry, 0), dlog.DLSN(segment, entry, _SLOT_MAX)

        def read(namespace: dlog.blocking.Namespace) -> list[int]:
            found: list[int] = []
            with namespace.open_reader(self.stream, start=first, end=last, follow=False) as reader:
                while batch := reader.read_batch(_SLOT_MAX):
                    found += batch.slot_ids
            return found

        try:
            return _call(self, read)
        except (dlog.LogTruncatedError, dlog.CorruptLogError):
            return []

    def before_txid(self, txid: int) -> Position | None:
        def first(namespace: dlog.blocking.Namespace) -> dlog.DLSN | None:
            with namespace.open_reader(self.stream, start=txid, follow=False) as reader:
                batch = reader.read_batch(1)
                return batch.first_dlsn if batch else None

        found = _call(self, first)
        return None if found is None else _before(found)

    def cursor(self, name: str) -> Position | None:
        found = _call(self, lambda namespace: namespace.cursors(self.stream).get(name))
        return None if found is None else _before(found.position)

    @property
    def can_follow(self) -> bool:
        return not self.options.read_only

    def follow(self, position: Position) -> dlog.blocking.LogReader:
        """A reader of the records after a position, which the caller closes."""
        return _call(self, lambda namespace: namespace.open_reader(self.stream, start=_first_after(position)))

    def read_range(
        self, part: Range, *, records_max: int, skip_lost: bool = False
    ) -> Iterator[dlog.RecordBatch]:
        """The records of a range, in order, in batches of at most ``records_max``.

        All records of a planned range were readable at planning time. So a reader that gets no record for
        ``read_timeout_ms`` before the end of the range raises an error and never returns fewer records.

        Args:
            skip_lost: Leave out records that are gone for good, and log where they were.

        Raises:
            RangeUnreadableError: No record arrived for ``read_timeout_ms`` before the end of the range.
            dlog.LogTruncatedError: Records of the range were truncated after planning; without
                ``skip_lost``.
        """
        assert part.is_empty or part.start != BEFORE_EVERYTHING, part  # planning gives each part a start
        if part.is_empty:
            return
        first = _first_after(part.start)
        with ExitStack() as stack:
            if self.options.read_only:
                snapshot = stack.enter_context(_reading(self))
                reader = stack.enter_context(snapshot.open_reader(self.stream, start=first, gaps=skip_lost))
            else:
                reader = stack.enter_context(
                    _call(
                        self,
                        lambda namespace: namespace.open_reader(self.stream, start=first, gaps=skip_lost),
                    )
                )
            read = reader.read_batch_or_gap if skip_lost else reader.read_batch
            while True:
                batch = read(records_max, wait_s=self.read_timeout_ms / 1000)
                if isinstance(batch, dlog.Gap):
                    logger.warning("stream %s in %s: skipped lost records: %s", self.stream, self.uri, batch)
                    if _before(batch.resume) >= part.end:
                        return
                    continue
                if not batch:
                    raise RangeUnreadableError(
                        f"stream {self.stream!r} in {self.uri}: no record was readable for"
                        f" {self.read_timeout_ms} ms before the end {part.end} of a planned range; check that"
                        " enough bookies run, or raise readTimeoutMs"
                    )
                last = _position_of(batch.last_dlsn)
                if last > part.end:
                    batch = _through(batch, part.end)
                if batch:
                    yield batch
                if last >= part.end:
                    return


def _through(batch: dlog.RecordBatch, end: Position) -> dlog.RecordBatch:
    """The records up to a position."""
    return batch[: bisect_right(range(len(batch)), end, key=lambda at: _position_of(batch.dlsn(at)))]


def _position_of(dlsn: dlog.DLSN) -> Position:
    return Position(dlsn.segment_seqno, dlsn.entry_id, dlsn.slot_id)


def _before(dlsn: dlog.DLSN) -> Position:
    return just_before(dlsn.segment_seqno, dlsn.entry_id, dlsn.slot_id)


def _first_after(position: Position) -> dlog.DLSN:
    if position.slot == WHOLE_ENTRY:
        return dlog.DLSN(position.segment, position.entry + 1, 0)
    return dlog.DLSN(position.segment, position.entry, position.slot + 1)
