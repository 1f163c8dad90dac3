"""The next step of a copy: the ranges that tasks copy at the same time, and that are attached together.

Pure. Always: the parts of a step are in order, do not overlap, and cover the range from its start up to the
end of the last part.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_integration.planning import Piece, Range, StreamRange, split, total

PART_BYTES = 64 << 20  # of one task and one segment of the copy, as stored
PARTS_MAX = 64  # of one step of one log


def next_parts(whole: Range, measured: Sequence[Piece], *, part_bytes: int, parts_max: int) -> list[Range]:
    """The parts of the next step, in order; empty if there is nothing to copy.

    Args:
        measured: The pieces of the range.
        part_bytes: About the size of a part.
        parts_max: The step has at most this many. The rest of the range is left to the next step.
    """
    if whole.is_empty:
        return []
    count = 1 + max(0, total(measured).size_bytes - 1) // part_bytes
    cut = split([(StreamRange("", whole), measured)], count)
    return [each.range for partition in cut for each in partition][:parts_max]


def parts_per_log(logs: int, cores: int) -> int:
    """How many parts of each log a step has, so that all cores are busy while few logs are left."""
    return max(1, min(PARTS_MAX, -(-4 * cores // max(1, logs))))
