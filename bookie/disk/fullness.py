"""When a bookie becomes read-only because its disks are full, and when it becomes writable again.

Inside: the rule. Not inside: measuring the disks and switching the bookie's state (``disk_watch``).
Always: the same measurement makes a bookie read-only, and makes it writable again below a lower mark. So the
state does not flap, and the bookie does not stay read-only for ever.

Source: LedgerDirsMonitor.java, DiskChecker.java; docs/storage-format.md 10.1; apache/bookkeeper#4640.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs


@attrs.frozen(kw_only=True)
class FullnessConfig:
    """Marks for the used share of a disk, 0 to 1."""

    full: float = 0.95
    warn: float = 0.90
    low: float = 0.95  # below this mark a full bookie becomes writable again
    any_disk: bool = True  # one full disk makes the bookie read-only; False: all must be full
    high_priority_bytes_min: int = 1_073_741_824  # free space for recovery's writes on a read-only bookie
    index_file_bytes_min: int = 104_857_600  # free space for the index of a ledger that recovery adds
    flush_bytes_min: int = 134_217_728  # free space on each disk for the content of the write cache
    reserve_bytes: int = 100_663_296  # reserved on each disk for flushing and starting when it is full
    check_interval_s: float = 10.0
    may_be_read_only: bool = True  # False: a full bookie stops instead


@attrs.frozen
class Fullness:
    """Which writes the disks allow."""

    writable: bool
    high_priority_writable: bool
    is_near: bool  # at least one disk is above the warning mark
    used: tuple[float, ...] = ()  # share of each disk


def evaluate_fullness(
    disks: Sequence[tuple[int, int]], *, was_writable: bool, config: FullnessConfig
) -> Fullness:
    """Which writes are allowed, given (total bytes, free bytes) of each ledger disk."""
    assert disks  # one for each ledger directory, of which ``StorageConfig`` has at least one
    used = [1 - free / total if total else 1.0 for total, free in disks]
    mark = config.full if was_writable else config.low
    full = [share >= mark for share in used]
    # The ledger id determines the directory, so a write cannot go to another disk. When the free space only
    # suffices for the writes already accepted, no more may be accepted (apache/pulsar#4346).
    tight = any(free < min(config.flush_bytes_min, total // 20) for total, free in disks)
    writable = not (any(full) if config.any_disk else all(full) or tight)
    free_bytes_min = max(config.high_priority_bytes_min, config.index_file_bytes_min)
    has_space = max(free for _, free in disks) >= free_bytes_min
    return Fullness(writable, writable or has_space, any(share >= config.warn for share in used), tuple(used))
