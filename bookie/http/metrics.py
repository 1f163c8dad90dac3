"""``/metrics``: the text format of Prometheus, with the names of Apache's bookie, and our own beside them.

Inside: names and kinds, from numbers that the parts keep anyway. Not inside: counting (the parts).
Always: a scrape reads numbers only; its work does not grow with ledgers or entries.

Source: BookKeeperServerStats.java, JournalStats.java, DbLedgerStorageStats.java, GarbageCollectorStats.java,
ReplicationStats.java, PrometheusTextFormatUtil.java; docs/http.md.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import attrs
import trio

from bookie.http.admin import Admin
from bookie.latency import Latency
from bookie.storage.storage import Storage

_STATM = Path("/proc/self/statm")


@attrs.frozen
class Metric:
    """One name with its series."""

    name: str
    kind: str
    series: tuple[tuple[str, float], ...]  # what follows the name, such as labels, and the value


def metrics_text(admin: Admin) -> str:
    """All measurements."""
    lines: list[str] = []
    for metric in _metrics(admin):
        lines.append(f"# TYPE {metric.name} {metric.kind}\n")
        lines += [f"{metric.name}{more} {_number(value)}\n" for more, value in metric.series]
    return "".join(lines)


def _number(value: float) -> str:
    return "NaN" if value != value else repr(value)


def _metrics(admin: Admin) -> Iterator[Metric]:
    yield from _health(admin)
    yield from _requests(admin)
    storage = admin.service.storage
    yield from _journals(storage)
    yield from _storage(storage)
    yield from _scrubbers(storage)
    yield from _garbage(admin)
    yield from _auditor(admin)
    yield from _process()


def _gauge(name: str, value: float) -> Metric:
    return Metric(name, "gauge", (("", value),))


def _counter(name: str, value: float) -> Metric:
    return Metric(name, "counter", (("", value),))


def _summary(name: str, latencies: Iterable[tuple[str, Latency]]) -> Metric:
    """An operation as Apache writes it, in milliseconds. ``latencies``: each with its labels."""
    now_s = trio.current_time()
    series: list[tuple[str, float]] = []
    for labels, latency in latencies:
        quantiles = latency.quantiles(now_s)
        series += [(f'{{{labels},quantile="{at}"}}', took_s * 1000) for at, took_s in quantiles]
        series.append((f"_count{{{labels}}}", latency.count))
        series.append((f"_sum{{{labels}}}", latency.sum_s * 1000))
    return Metric(name, "summary", tuple(series))


def _health(admin: Admin) -> Iterator[Metric]:
    storage = admin.service.storage
    writable = admin.service.rights.writable
    directories = len(storage.collectors)
    usage = storage.disk_usage()
    yield _gauge("bookie_SERVER_STATUS", (1 if writable else 0) if admin.is_ready else -1)
    yield _gauge("bookie_ledger_num_dirs", directories)
    yield _gauge("bookie_ledger_writable_dirs", directories if writable else 0)
    yield _gauge("bookie_disk_total_bytes", usage.total_bytes)
    yield _gauge("bookie_disk_free_bytes", usage.free_bytes)
    if admin.server is not None:
        yield _gauge("bookie_connections", admin.server.connections_count)
    if admin.recovery is not None:
        yield _gauge("bookie_recovery_running", int(admin.recovery.is_running))
        yield _gauge("bookie_recovery_ledgers_moved", admin.recovery.moved)
        yield _gauge("bookie_recovery_ledgers_left", len(admin.recovery.left))


def _requests(admin: Admin) -> Iterator[Metric]:
    work = admin.service.in_progress
    yield _summary(
        "bookkeeper_server_ADD_ENTRY_REQUEST",
        [('success="false"', work.not_added), ('success="true"', work.added)],
    )
    yield _gauge("bookkeeper_server_ADD_ENTRY_IN_PROGRESS", work.adds)
    yield _gauge("bookkeeper_server_READ_ENTRY_IN_PROGRESS", work.reads)


def _journals(storage: Storage) -> Iterator[Metric]:
    journals = storage.journals.all
    labels = [f'journalIndex="{number}"' for number in range(len(journals))]

    def each(name: str, kind: str, values: Iterable[float]) -> Metric:
        return Metric(
            f"bookie_journal_{name}",
            kind,
            tuple((f"{{{label}}}", value) for label, value in zip(labels, values, strict=True)),
        )

    yield _gauge("bookie_JOURNAL_DIRS", len(journals))
    yield _summary(
        "bookie_journal_JOURNAL_SYNC",
        [(f'{label},success="true"', one.syncs) for label, one in zip(labels, journals, strict=True)],
    )
    yield each("JOURNAL_QUEUE_SIZE", "gauge", [one.waiting_count for one in journals])
    yield each("JOURNAL_MEMORY_USED", "gauge", [one.queued_bytes for one in journals])
    yield each("JOURNAL_WRITE_BYTES", "counter", [one.written_bytes for one in journals])
    yield _counter("bookie_WRITE_BYTES", sum(one.written_bytes for one in journals))


def _storage(storage: Storage) -> Iterator[Metric]:
    checkpointer = storage.checkpointer
    caches = [(str(store.directory), store.reads.read_cache) for store in storage.stores]

    def each(name: str, kind: str, values: Iterable[float]) -> Metric:
        labelled = zip(caches, values, strict=True)
        return Metric(
            name, kind, tuple((f'{{ledgerDir="{_quoted(at)}"}}', value) for (at, _), value in labelled)
        )

    yield _gauge("bookie_write_cache_size", checkpointer.active_bytes + checkpointer.sealed_bytes)
    yield each("bookie_read_cache_size", "gauge", [cache.size_bytes for _, cache in caches])
    yield each("bookie_read_cache_hits", "counter", [cache.hits for _, cache in caches])
    yield each("bookie_read_cache_misses", "counter", [cache.misses for _, cache in caches])
    yield _gauge("bookie_ledgers_count", storage.ledgers_count)


def _scrubbers(storage: Storage) -> Iterator[Metric]:
    stats = [store.scrubber.stats for store in storage.stores]
    yield _counter("bookie_scrub_rounds", sum(one.rounds for one in stats))
    yield _counter("bookie_scrub_entries", sum(one.entries for one in stats))
    yield _counter("bookie_scrub_bytes", sum(one.bytes for one in stats))
    yield _counter("bookie_scrub_damaged_entries", sum(one.damaged for one in stats))


def _garbage(admin: Admin) -> Iterator[Metric]:
    state, collectors = admin.garbage.state, admin.garbage.collectors
    stats = [collector.stats for collector in collectors]
    yield _gauge("bookie_gc_ACTIVE_LEDGER_TOTAL", admin.service.storage.ledgers_count)
    yield _gauge("bookie_gc_ACTIVE_ENTRY_LOG_TOTAL", sum(one.logs for one in stats))
    yield _gauge("bookie_gc_ENTRY_LOG_SPACE_BYTES", sum(one.total_bytes for one in stats))
    yield _gauge("bookie_gc_ACTIVE_ENTRY_LOG_SPACE_BYTES", sum(one.live_bytes for one in stats))
    yield _gauge("bookie_gc_QUARANTINED_ENTRY_LOG_TOTAL", sum(len(one.quarantined) for one in stats))
    yield _counter("bookie_gc_DELETED_LEDGER_TOTAL", state.deleted_ledgers)
    yield _counter("bookie_gc_MAJOR_COMPACTION_TOTAL", state.major_compactions)
    yield _counter("bookie_gc_MINOR_COMPACTION_TOTAL", state.minor_compactions)
    yield _counter("bookie_gc_RECLAIMED_DELETION_SPACE_BYTES", sum(one.deleted_bytes for one in stats))
    reclaimed = sum(max(0, one.compacted_bytes - one.copied_bytes) for one in stats)
    yield _counter("bookie_gc_RECLAIMED_COMPACTION_SPACE_BYTES", reclaimed)
    yield _counter("bookie_gc_RECLAIM_FAILED_TO_DELETE", sum(one.failures for one in stats))


def _auditor(admin: Admin) -> Iterator[Metric]:
    if admin.auditor is None:
        return
    if (placement := admin.auditor.placement) is not None:
        prefix = "replication_auditor_NUM"
        yield _gauge(f"{prefix}_LEDGERS_NOT_ADHERING_TO_PLACEMENT_POLICY", placement.bad)
        yield _gauge(f"{prefix}_UNDERREPLICATED_LEDGERS_ELAPSED_RECOVERY_GRACE_PERIOD", placement.overdue)
    if (replicas := admin.auditor.replicas) is not None:
        prefix = "replication_auditor_NUM_LEDGERS_HAVING"
        yield _gauge(f"{prefix}_NO_REPLICA_OF_AN_ENTRY", replicas.without_replica)
        yield _gauge(f"{prefix}_LESS_THAN_AQ_REPLICAS_OF_AN_ENTRY", replicas.below_ack_quorum)
        yield _gauge(f"{prefix}_LESS_THAN_WQ_REPLICAS_OF_AN_ENTRY", replicas.below_write_quorum)


def _process() -> Iterator[Metric]:
    yield _counter("process_cpu_seconds_total", time.process_time())
    pages = _STATM.read_text("ascii").split()[1]
    yield _gauge("process_resident_memory_bytes", int(pages) * os.sysconf("SC_PAGE_SIZE"))


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
