"""Rules for compaction: which entry logs to compact, which of them together, and when.

Inside: pure rules and their settings. Not inside: their execution (``compactor``, ``log_collector``).
Always: logs with the smallest usage come first. A compaction that would neither free bytes nor reduce the
number of files is not chosen. The live bytes of one bundle fit into one new log, and on the disk.

Usage of a log is the bytes of its ledgers that still exist, divided by all its bytes.

Source: GarbageCollectorThread.java (doCompactEntryLogs, runWithFlags); docs/storage-format.md 9.4.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable

import attrs


class CompactionLevel(enum.Enum):
    """The level of a compaction: major compaction rewrites logs with a higher usage than minor."""

    MINOR = "minor"
    MAJOR = "major"


@attrs.frozen(kw_only=True)
class CompactionConfig:
    """Compaction of one ledger directory. A threshold or interval of 0 or less disables its level."""

    minor_threshold: float = 0.2
    minor_interval_s: float = 3600
    minor_time_max_s: float | None = None  # after this time no further log is started
    major_threshold: float = 0.8
    major_interval_s: float = 86400
    major_time_max_s: float | None = None
    counts_target_size: bool = False  # usage is relative to a full log's size, so small logs are merged
    may_force_disabled: bool = False  # a forced compaction runs even if its level is disabled
    forces_when_full: bool = False  # a full disk forces compaction instead of suspending it
    rate_bytes_per_s: float = attrs.field(default=float(16 << 20), validator=attrs.validators.gt(0))
    rate_entries_per_s: float | None = None  # replaces the rate by bytes
    slice_bytes: int = attrs.field(default=256 << 10, validator=attrs.validators.ge(4096))
    reserve_bytes: int = attrs.field(default=64 << 20, validator=attrs.validators.ge(0))
    reserve_below_bytes: float = math.inf  # a disk with this much free space gets no reserve yet
    flush_reserve_bytes: int = 0  # kept for flushes: what of it was given is not free for a compaction
    pressed_bytes: int = 0  # with less free space every log with dead bytes is rewritten

    def threshold(self, level: CompactionLevel) -> float:
        """Usage below which a log is rewritten."""
        return self.minor_threshold if level is CompactionLevel.MINOR else self.major_threshold

    def threshold_at(self, level: CompactionLevel, free_bytes: int) -> float:
        """As ``threshold``; on a full disk a log is rewritten for any dead byte."""
        return 1.0 if free_bytes < self.pressed_bytes else self.threshold(level)

    def time_max_s(self, level: CompactionLevel) -> float | None:
        """The time limit of one compaction."""
        return self.minor_time_max_s if level is CompactionLevel.MINOR else self.major_time_max_s

    def is_enabled(self, level: CompactionLevel) -> bool:
        """True if compactions of this level are scheduled."""
        interval = self.minor_interval_s if level is CompactionLevel.MINOR else self.major_interval_s
        return self.threshold(level) > 0 and interval > 0


@attrs.frozen
class LogUsage:
    """Live and total bytes of a complete log."""

    log_id: int
    total_bytes: int
    live_bytes: int

    def __attrs_post_init__(self) -> None:
        assert 0 <= self.live_bytes <= self.total_bytes  # ``LogCollector._classify`` compares them


def due_level(
    config: CompactionConfig,
    *,
    since_minor_s: float,
    since_major_s: float,
    is_minor_suspended: bool = False,
    is_major_suspended: bool = False,
    is_minor_forced: bool = False,
    is_major_forced: bool = False,
) -> CompactionLevel | None:
    """The level to compact now, if any: major if it is forced, or due and not suspended; else minor likewise.

    ``since_*_s``: seconds since the last compaction of the level; a major one also counts as a minor one. A
    disabled level is compacted only if forced and ``may_force_disabled``; with a threshold of 0, never.
    """
    for level, since_s, interval_s, is_suspended, is_forced in (
        (CompactionLevel.MAJOR, since_major_s, config.major_interval_s, is_major_suspended, is_major_forced),
        (CompactionLevel.MINOR, since_minor_s, config.minor_interval_s, is_minor_suspended, is_minor_forced),
    ):
        if config.threshold(level) <= 0:
            continue
        if is_forced and (config.is_enabled(level) or config.may_force_disabled):
            return level
        if config.is_enabled(level) and since_s >= interval_s and not is_suspended:
            return level
    return None


def usage_share(log: LogUsage, target_bytes: int = 0) -> float:
    """The live share of the log; with ``target_bytes``, relative to a log of at least that size."""
    return log.live_bytes / max(log.total_bytes, target_bytes, 1)


def choose_bundles(
    logs: Iterable[LogUsage],
    *,
    threshold: float,
    log_bytes_max: int,
    free_bytes: int,
    target_bytes: int = 0,
) -> list[tuple[int, ...]]:
    """Ids of the logs to rewrite, smallest usage first. The logs of one bundle go into one new log.

    Args:
        threshold: Logs with a smaller usage are rewritten.
        log_bytes_max: Live bytes that fit into one log.
        free_bytes: Bytes that one bundle may add to the disk before its sources are deleted.
        target_bytes: See ``usage_share``; 0: not used.
    """
    fits_bytes = min(log_bytes_max, free_bytes)
    candidates = [
        log for log in logs if usage_share(log, target_bytes) < threshold and log.live_bytes <= fits_bytes
    ]
    candidates.sort(key=lambda log: (usage_share(log, target_bytes), log.log_id))
    bundles: list[list[LogUsage]] = []
    filled_bytes = 0
    for log in candidates:
        if not bundles or filled_bytes + log.live_bytes > fits_bytes:
            bundles.append([])
            filled_bytes = 0
        bundles[-1].append(log)
        filled_bytes += log.live_bytes
    return [tuple(log.log_id for log in bundle) for bundle in bundles if _is_worthwhile(bundle, threshold)]


def _is_worthwhile(bundle: list[LogUsage], threshold: float) -> bool:
    live = sum(log.live_bytes for log in bundle)
    if live < threshold * sum(log.total_bytes for log in bundle):
        return True
    # Merging small logs that are full. The result must be at least twice the greatest of them. Then each time
    # a byte is rewritten, its log has doubled; otherwise a growing log would be rewritten for each small one.
    return len(bundle) > 1 and live >= 2 * max(log.live_bytes for log in bundle)
