"""``/metrics``: the text format of Prometheus, with the names of Apache's bookie, and our own beside them.

Inside: names and kinds, from numbers that the parts keep anyway. Not inside: counting (the parts), the format
(``ledger.runtime.statistics.exposition``).
Always: a scrape reads numbers only; its work does not grow with ledgers or entries.

Source: BookKeeperServerStats.java, JournalStats.java, DbLedgerStorageStats.java, GarbageCollectorStats.java,
ReplicationStats.java, PrometheusTextFormatUtil.java; docs/http.md.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import attrs
import trio

from bookie.disk.disk import DiskUsage
from bookie.http.admin import Admin
from bookie.http.metric_help import help_of
from bookie.latency import HISTOGRAM_BOUNDS_S, Latency
from bookie.storage.storage import Storage
from ledger.replication import AutoRecoveryStats
from ledger.replication.auditor import AuditorStats
from ledger.runtime.statistics.exposition import (
    Metric,
    Summary,
    counter,
    exposition,
    gauge,
    histogram,
    quoted,
    summary,
)
from ledger.runtime.tasks.failure_domain import contained_failures

INSIDE = "replication_"  # in front of the names of auto-recovery in the process of a bookie
_STATM = Path("/proc/self/statm")


def metrics_text(admin: Admin) -> str:
    """All measurements."""
    return _text(_metrics(admin))


def auto_recovery_metrics_text(stats: AutoRecoveryStats) -> str:
    """The measurements of a process of auto-recovery that is no bookie; as Apache's, without the prefix."""
    return _text([*_auditor(stats.auditor, ""), *_worker(stats, ""), *_process()])


def _text(metrics: Iterable[Metric]) -> str:
    return exposition(attrs.evolve(metric, help=help_of(metric.name)) for metric in metrics)


def _metrics(admin: Admin) -> Iterator[Metric]:
    yield from _health(admin)
    yield from _directories(admin)
    yield from _requests(admin)
    yield from _durations(admin)
    yield from _long_polls(admin)
    storage = admin.service.storage
    yield from _journals(storage)
    yield from _storage(storage)
    yield from _scrubbers(storage)
    yield from _losses(admin)
    yield from _garbage(admin)
    if admin.auto_recovery is not None:
        yield from _auditor(admin.auto_recovery.auditor, INSIDE)
        yield from _worker(admin.auto_recovery, INSIDE)
    yield from _contained()
    yield from _process()


def _contained() -> Iterator[Metric]:
    """Errors that ended one connection, one ledger's work or one round, and not the bookie."""
    found = sorted(
        ({"connection": 0} | contained_failures).items()
    )  # never without a series, so that a rate has a start
    labels = [f'operation="{quoted(operation)}"' for operation, _ in found]
    yield _each("bookie_contained_failures_total", "counter", labels, [count for _, count in found])


def _each(name: str, kind: str, labels: Iterable[str], values: Iterable[float]) -> Metric:
    series = zip(labels, values, strict=True)
    return Metric(name, kind, tuple((f"{{{label}}}", value) for label, value in series))


def _summary(name: str, latencies: Iterable[tuple[str, Latency]]) -> Metric:
    """``latencies``: each with its labels."""
    now_s = trio.current_time()
    return summary(
        name,
        [Summary(labels, tuple(one.quantiles(now_s)), one.count, one.sum_s) for labels, one in latencies],
    )


def _health(admin: Admin) -> Iterator[Metric]:
    storage = admin.service.storage
    writable = admin.service.rights.writable
    directories = len(storage.collectors)
    usage = storage.disk_usage()
    yield gauge("bookie_SERVER_STATUS", (1 if writable else 0) if admin.is_ready else -1)
    yield gauge("bookie_ledger_num_dirs", directories)
    yield gauge("bookie_ledger_writable_dirs", directories if writable else 0)
    yield gauge("bookie_disk_total_bytes", usage.total_bytes)
    yield gauge("bookie_disk_free_bytes", usage.free_bytes)
    if admin.server is not None:
        yield gauge("bookie_connections", admin.server.connections_count)
    if admin.recovery is not None:
        yield gauge("bookie_recovery_running", int(admin.recovery.is_running))
        yield gauge("bookie_recovery_ledgers_moved", admin.recovery.moved)
        yield gauge("bookie_recovery_ledgers_left", len(admin.recovery.left))


def _directories(admin: Admin) -> Iterator[Metric]:
    storage = admin.service.storage
    stores, collectors = storage.stores, admin.garbage.collectors
    usages = storage.disk_usages()
    for store, usage in zip(stores, usages, strict=True):
        # Apache's name has the configured directory, the parent of `current`.
        name = re.sub("[^A-Za-z0-9_]", "_", str(store.directory.parent))
        yield gauge(f"bookie_ledger_dir_{name}_usage", 100 * _used(usage))
    full = admin.watch.full_share
    at = [f'ledgerDir="{quoted(str(store.directory))}"' for store in stores]
    yield _each("bookie_ledger_dir_total_bytes", "gauge", at, [usage.total_bytes for usage in usages])
    yield _each("bookie_ledger_dir_free_bytes", "gauge", at, [usage.free_bytes for usage in usages])
    yield _each("bookie_ledger_dir_has_space", "gauge", at, [int(_used(usage) < full) for usage in usages])
    logs_bytes = [collector.stats.total_bytes for collector in collectors]
    yield _each("bookie_ledger_dir_entry_log_bytes", "gauge", at, logs_bytes)
    usages = storage.journal_usages()
    at = [f'journalDir="{quoted(str(files.directory))}"' for files in storage.journals.files]
    yield _each("bookie_journal_dir_total_bytes", "gauge", at, [usage.total_bytes for usage in usages])
    yield _each("bookie_journal_dir_free_bytes", "gauge", at, [usage.free_bytes for usage in usages])


def _used(usage: DiskUsage) -> float:
    return 1 - usage.free_bytes / usage.total_bytes if usage.total_bytes else 1.0


def _operation(name: str, done: Latency, not_done: Latency) -> Metric:
    return _summary(name, [('success="false"', not_done), ('success="true"', done)])


def _requests(admin: Admin) -> Iterator[Metric]:
    work = admin.service.in_progress
    deferred = work.deferred
    yield _operation("bookkeeper_server_ADD_ENTRY_REQUEST", work.added, work.not_added)
    yield _operation("bookkeeper_server_READ_ENTRY_REQUEST", *deferred.reads)
    yield _operation("bookkeeper_server_READ_ENTRY_FENCE_WAIT", work.fenced, work.not_fenced)
    yield _operation("bookkeeper_server_READ_ENTRY_FENCE_READ", *deferred.fencing_reads)
    yield gauge("bookkeeper_server_ADD_ENTRY_IN_PROGRESS", work.adds)
    yield gauge("bookkeeper_server_READ_ENTRY_IN_PROGRESS", work.reads)
    yield counter("bookkeeper_server_ADD_ENTRY_REJECTED", work.refused_adds)
    yield counter("bookkeeper_server_READ_ENTRY_REJECTED", work.refused_reads)


def _durations(admin: Admin) -> Iterator[Metric]:
    """What the summaries have too, in a form that can be added over bookies."""
    work = admin.service.in_progress
    syncs = [journal.syncs for journal in admin.service.storage.journals.all]
    yield _histogram("bookie_add_duration_seconds", [work.added])
    yield _histogram("bookie_read_duration_seconds", [work.deferred.reads[0]])
    yield _histogram("bookie_journal_sync_duration_seconds", syncs)


def _histogram(name: str, latencies: Sequence[Latency]) -> Metric:
    counts = [sum(each) for each in zip(*(one.histogram() for one in latencies), strict=True)]
    return histogram(name, HISTOGRAM_BOUNDS_S, counts, sum(one.sum_s for one in latencies))


def _long_polls(admin: Admin) -> Iterator[Metric]:
    watches = admin.service.watches
    prefix = "bookkeeper_server_READ_ENTRY_LONG_POLL"
    yield _operation(f"{prefix}_WAIT", watches.woken_waits, watches.ended_waits)
    yield _operation(f"{prefix}_READ", *admin.service.in_progress.deferred.long_polls)
    yield gauge("bookie_long_polls", watches.long_polls)


def _losses(admin: Admin) -> Iterator[Metric]:
    yield gauge("bookie_limbo_ledgers", admin.service.storage.limbo_count)
    yield counter("bookie_limbo_unknown_replies", admin.service.in_progress.unknown_replies)
    if admin.integrity is not None:
        yield gauge("bookie_limbo_lost_entries", sum(admin.integrity.entries_lost.values()))
        yield counter("bookie_limbo_copied_entries_total", admin.integrity.entries_copied)
        yield counter("bookie_limbo_copied_bytes_total", admin.integrity.bytes_copied)
    if admin.healing is not None:
        yield counter("bookie_healing_attempts", admin.healing.attempts)
        yield counter("bookie_healing_entries", admin.healing.healed)
        yield counter("bookie_healing_index_pages", admin.healing.healed_pages)


def _journals(storage: Storage) -> Iterator[Metric]:
    journals = storage.journals.all
    labels = [f'journalIndex="{number}"' for number in range(len(journals))]

    def each(name: str, kind: str, values: Iterable[float]) -> Metric:
        return Metric(
            f"bookie_journal_{name}",
            kind,
            tuple((f"{{{label}}}", value) for label, value in zip(labels, values, strict=True)),
        )

    yield gauge("bookie_JOURNAL_DIRS", len(journals))
    yield _summary(
        "bookie_journal_JOURNAL_SYNC",
        [(f'{label},success="true"', one.syncs) for label, one in zip(labels, journals, strict=True)],
    )
    yield _summary(
        "bookie_journal_JOURNAL_ADD_ENTRY",
        [(f'{label},success="true"', one.adds) for label, one in zip(labels, journals, strict=True)],
    )
    yield each("JOURNAL_QUEUE_SIZE", "gauge", [one.waiting_count for one in journals])
    yield each("JOURNAL_MEMORY_USED", "gauge", [one.queued_bytes for one in journals])
    yield each("JOURNAL_WRITE_BYTES", "counter", [one.written_bytes for one in journals])
    yield counter("bookie_WRITE_BYTES", sum(one.written_bytes for one in journals))


def _storage(storage: Storage) -> Iterator[Metric]:
    checkpointer = storage.checkpointer
    caches = [(str(store.directory), store.reads.read_cache) for store in storage.stores]

    def each(name: str, kind: str, values: Iterable[float]) -> Metric:
        labelled = zip(caches, values, strict=True)
        return Metric(
            name, kind, tuple((f'{{ledgerDir="{quoted(at)}"}}', value) for (at, _), value in labelled)
        )

    yield gauge("bookie_write_cache_size", checkpointer.active_bytes + checkpointer.sealed_bytes)
    yield each("bookie_read_cache_size", "gauge", [cache.size_bytes for _, cache in caches])
    yield each("bookie_read_cache_hits", "counter", [cache.hits for _, cache in caches])
    yield each("bookie_read_cache_misses", "counter", [cache.misses for _, cache in caches])
    yield gauge("bookie_ledgers_count", storage.ledgers_count)
    yield counter("bookie_READ_BYTES", storage.read_bytes)
    yield counter("bookie_throttled_write_requests", storage.capacity_waits)
    flushes: list[tuple[str, Latency]] = []
    for store in storage.stores:
        label = f'ledgerDir="{quoted(str(store.directory))}"'
        flushes.append((f'{label},success="false"', store.failed_flushes))
        flushes.append((f'{label},success="true"', store.flushes))
    yield _summary("bookie_flush", flushes)


def _scrubbers(storage: Storage) -> Iterator[Metric]:
    scrubbers = [store.scrubber for store in storage.stores]
    stats = [one.stats for one in scrubbers]
    yield counter("bookie_scrub_rounds", sum(one.rounds for one in stats))
    yield counter("bookie_scrub_entries", sum(one.entries for one in stats))
    yield counter("bookie_scrub_bytes", sum(one.bytes for one in stats))
    yield counter("bookie_scrub_damaged_entries", sum(one.damaged for one in stats))
    yield gauge("bookie_scrub_unreadable_index_ledgers", sum(len(one.unreadable) for one in scrubbers))


def _garbage(admin: Admin) -> Iterator[Metric]:
    state, collectors = admin.garbage.state, admin.garbage.collectors
    stats = [collector.stats for collector in collectors]
    yield gauge("bookie_gc_ACTIVE_LEDGER_TOTAL", admin.service.storage.ledgers_count)
    yield gauge("bookie_gc_ACTIVE_ENTRY_LOG_TOTAL", sum(one.logs for one in stats))
    yield gauge("bookie_gc_ENTRY_LOG_SPACE_BYTES", sum(one.total_bytes for one in stats))
    yield gauge("bookie_gc_ACTIVE_ENTRY_LOG_SPACE_BYTES", sum(one.live_bytes for one in stats))
    yield gauge("bookie_gc_QUARANTINED_ENTRY_LOG_TOTAL", sum(len(one.quarantined) for one in stats))
    yield counter("bookie_gc_DELETED_LEDGER_TOTAL", state.deleted_ledgers)
    yield counter("bookie_gc_MAJOR_COMPACTION_TOTAL", state.major_compactions)
    yield counter("bookie_gc_MINOR_COMPACTION_TOTAL", state.minor_compactions)
    yield counter("bookie_gc_RECLAIMED_DELETION_SPACE_BYTES", sum(one.deleted_bytes for one in stats))
    reclaimed = sum(max(0, one.compacted_bytes - one.copied_bytes) for one in stats)
    yield counter("bookie_gc_RECLAIMED_COMPACTION_SPACE_BYTES", reclaimed)
    yield counter("bookie_gc_RECLAIM_FAILED_TO_DELETE", sum(one.failures for one in stats))


def _sums(name: str, *series: tuple[str, int, float]) -> Metric:
    """An operation without quantiles. ``series``: ``success``, count, sum."""
    lines: list[tuple[str, float]] = []
    for success, count, total in series:
        lines += [(f'_count{{success="{success}"}}', count), (f'_sum{{success="{success}"}}', total)]
    return Metric(name, "summary", tuple(lines))


def _auditor(stats: AuditorStats, prefix: str) -> Iterator[Metric]:
    scope = f"{prefix}auditor"
    yield _sums(f"{scope}_NUM_UNDER_REPLICATED_LEDGERS", ("true", stats.audits, stats.audit_marks))
    for name, count, total_s in (
        ("AUDIT_BOOKIES_TIME", stats.audits, stats.audit_s),
        ("CHECK_ALL_LEDGERS_TIME", stats.ledger_checks, stats.ledger_check_s),
        ("PLACEMENT_POLICY_CHECK_TIME", stats.placement_checks, stats.placement_check_s),
        ("REPLICAS_CHECK_TIME", stats.replicas_checks, stats.replicas_check_s),
    ):
        yield _sums(f"{scope}_{name}", ("true", count, total_s * 1000))
    yield counter(f"{scope}_NUM_BOOKIE_AUDITS_DELAYED", stats.audits_delayed)
    yield counter(f"{scope}_NUM_DELAYED_BOOKIE_AUDITS_CANCELLED", stats.audits_cancelled)
    yield counter(f"{scope}_ledgers_marked", stats.ledgers_marked)
    if (placement := stats.placement) is not None:
        yield gauge(f"{scope}_NUM_LEDGERS_NOT_ADHERING_TO_PLACEMENT_POLICY", placement.bad)
        overdue = f"{scope}_NUM_UNDERREPLICATED_LEDGERS_ELAPSED_RECOVERY_GRACE_PERIOD"
        yield gauge(overdue, placement.overdue)
    if (replicas := stats.replicas) is not None:
        having = f"{scope}_NUM_LEDGERS_HAVING"
        yield gauge(f"{having}_NO_REPLICA_OF_AN_ENTRY", replicas.without_replica)
        yield gauge(f"{having}_LESS_THAN_AQ_REPLICAS_OF_AN_ENTRY", replicas.below_ack_quorum)
        yield gauge(f"{having}_LESS_THAN_WQ_REPLICAS_OF_AN_ENTRY", replicas.below_write_quorum)


def _worker(stats: AutoRecoveryStats, prefix: str) -> Iterator[Metric]:
    scope, worker, copies = f"{prefix}replication_worker", stats.worker, stats.copies
    yield _sums(
        f"{scope}_rereplicate",
        ("false", worker.attempts_unfinished, worker.unfinished_s * 1000),
        ("true", worker.ledgers_restored, worker.restored_s * 1000),
    )
    yield counter(f"{scope}_NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED", worker.ledgers_copied)
    yield counter(f"{scope}_NUM_ENTRIES_WRITTEN", copies.entries_copied)
    yield _sums(f"{scope}_NUM_BYTES_WRITTEN", ("true", copies.entries_copied, copies.bytes_copied))
    yield counter(f"{scope}_fragments_copied", copies.fragments_copied)
    yield counter(f"{scope}_ledgers_closed", copies.ledgers_closed)
    yield counter(f"{scope}_copied_entries_total", copies.entries_copied)
    yield counter(f"{scope}_copied_bytes_total", copies.bytes_copied)


def _process() -> Iterator[Metric]:
    yield counter("process_cpu_seconds_total", time.process_time())
    pages = _STATM.read_text("ascii").split()[1]
    yield gauge("process_resident_memory_bytes", int(pages) * os.sysconf("SC_PAGE_SIZE"))
