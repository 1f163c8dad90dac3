"""``/metrics``: the text format of Prometheus, with the names of Apache's bookie.

Source: BookKeeperServerStats.java, GarbageCollectorStats.java; docs/http.md.
"""

from __future__ import annotations

from collections.abc import Iterator

from bookie.http.admin import Admin


def metrics_text(admin: Admin) -> str:
    """All measurements."""
    return "".join(f"# TYPE {name} {kind}\n{name} {value}\n" for name, kind, value in _measurements(admin))


def _measurements(admin: Admin) -> Iterator[tuple[str, str, float]]:
    state, collectors = admin.garbage.state, admin.garbage.collectors
    stats = [collector.stats for collector in collectors]
    writable = admin.service.rights.writable
    usage = admin.service.storage.disk_usage()
    yield "bookie_SERVER_STATUS", "gauge", (1 if writable else 0) if admin.is_ready else -1
    yield "bookie_ledger_num_dirs", "gauge", len(collectors)
    yield "bookie_ledger_writable_dirs", "gauge", len(collectors) if writable else 0
    yield "bookie_disk_total_bytes", "gauge", usage.total_bytes
    yield "bookie_disk_free_bytes", "gauge", usage.free_bytes
    yield "bookie_gc_ACTIVE_LEDGER_TOTAL", "gauge", len(admin.service.storage.ledger_ids())
    yield "bookie_gc_ACTIVE_ENTRY_LOG_TOTAL", "gauge", sum(one.logs for one in stats)
    yield "bookie_gc_ENTRY_LOG_SPACE_BYTES", "gauge", sum(one.total_bytes for one in stats)
    yield "bookie_gc_ACTIVE_ENTRY_LOG_SPACE_BYTES", "gauge", sum(one.live_bytes for one in stats)
    yield "bookie_gc_QUARANTINED_ENTRY_LOG_TOTAL", "gauge", sum(len(one.quarantined) for one in stats)
    yield "bookie_gc_DELETED_LEDGER_TOTAL", "counter", state.deleted_ledgers
    yield "bookie_gc_MAJOR_COMPACTION_TOTAL", "counter", state.major_compactions
    yield "bookie_gc_MINOR_COMPACTION_TOTAL", "counter", state.minor_compactions
    deleted = sum(one.deleted_bytes for one in stats)
    yield "bookie_gc_RECLAIMED_DELETION_SPACE_BYTES", "counter", deleted
    reclaimed = sum(max(0, one.compacted_bytes - one.copied_bytes) for one in stats)
    yield "bookie_gc_RECLAIMED_COMPACTION_SPACE_BYTES", "counter", reclaimed
    yield "bookie_gc_RECLAIM_FAILED_TO_DELETE", "counter", sum(one.failures for one in stats)
