"""When a log segment ends and the next one begins.

Inside: the rule. Not inside: rolling itself (``segment_roller``).
Always: a segment without a user record is never rolled; a segment is rolled long before its records need more
positions than the format can number.

Source: DistributedLog, SizeBasedRollingPolicy.java, TimeBasedRollingPolicy.java. There, a time limit disables
the size limit. Here either limit ends a segment, so that no ledger of a busy log grows without bound.
"""

from __future__ import annotations

from dlog.format.record import POSITION_MAX

# Half of the limit: records are written while a roll is prepared or tried again.
RECORDS_MAX = POSITION_MAX // 2


def should_roll(
    *,
    record_count: int,
    size_bytes: int,
    age_s: float,
    segment_bytes_max: int | None,
    segment_age_s_max: float | None,
    lacks_bookies: bool = False,
) -> bool:
    """True if the segment reaches a limit: bytes, age, or ``RECORDS_MAX`` records. None means no limit.

    Args:
        lacks_bookies: It is on fewer bookies than asked, and a full ensemble is there.
    """
    if record_count == 0:
        return False
    if record_count >= RECORDS_MAX or lacks_bookies:
        return True
    if segment_bytes_max is not None and size_bytes >= segment_bytes_max:
        return True
    return segment_age_s_max is not None and age_s >= segment_age_s_max
