"""One task of a copy: the records of a range of the source, in a segment that no log names yet.

Always: a task returns all records of its range or fails; a task that fails or runs again leaves nothing in
any log.
"""

from __future__ import annotations

import attrs

import dlog
import dlog.blocking
from dlog.bulk import BatchPlan, DetachedSegment
from spark_integration.client import with_namespace_once
from spark_integration.errors import RangeUnreadableError
from spark_integration.pipelines.places import Place
from spark_integration.planning import Range

RECORDS_MAX = 8_192  # of one read


@attrs.frozen(kw_only=True)
class CopyTask:
    """A part of a step. It can be pickled."""

    source: Place
    log: str
    range: Range
    target: Place
    into: str
    plan: BatchPlan


@attrs.frozen(kw_only=True)
class CopiedPart:
    """The result of a task. It can be pickled."""

    segment: DetachedSegment | None = None  # None: the range has no records
    sequence: int | None = None  # the records of the source through the last one of the part
    error: str | None = None  # why the part cannot be copied; another attempt would fail as well


def copy_part(task: CopyTask) -> CopiedPart:
    """Copy the records of a range with their transaction ids.

    Raises:
        dlog.DLogError: Bookies or a metadata store are out of reach; Spark runs the task again.
    """
    try:
        return with_namespace_once(
            task.target.uri, task.target.client, lambda namespace: _copy(namespace, task)
        )
    except (dlog.LogUnavailableError, dlog.LogReaderStalledError, RangeUnreadableError):
        raise
    except dlog.DLogError as exc:
        return CopiedPart(error=str(exc))


def _copy(target: dlog.blocking.Namespace, task: CopyTask) -> CopiedPart:
    sequence = None
    with target.batches.open_segment(task.plan, task.into) as writer:
        for batch in task.source.log(task.log).read_range(task.range, records_max=RECORDS_MAX):
            keys, headers = (batch.keys(), batch.headers()) if batch.has_attributes else (None, None)
            writer.append_many(list(batch.payloads()), txids=batch.txids, keys=keys, headers=headers)
            sequence = batch.sequence_ids[-1] + 1
    return CopiedPart(segment=writer.result, sequence=sequence)
