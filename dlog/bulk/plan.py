"""The values of a batch: what its writers need to know, what they return, what attaching gives.

Inside: plain values that can be pickled and sent to other processes. Not inside: ledgers, nodes.
Always: the plan names the state of each log that the batch may follow, and no other.

Source: our own; docs/bulk.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from dlog.format.dlsn import DLSN
from dlog.metadata.log_metadata import LogMetadata
from dlog.metadata.segment import LogSegment, start_sequence_id_after

PROPERTY_PREFIX = "dlog.batch."  # of the property that holds the number of the last batch of a series
SEGMENTS_MAX = 1_000  # in one transaction; ZooKeeper takes 1 MiB


@attrs.frozen(kw_only=True)
class LogPlan:
    """What a batch may follow in one log."""

    txid: int  # of every record of the batch in this log
    allocation_created_ms: int  # tells this log from another one of its name
    versions: tuple[int, int, int]  # of the nodes maxtxid, ledgers, allocation

    @classmethod
    def of(cls, metadata: LogMetadata, txid: int) -> LogPlan:
        """The plan for a log in this state."""
        return cls(
            txid=txid,
            allocation_created_ms=metadata.allocation_created_ms,
            versions=_versions(metadata),
        )

    def difference(self, now: LogMetadata) -> str | None:
        """Why the batch may not follow the log as it is now; None if it may."""
        if now.allocation_created_ms != self.allocation_created_ms:
            return "it was deleted and created again"
        if _versions(now) != self.versions:
            return "another writer has started, completed or attached a segment"
        return None


def _versions(metadata: LogMetadata) -> tuple[int, int, int]:
    return metadata.max_txid_version, metadata.max_segment_seqno_version, metadata.allocation_version


@attrs.frozen(kw_only=True)
class BatchPlan:
    """A batch that was begun. Made by ``Namespace.begin_batch``; it can be pickled."""

    series: str  # the batches of one source, such as a query
    number: int  # in the series; a batch with a number that is not greater than the last one is there already
    record_log: str  # the log whose properties hold the number
    logs: Mapping[str, LogPlan]

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.series}/{self.number}"

    @property
    def property_key(self) -> str:
        """The property of ``record_log`` with the number of the last batch of the series."""
        return PROPERTY_PREFIX + self.series


@attrs.frozen(kw_only=True)
class DetachedSegment:
    """A closed ledger with records for one log of a batch, which no log names yet. It can be pickled."""

    log: str
    ledger_id: int
    record_count: int
    last_entry_id: int
    last_slot_id: int
    size_bytes: int  # of the entries


@attrs.frozen(kw_only=True)
class AttachedBatch:
    """The result of attaching a batch."""

    positions: Mapping[str, tuple[DLSN, DLSN]]  # first and last record in each log; empty if ``is_repeated``
    is_repeated: bool  # another attempt had attached the batch; the segments of this one are not in any log


def completed_segments(
    segments: Sequence[DetachedSegment],
    plan: LogPlan,
    *,
    first_seqno: int,
    before: LogSegment | None,
    completed_ms: int,
) -> list[LogSegment]:
    """The metadata of a log's new segments, in order.

    Args:
        first_seqno: Of the first one.
        before: The log's last segment, which is completed; None if it has none.
    """
    completed: list[LogSegment] = []
    for segment in segments:
        started = LogSegment(
            segment_seqno=first_seqno + len(completed), ledger_id=segment.ledger_id, first_txid=plan.txid
        )
        before = started.completed(
            last_txid=plan.txid,
            record_count=segment.record_count,
            last_entry_id=segment.last_entry_id,
            last_slot_id=segment.last_slot_id,
            completed_ms=completed_ms,
            start_sequence_id=start_sequence_id_after(before),
        )
        completed.append(before)
    return completed
