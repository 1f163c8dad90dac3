"""The figures of a namespace and its cluster in the text format of Prometheus.

Inside: what is collected, how often, its bounds, the names. Not inside: the text format
(``ledger.runtime.statistics.exposition``), the HTTP server (``bookie.http``), options (``dlog.cli``).
Always: a scrape reads the figures of the last collection, so any number of scrapes costs one collection. An
unknown figure is absent, never 0. A part that fails is counted and leaves the others. Nothing is changed.

Source: the Prometheus documentation, Metric and label naming; Writing exporters.
"""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing

import trio

from dlog.connect import open_namespace
from dlog.errors import DLogError
from dlog.explain.collecting import bookie_spaces, collect_cluster
from dlog.namespace_handle import Namespace
from dlog.page.log_figures import SeenLog, age_s
from ledger.client import BookieSpace
from ledger.errors import LedgerError
from ledger.metadata_store.errors import MetadataError
from ledger.replication.marks import UnderReplicatedLedgers
from ledger.runtime.clock import wall_ms
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger
from ledger.runtime.statistics.exposition import Metric, exposition, quoted
from ledger.runtime.tasks.failure_domain import report_contained
from ledger.runtime.tasks.task_errors import first_error
from namespace.dlsn import DLSN

logger = get_logger(__name__)

LOGS_MAX = 1000
CURSORS_MAX = 1000  # of all logs together
CURSORS_OF_LOG_MAX = 50
CHECKPOINT_LOGS_MAX = 1000  # of all checkpoints together
BOOKIES_MAX = 1000
MARKS_READ_MAX = 1000  # whose age is read; all are counted
AT_ONCE = 8
LOG_S = 5.0
READS_S = 3.0  # from then on the lag in seconds is known only as far as this program saw the log grow
LOGS_S = 45.0  # the logs that are not looked at until then are left out
PART_S = 60.0
SETTINGS = {"reader.read_bytes_max": "64K", "reader.read_ahead_bytes_max": "64K"}  # one record is wanted
PARTS = ("bookies", "ledgers", "logs", "namespace", "spark")
EXPECTED = (DLogError, LedgerError, MetadataError, OSError, trio.TooSlowError)

Row = tuple[dict[str, str], float]
Positions = Mapping[str, DLSN]
"""By the name of a log: the first record that is not consumed."""


class Exporter:
    """The figures of one namespace, collected at an interval. On the loop."""

    def __init__(
        self,
        uri: str,
        *,
        patterns: Sequence[str] = (),
        interval_s: float = 15.0,
        checkpoints: Mapping[str, Callable[[], Positions]] | None = None,
    ) -> None:
        """Collect nothing before ``run``.

        Args:
            patterns: Of the names of logs, as of a shell; without one all logs are meant.
            checkpoints: By their names: read in a thread how far a query of Spark has come. Raises
                ``ValueError`` or ``OSError`` if that is not known.
        """
        self._uri, self._patterns, self._interval_s = uri, tuple(patterns), interval_s
        self._checkpoints = dict(checkpoints or {})
        self._seen_by_spark: dict[str, SeenLog] = {}
        self._found: dict[str, list[Metric]] = {}
        self._found_s: dict[str, float] = {}
        self._errors = dict.fromkeys(PARTS, 0)
        self._left_out: Counter[str] = Counter()
        self._seen: dict[str, SeenLog] = {}

    def __repr__(self) -> str:
        return f"<Exporter of {self._uri}>"

    def text(self) -> str:
        """What the last collection found, with its age."""
        now_s = trio.current_time()
        ages = [({"part": part}, now_s - at_s) for part, at_s in sorted(self._found_s.items())]
        errors = [({"part": part}, count) for part, count in self._errors.items()]
        left_out = [({"part": part}, self._left_out[part]) for part in PARTS if part in self._found]
        own = [
            _gauge("dlog_exporter_age_seconds", "Seconds since the figures of a part were collected.", ages),
            _metric(
                "dlog_exporter_errors_total",
                "counter",
                "Failures to collect a part, or one log of it.",
                errors,
            ),
            _gauge("dlog_exporter_left_out", "Things without figures, because there are too many.", left_out),
        ]
        found = [metric for part in PARTS for metric in self._found.get(part, ())]
        return exposition(metric for metric in (*own, *found) if metric.series)

    async def run(self) -> None:
        """Collect until cancelled. No failure ends it: the namespace is opened again."""
        while True:
            try:
                async with open_namespace(self._uri, settings=SETTINGS, read_only=True) as namespace:
                    while not namespace.context.is_over:
                        await self.collect(namespace)
                        await trio.sleep(self._interval_s)
            except* Exception as group:
                self._failed("namespace", group)
            self._forget(PARTS)
            await trio.sleep(self._interval_s)

    async def collect(self, namespace: Namespace) -> None:
        """Collect all parts once. If cancelled, some parts are those of the collection before."""
        parts: dict[str, Callable[[Namespace], Awaitable[list[Metric]]]] = {
            "bookies": self._bookies,
            "ledgers": self._ledgers,
            "logs": self._logs,
        }
        if self._checkpoints:
            parts["spark"] = self._spark
        for part, ask in parts.items():
            try:
                with trio.fail_after(PART_S):
                    self._found[part] = await ask(namespace)
                self._found_s[part] = trio.current_time()
            except* Exception as group:
                self._failed(part, group)
                self._forget([part])

    def _failed(self, part: str, group: BaseExceptionGroup[Exception]) -> None:
        reason = first_error(group)
        if isinstance(reason, EXPECTED):
            self._note(part, str(reason) or f"not collected within {PART_S:g} s")
        else:
            self._errors[part] += 1
            report_contained("exporter", group)

    def _note(self, part: str, said: str) -> None:
        """Count and log a failure that is to be expected."""
        self._errors[part] += 1
        logger.warning(
            "the exporter: %s: %s: %s",
            self._uri,
            part,
            said,
            extra=event("exporter.failed", part=part, error=said),
        )

    def forget(self) -> None:
        """Drop the figures, because no collection follows soon."""
        self._forget(PARTS)

    def _forget(self, parts: Iterable[str]) -> None:
        """Drop the old figures of these parts. Their age is still shown."""
        for part in parts:
            self._found.pop(part, None)

    async def _bookies(self, namespace: Namespace) -> list[Metric]:
        client = namespace.context.client
        cluster = await collect_cluster(client, is_directory=_is_directory(namespace))
        every = sorted(cluster.registered | cluster.with_cookie)
        shown = every[:BOOKIES_MAX]
        self._left_out["bookies"] = len(every) - len(shown)
        spaces = await bookie_spaces(client, [each for each in shown if each in cluster.registered])
        known = {name: space for name, space in spaces.items() if isinstance(space, BookieSpace)}
        states = {
            "away": len(set(every) - cluster.registered),
            "read_only": len(cluster.readonly),
            "writable": len(cluster.registered - cluster.readonly),
        }
        up = [({"bookie": name}, float(name in cluster.registered)) for name in shown]
        read_only = [({"bookie": n}, float(n in cluster.readonly)) for n in shown if n in cluster.registered]
        answers = [({"bookie": name}, float(name in known)) for name in spaces]
        free = [({"bookie": name}, space.free_bytes) for name, space in known.items()]
        total = [({"bookie": name}, space.total_bytes) for name, space in known.items()]
        metrics = [
            _gauge("dlog_bookies", "Bookies of the cluster by state.", _by("state", states)),
            _gauge("dlog_bookie_up", "1: the bookie is registered; 0: it is away.", up),
            _gauge("dlog_bookie_read_only", "1: the bookie takes no new entries.", read_only),
            _gauge("dlog_bookie_answers", "1: the registered bookie answered a request.", answers),
            _gauge("dlog_bookie_disk_free_bytes", "Free bytes on the bookie's ledger disks.", free),
            _gauge("dlog_bookie_disk_size_bytes", "Size in bytes of the bookie's ledger disks.", total),
        ]
        if cluster.has_recovery:
            enabled, auditor = float(cluster.is_recovery_enabled), float(cluster.auditor is not None)
            metrics += [
                _gauge("dlog_autorecovery_enabled", "1: auto-recovery is switched on.", [({}, enabled)]),
                _gauge("dlog_autorecovery_auditor", "1: a process is the auditor.", [({}, auditor)]),
            ]
        return metrics

    async def _ledgers(self, namespace: Namespace) -> list[Metric]:
        if _is_directory(namespace):
            return []
        client = namespace.context.client
        marks = UnderReplicatedLedgers(client.context.catalog.store.current_session(), client.root)
        count = 0
        oldest_ms: int | None = None
        async with aclosing(marks.marked_ids()) as ledger_ids:
            async for ledger_id in ledger_ids:
                count += 1
                if count > MARKS_READ_MAX:
                    continue
                mark = await marks.get(ledger_id)
                if mark is not None and mark.ctime_ms:
                    oldest_ms = min(mark.ctime_ms, oldest_ms or mark.ctime_ms)
        self._left_out["ledgers"] = max(0, count - MARKS_READ_MAX)
        age: list[Row] = [] if oldest_ms is None else [({}, max(0, wall_ms() - oldest_ms) / 1000)]
        name, help_text = (
            "dlog_ledgers_under_replicated",
            "Ledgers that are marked because they miss replicas.",
        )
        oldest = "Seconds since the oldest mark of an under-replicated ledger."
        return [
            _gauge(name, help_text, [({}, count)]),
            _gauge(f"{name}_oldest_age_seconds", oldest, age),
        ]

    async def _logs(self, namespace: Namespace) -> list[Metric]:
        names = [each for each in await namespace.list_logs() if self._is_wanted(each)]
        shown = names[:LOGS_MAX]
        self._left_out["logs"] = len(names) - len(shown)
        self._seen = {name: seen for name, seen in self._seen.items() if name in set(shown)}
        rows: dict[str, list[Row]] = {name: [] for name in _LOG_NAMES}
        limit = trio.CapacityLimiter(AT_ONCE)
        looked = 0

        async def look(name: str) -> None:
            nonlocal looked
            async with limit:
                try:
                    with trio.fail_after(LOG_S):
                        found = await self._log(namespace, name)
                except EXPECTED:
                    self._errors["logs"] += 1
                    return
                finally:
                    looked += 1
            for family, row in found:
                rows[family].append(row)

        with trio.move_on_after(LOGS_S):
            async with trio.open_nursery() as nursery:
                for name in shown:
                    nursery.start_soon(look, name)
        self._left_out["logs"] += len(shown) - looked
        left_out = 0
        for found in rows.values():
            found.sort(key=lambda row: tuple(row[0].values()))
        for family in ("dlog_cursor_lag_records", "dlog_cursor_lag_seconds"):
            left_out = len(rows[family][CURSORS_MAX:])
            del rows[family][CURSORS_MAX:]
        self._left_out["logs"] += left_out
        return [_gauge(family, _LOG_NAMES[family], found) for family, found in rows.items()]

    async def _log(self, namespace: Namespace, name: str) -> list[tuple[str, Row]]:
        until_s = trio.current_time() + READS_S
        cursors = namespace.cursors(name)
        every = await cursors.list()
        listed = every[:CURSORS_OF_LOG_MAX]
        self._left_out["logs"] += len(every) - len(listed)
        lags = [(each, await cursors.lag(each)) for each in listed]
        described = await namespace.describe_log(name)
        seen, labels = self._seen.setdefault(name, SeenLog(described)), {"log": name}
        seen.look(described)
        figures: dict[str, float | None] = {
            "dlog_log_records": described.record_count,
            "dlog_log_segments": len(described.segments),
            "dlog_log_idle_seconds": seen.idle_s,
            "dlog_log_has_writer": float(described.writer is not None),
            "dlog_log_size_bytes": await seen.size_bytes(namespace),
            "dlog_log_last_record_age_seconds": age_s(described.last_txid, wall_ms()),
        }
        if (end := described.last_dlsn) is not None:
            figures["dlog_log_last_segment"] = end.segment_seqno
            figures["dlog_log_last_entry"] = end.entry_id
            figures["dlog_log_last_slot"] = end.slot_id
            figures["dlog_log_last_transaction_id"] = described.last_txid
        found: list[tuple[str, Row]] = [
            (family, (labels, value)) for family, value in figures.items() if value is not None
        ]
        for cursor, lag in lags:
            of_cursor = labels | {"cursor": cursor.name}
            reader = ("cursor", cursor.name)
            lag_s = await seen.lag_s(namespace, reader, cursor.position, lag, until_s=until_s)
            found.append(("dlog_cursor_lag_records", (of_cursor, lag)))
            found.append(("dlog_cursor_lag_seconds", (of_cursor, lag_s)))
        seen.forget_readers({("cursor", cursor.name) for cursor in listed})
        return found

    async def _spark(self, namespace: Namespace) -> list[Metric]:
        rows: dict[str, list[Row]] = {name: [] for name in _SPARK_NAMES}
        until_s = trio.current_time() + READS_S
        left_out = 0
        for checkpoint, read in self._checkpoints.items():
            try:
                positions = await trio.to_thread.run_sync(read)
            except (OSError, ValueError) as exc:
                self._note("spark", str(exc))
                continue
            for name, position in sorted(positions.items()):
                if len(rows["dlog_spark_lag_records"]) >= CHECKPOINT_LOGS_MAX:
                    left_out += 1
                    continue
                labels = {"checkpoint": checkpoint, "log": name}
                try:
                    described = await namespace.describe_log(name)
                    lag = await namespace.count_records(name, start=position)
                except EXPECTED as exc:
                    self._note("spark", str(exc))
                    continue
                seen = self._seen_by_spark.setdefault(name, SeenLog(described))
                seen.look(described)
                lag_s = await seen.lag_s(namespace, ("spark", checkpoint), position, lag, until_s=until_s)
                rows["dlog_spark_lag_records"].append((labels, lag))
                rows["dlog_spark_lag_seconds"].append((labels, lag_s))
        self._left_out["spark"] = left_out
        return [_gauge(family, _SPARK_NAMES[family], found) for family, found in rows.items()]

    def _is_wanted(self, name: str) -> bool:
        return not self._patterns or any(fnmatch.fnmatchcase(name, each) for each in self._patterns)


_LOG_NAMES = {
    "dlog_log_records": "Records of the log that are not purged.",
    "dlog_log_segments": "Segments of the log.",
    "dlog_log_idle_seconds": "Seconds since the exporter last saw the log grow, or first saw it.",
    "dlog_log_size_bytes": "Stored bytes of one replica of the log, up to the last visible record.",
    "dlog_log_last_segment": "The segment of the last visible record's position.",
    "dlog_log_last_entry": "The entry of the last visible record's position.",
    "dlog_log_last_slot": "The slot of the last visible record's position.",
    "dlog_log_last_transaction_id": "The last visible record's transaction id.",
    "dlog_log_last_record_age_seconds": "Seconds since the last visible record was written.",
    "dlog_log_has_writer": "1: a writer holds the log's lock.",
    "dlog_cursor_lag_records": "Records that the cursor's readers have not consumed.",
    "dlog_cursor_lag_seconds": "Seconds that the oldest such record has been there.",
}


_SPARK_NAMES = {
    "dlog_spark_lag_records": "Records that the query of a checkpoint has not committed.",
    "dlog_spark_lag_seconds": "Seconds that the oldest such record has been there.",
}


def _gauge(name: str, help_text: str, rows: Iterable[Row]) -> Metric:
    return _metric(name, "gauge", help_text, rows)


def _metric(name: str, kind: str, help_text: str, rows: Iterable[Row]) -> Metric:
    return Metric(name, kind, tuple((_labelled(labels), value) for labels, value in rows), help_text)


def _labelled(labels: dict[str, str]) -> str:
    text = ",".join(f'{name}="{quoted(value)}"' for name, value in labels.items())
    return f"{{{text}}}" if text else ""


def _by(label: str, values: dict[str, int]) -> list[Row]:
    return [({label: name}, value) for name, value in values.items()]


def _is_directory(namespace: Namespace) -> bool:
    return namespace.uri.lower().startswith("file:")
