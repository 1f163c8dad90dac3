"""When a bookie is too full to take writes, and when it is not any more.

Inside: the rule. Not inside: measuring, and what follows (``disk_watch``).
Always: what made a bookie read-only un-makes it, at a lower mark; so it neither flaps nor stays so for ever.

Source: LedgerDirsMonitor.java, DiskChecker.java; reference on operations 2.6 and 5.8; apache/bookkeeper#4640.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs


@attrs.frozen(kw_only=True)
class FullnessConfig:
    """Marks for the share of a disk that is used, 0 to 1."""

    full: float = 0.95
    warn: float = 0.90
    low: float = 0.95  # below it a bookie that was full takes writes again
    any_disk: bool = True  # one full disk is enough
    high_priority_bytes_min: int = 1_073_741_824  # free, for recovery's writes on a read-only bookie
    index_file_bytes_min: int = 104_857_600  # free, for the index of a ledger that recovery brings
    flush_bytes_min: int = 134_217_728  # free on each disk, for what the write cache holds
    reserve_bytes: int = 100_663_296  # kept back on each disk for flushing and starting when it is full
    check_interval_s: float = 10.0
    may_be_read_only: bool = True  # False: stop instead


@attrs.frozen
class Fullness:
    """What the disks allow."""

    writable: bool
    high_priority_writable: bool
    is_near: bool  # past the warning mark
    used: tuple[float, ...] = ()  # share of each disk


def judge(disks: Sequence[tuple[int, int]], *, was_writable: bool, config: FullnessConfig) -> Fullness:
    """Look at the ledger disks: (total bytes, free bytes) of each."""
    assert disks
    used = [1 - free / total if total else 1.0 for total, free in disks]
    mark = config.full if was_writable else config.low
    full = [share >= mark for share in used]
    # A ledger's directory is chosen by its id, so that a full disk cannot be passed over: with room for no
    # more than what was accepted already, nothing more may be accepted (apache/pulsar#4346).
    tight = any(free < min(config.flush_bytes_min, total // 20) for total, free in disks)
    writable = not (any(full) if config.any_disk else all(full) or tight)
    room = max(free for _, free in disks) >= max(config.high_priority_bytes_min, config.index_file_bytes_min)
    return Fullness(writable, writable or room, any(share >= config.warn for share in used), tuple(used))
