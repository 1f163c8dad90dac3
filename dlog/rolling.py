"""When a log segment ends and the next one begins.

Inside: the rule. Not inside: doing it (``log_writer``).
Always: a segment without a user record is never rolled; one is, long before its records have more positions
than the format can number.

Source: DistributedLog, SizeBasedRollingPolicy.java, TimeBasedRollingPolicy.java. There a time limit switches
the size limit off; here either of them ends a segment, so that no ledger grows without bound on a busy log.
"""

from __future__ import annotations

from dlog.record import POSITION_MAX

# Half of what there is: records go on coming while a roll is prepared, or is tried again.
RECORDS_MAX = POSITION_MAX // 2


def should_roll(
    *,
    record_count: int,
    size_bytes: int,
    age_s: float,
    segment_bytes_max: int | None,
    segment_age_s_max: float | None,
) -> bool:
    """Whether the segment is full: more bytes, or older, than its limit, or ``RECORDS_MAX`` records.
    None means no such limit."""
    if record_count == 0:
        return False
    if record_count >= RECORDS_MAX:
        return True
    if segment_bytes_max is not None and size_bytes >= segment_bytes_max:
        return True
    return segment_age_s_max is not None and age_s >= segment_age_s_max
