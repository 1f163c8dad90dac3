"""The values of a batch: what its writers need to know, what they return, what attaching gives.

Inside: plain values that can be pickled and sent to other processes. Not inside: ledgers, nodes.
Always: the plan names the state of each log that the batch may follow, and no other.

Source: our own; docs/bulk.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from dlog.bulk.errors import BatchOvertakenError
from dlog.ownership.mark import BatchMark, LedgerMark
from namespace.dlsn import DLSN
from namespace.log_metadata import LogMetadata
from namespace.segments.segment import LogSegment, start_sequence_id_after

PROPERTY_PREFIX = "dlog.batch."  # of the property that holds the number of the last batch of a series
SEGMENTS_MAX = 1_000  # in one transaction; ZooKeeper takes 1 MiB


@attrs.frozen(kw_only=True)
class LogPlan:
    """The state of one log that a batch may follow."""

    txid: int  # of every record that is written without an id of its own
    txid_min: int  # of records with ids of their own: no record of the log has a greater id
    allocation_created_ms: int  # tells this log from another one of its name
    versions: tuple[int, int, int]  # of the nodes maxtxid, ledgers, allocation
    log_id: str  # the log's identity, for the marks of the ledgers

    @classmethod
    def of(cls, metadata: LogMetadata, txid: int, txid_min: int) -> LogPlan:
        """The plan for a log in this state."""
        return cls(
            txid=txid,
            txid_min=txid_min,
            allocation_created_ms=metadata.allocation_created_ms,
            versions=_versions(metadata),
            log_id=metadata.log_id or "",
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
    """A batch that was begun. Made by ``Namespace.batches.begin``; it can be pickled."""

    series: str | None  # the batches of one source, such as a query; None: a batch that is not recorded
    number: int  # in the series; a batch with a number that is not greater than the last one is there already
    record_log: str  # the log whose properties hold the number
    logs: Mapping[str, LogPlan]
    tokens: tuple[str, ...] = attrs.field(
        default=(), repr=False
    )  # random; of a batch without a series, one of each process that began it

    @property
    def name(self) -> str:
        """For messages."""
        return "without a series" if self.series is None else f"{self.series}/{self.number}"

    @property
    def property_key(self) -> str:
        """The property of ``record_log`` with the number of the last batch of the series.

        Raises ``ValueError`` for a batch without a series, which is not recorded.
        """
        if self.series is None:
            raise ValueError("a batch without a series has no property")
        return PROPERTY_PREFIX + self.series

    def mark(self, namespace_path: str, log: str) -> LedgerMark:
        """The mark of a ledger that is written for this batch."""
        token = self.tokens[0] if self.tokens else ""
        batch = BatchMark(self.series, self.number, token)
        return LedgerMark(namespace_path, log, self.logs[log].log_id, batch)

    @staticmethod
    def merged(plans: Sequence[BatchPlan]) -> BatchPlan:
        """One plan of several for the same batch, each begun by another process, for any of its logs.

        Raises:
            BatchOvertakenError: A log changed between two of them.
            ValueError: They are for different batches.
        """
        first, logs = plans[0], dict[str, LogPlan]()
        tokens = tuple(dict.fromkeys(token for plan in plans for token in plan.tokens))
        for plan in plans:
            if (plan.series, plan.number, plan.record_log) != (first.series, first.number, first.record_log):
                raise ValueError(f"batch {plan.name} is not batch {first.name}")
            for name, planned in plan.logs.items():
                known = logs.setdefault(name, planned)
                if (known.allocation_created_ms, known.versions) != (
                    planned.allocation_created_ms,
                    planned.versions,
                ):
                    raise BatchOvertakenError(first.name, name, "a part of the batch saw another state of it")
        return attrs.evolve(first, logs=logs, tokens=tokens)


@attrs.frozen(kw_only=True)
class DetachedSegment:
    """A closed ledger with records for one log of a batch, which no log names yet. It can be pickled."""

    log: str
    ledger_id: int
    txid: int  # of the first record
    last_txid: int  # of the last record
    record_count: int
    last_entry_id: int
    last_slot_id: int
    size_bytes: int  # of the entries


@attrs.frozen(kw_only=True)
class AttachedBatch:
    """The result of attaching a batch."""

    positions: Mapping[str, tuple[DLSN, DLSN]]  # first and last record in each log; empty if ``is_repeated``
    is_repeated: bool  # another attempt had attached the batch; the segments of this one are not in any log


def check_types(plan: object, segments: Sequence[object]) -> None:
    """Raise a TypeError that helps, unless they are a plan and segments of any face."""
    if not isinstance(plan, BatchPlan):
        raise TypeError(f"the plan of a batch is what `batches.begin` returned, not {plan!r}")
    for each in segments:
        if not isinstance(each, DetachedSegment):
            raise TypeError(f"a segment of a batch is the `result` of its writer, not {each!r}")


def completed_segments(
    segments: Sequence[DetachedSegment],
    *,
    first_seqno: int,
    before: LogSegment | None,
    completed_ms: int,
) -> list[LogSegment]:
    """The metadata of a log's new segments, in order; transaction ids come before the order given.

    Args:
        first_seqno: Of the first one.
        before: The log's last segment, which is completed; None if it has none.

    Raises:
        ValueError: The ids of two segments overlap.
    """
    completed: list[LogSegment] = []
    for segment in sorted(segments, key=lambda each: each.txid):
        if completed and segment.txid < completed[-1].last_txid:
            raise ValueError(
                f"segments of log {segment.log!r}: one begins with transaction id {segment.txid}, the one"
                f" before it ends with {completed[-1].last_txid}; give them in the order of their records"
            )
        started = LogSegment(
            segment_seqno=first_seqno + len(completed), ledger_id=segment.ledger_id, first_txid=segment.txid
        )
        before = started.completed(
            last_txid=segment.last_txid,
            record_count=segment.record_count,
            last_entry_id=segment.last_entry_id,
            last_slot_id=segment.last_slot_id,
            completed_ms=completed_ms,
            start_sequence_id=start_sequence_id_after(before),
        )
        completed.append(before)
    return completed
