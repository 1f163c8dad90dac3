"""One task of a verification: a range of entries of one segment, on all of their replicas."""

from __future__ import annotations

import attrs

import dlog
from dlog import EntryVerification, SegmentDescription
from spark_integration.pipelines.places import Place

ENTRIES_MAX = 1_024  # of one task


@attrs.frozen(kw_only=True)
class VerifyTask:
    """A part of a segment. It can be pickled."""

    place: Place
    log: str
    segment: int
    first: int
    last: int | None  # inclusive; None: the end of the ledger


@attrs.frozen(kw_only=True)
class VerifiedPart:
    """The result of a task. It can be pickled."""

    found: EntryVerification | None = None
    error: str | None = None  # why the part cannot be verified; another attempt would fail as well


def tasks_of(
    place: Place, log: str, segment: SegmentDescription, entries_max: int = ENTRIES_MAX
) -> list[VerifyTask]:
    """A segment as tasks. The last one has the end of the ledger, wherever that is."""
    starts = range(0, max(1, segment.last_entry_id + 1), entries_max)
    return [
        VerifyTask(
            place=place,
            log=log,
            segment=segment.segment_seqno,
            first=first,
            last=None if first == starts[-1] else first + entries_max - 1,
        )
        for first in starts
    ]


def verify_part(task: VerifyTask) -> VerifiedPart:
    """Verify a part of a segment.

    Raises:
        dlog.LogUnavailableError: The metadata store is out of reach; Spark runs the task again.
    """
    try:
        return VerifiedPart(
            found=task.place.call(
                lambda namespace: namespace.repair.verify_entries(
                    task.log, task.segment, first_entry_id=task.first, last_entry_id=task.last
                ),
            )
        )
    except dlog.LogUnavailableError:
        raise
    except dlog.DLogError as exc:
        return VerifiedPart(error=str(exc))
