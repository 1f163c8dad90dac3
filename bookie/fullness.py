"""When a bookie is too full to take writes, and when it is not any more.

Inside: the rule. Not inside: measuring, and what follows (``run``).
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
    check_interval_s: float = 10.0
    may_be_read_only: bool = True  # False: stop instead


@attrs.frozen
class Fullness:
    """What the disks allow."""

    writable: bool
    high_priority_writable: bool
    is_near: bool  # past the warning mark


def judge(disks: Sequence[tuple[int, int]], *, was_writable: bool, config: FullnessConfig) -> Fullness:
    """Look at the ledger disks: (total bytes, free bytes) of each."""
    assert disks
    used = [1 - free / total if total else 1.0 for total, free in disks]
    mark = config.full if was_writable else config.low
    full = [share >= mark for share in used]
    writable = not (any(full) if config.any_disk else all(full))
    room = max(free for _, free in disks) >= config.high_priority_bytes_min
    return Fullness(writable, writable or room, any(share >= config.warn for share in used))
