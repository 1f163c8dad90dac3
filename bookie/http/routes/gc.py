"""The garbage collection: force it, suspend and resume compaction, show its work.

Source: TriggerGCService.java, SuspendCompactionService.java, ResumeCompactionService.java,
GCDetailsService.java; docs/metadata.md 17.
"""

from __future__ import annotations

from typing import Any

import trio

from bookie.gc.compaction_rules import CompactionLevel
from bookie.http.admin import Admin
from bookie.http.messages import AdminReply, AdminRequest, BadRequestError, Method, json_reply, text_of
from bookie.http.router import Route, get, put


async def trigger(admin: Admin, request: AdminRequest) -> AdminReply:
    """``PUT gc``: start a round now; without a body with every compaction that is not suspended."""
    if request.body:
        minor, major = request.flag("forceMinor"), request.flag("forceMajor")
        admin.garbage.force(minor=bool(minor), major=bool(major))
    else:
        admin.garbage.force()
    return json_reply(f"Triggered GC on BookieServer: {admin.bookie_id}")


async def status(admin: Admin, request: AdminRequest) -> AdminReply:
    """``GET gc``."""
    return json_reply({"is_in_force_gc": text_of(admin.garbage.state.is_forced)})


async def details(admin: Admin, request: AdminRequest) -> AdminReply:
    """``GET gc_details``: one object for each ledger directory: Apache's fields, then our own."""
    state = admin.garbage.state
    found: list[dict[str, Any]] = []
    for collector in admin.garbage.collectors:
        stats = collector.stats
        found.append(
            {
                "forceCompacting": state.is_forced,
                "majorCompacting": stats.running is CompactionLevel.MAJOR,
                "minorCompacting": stats.running is CompactionLevel.MINOR,
                "lastMajorCompactionTime": _wall_ms(admin, state.last_major_s),
                "lastMinorCompactionTime": _wall_ms(admin, state.last_minor_s),
                "lastEntryLocationCompactionTime": 0,
                "majorCompactionCounter": state.major_compactions,
                "minorCompactionCounter": state.minor_compactions,
                "entryLocationCompactionCounter": 0,
                "directory": str(collector.directory),
                "collecting": state.is_running,
                "entryLogs": stats.logs,
                "entryLogBytes": stats.total_bytes,
                "liveBytes": stats.live_bytes,
                "deletedBytes": stats.deleted_bytes,
                "compactedBytes": stats.compacted_bytes,
                "copiedBytes": stats.copied_bytes,
                "quarantined": {f"{log_id:x}.log": why for log_id, why in stats.quarantined.items()},
                "failures": stats.failures,
                "lastFailure": stats.last_failure or state.last_failure,
            }
        )
    return json_reply(found)


async def suspend(admin: Admin, request: AdminRequest) -> AdminReply:
    """``PUT gc/suspend_compaction``."""
    minor, major = _one_at_least(request, "suspendMinor", "suspendMajor")
    admin.garbage.suspend(minor=minor, major=major)
    levels = f"majorGC {text_of(major)}, minorGC {text_of(minor)}"
    return json_reply(f"Suspend {levels} on BookieServer: {admin.bookie_id}")


async def resume(admin: Admin, request: AdminRequest) -> AdminReply:
    """``PUT gc/resume_compaction``."""
    minor, major = _one_at_least(request, "resumeMinor", "resumeMajor")
    admin.garbage.resume(minor=minor, major=major)
    levels = f"majorGC {text_of(major)}, minorGC {text_of(minor)}"
    return json_reply(f"Resume {levels} on BookieServer: {admin.bookie_id}")


async def suspended(admin: Admin, request: AdminRequest) -> AdminReply:
    """``GET gc/suspend_compaction``."""
    minor, major = admin.garbage.suspended()
    return json_reply({"isMajorGcSuspended": text_of(major), "isMinorGcSuspended": text_of(minor)})


def _one_at_least(request: AdminRequest, minor: str, major: str) -> tuple[bool, bool]:
    flags = bool(request.flag(minor)), bool(request.flag(major))
    if not any(flags):
        raise BadRequestError(f"expected {major} or {minor}, or both, to be true")
    return flags


def _wall_ms(admin: Admin, at_s: float | None) -> int:
    """A time on the loop's clock as milliseconds since 1970; 0 for never."""
    return 0 if at_s is None else admin.wall_ms() - round((trio.current_time() - at_s) * 1000)


ROUTES = (
    Route("/api/v1/bookie/gc", {Method.GET: status, Method.PUT: trigger}),
    get("/api/v1/bookie/gc_details", details),
    Route("/api/v1/bookie/gc/suspend_compaction", {Method.GET: suspended, Method.PUT: suspend}),
    put("/api/v1/bookie/gc/resume_compaction", resume),
)
