"""The rules of a log's metadata and of reopened writers.

Inside: one function for each rule, those of changed nodes in ``RULES_OF_NODES``; the facts about a log's life
that they need.
Not inside: records and readers (``dlog.testing.history``), observing nodes (``world``).
Always: a rule uses the decoded nodes and the requests of clients, no decision of the library.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Protocol

import attrs

from dlog.errors import RecordOutcome
from dlog.format.record import Record
from dlog.testing.history import Submission
from ledger.metadata import LedgerMetadata
from namespace.dlsn import DLSN
from namespace.segments.segment import LogSegment, TruncationStatus


@attrs.define(eq=False)
class Requests:
    """The requests of clients about one life of a log, each noted before it was sent."""

    truncate: DLSN | None = None  # the greatest position
    deletes: bool = False
    retains: bool = False
    placed: set[tuple[str, DLSN]] = attrs.field(factory=set)  # cursors moved by hand
    commits: set[tuple[str, DLSN]] = attrs.field(factory=set)

    def truncates(self, before: DLSN) -> None:
        self.truncate = before if self.truncate is None else max(self.truncate, before)


class View(Protocol):
    """The state of a log when one of its nodes changes."""

    @property
    def requests(self) -> Requests: ...

    @property
    def cursors(self) -> Mapping[str, DLSN]:
        """The cursors in the store now."""

    def ledger_exists(self, ledger_id: int) -> bool:
        """True if the ledger's metadata exist."""

    def has_records(self, segment: LogSegment) -> bool:
        """True if a record of the segment was acknowledged or read."""


def a_mark_covers_only_truncated_or_consumed_records(
    before: LogSegment | None, after: LogSegment | None, log: View
) -> str | None:
    """A truncation was requested up to there; or the log has a retention, and every cursor is past it."""
    if after is None or after.truncation is TruncationStatus.ACTIVE:
        return None
    if (
        before is not None
        and before.truncation is after.truncation
        and before.min_active_dlsn == after.min_active_dlsn
    ):
        return None
    if after.truncation is TruncationStatus.PARTIALLY_TRUNCATED:
        kept = after.min_active_dlsn
        if log.requests.truncate is not None and kept <= log.requests.truncate:
            return None
        return f"segment {after.segment_seqno} begins at {kept} now; requested was {log.requests.truncate}"
    if log.requests.truncate is not None and after.last_dlsn < log.requests.truncate:
        return None
    if not log.requests.retains:
        return f"segment {after.segment_seqno} is truncated; requested was {log.requests.truncate}"
    unread = {name: at for name, at in log.cursors.items() if at <= after.last_dlsn}
    if unread:
        return (
            f"segment {after.segment_seqno}, which ends at {after.last_dlsn}, is given up; cursors: {unread}"
        )
    return None


def a_segment_is_deleted_after_its_ledger(
    before: LogSegment | None, after: LogSegment | None, log: View
) -> str | None:
    if before is None or after is not None or not log.ledger_exists(before.ledger_id):
        return None
    return f"segment {before.segment_seqno} is gone, its ledger {before.ledger_id} is left"


def only_truncated_segments_are_deleted(
    before: LogSegment | None, after: LogSegment | None, log: View
) -> str | None:
    if before is None or after is not None or log.requests.deletes:
        return None
    if before.truncation is TruncationStatus.TRUNCATED or not log.has_records(before):
        return None
    return f"segment {before.segment_seqno} is gone, which has records and is not truncated"


RULES_OF_NODES = (
    a_mark_covers_only_truncated_or_consumed_records,
    a_segment_is_deleted_after_its_ledger,
    only_truncated_segments_are_deleted,
)


def a_segment_moves_only_to_a_complete_copy(
    segment: LogSegment, original: LedgerMetadata | None, copy: LedgerMetadata | None
) -> str | None:
    """Judges the change of a completed segment's ledger."""
    if original is None or copy is None:
        return f"segment {segment.segment_seqno} moved, and one of its ledgers does not exist"
    ends = [(each.is_closed, each.last_entry_id, each.length_bytes) for each in (original, copy)]
    if ends[0] == ends[1]:
        return None
    return f"segment {segment.segment_seqno} moved from a ledger {ends[0]} to a copy {ends[1]}"


def only_truncated_ledgers_are_deleted(segment: LogSegment, log: View) -> str | None:
    """Judges the deletion of a ledger that a segment names."""
    if log.requests.deletes or segment.truncation is TruncationStatus.TRUNCATED:
        return None
    if not log.has_records(segment):
        return None
    return f"ledger {segment.ledger_id} of segment {segment.segment_seqno} is deleted, which has records"


def a_cursor_moves_forward_to_a_commit(
    name: str, before: DLSN | None, after: DLSN | None, log: View
) -> str | None:
    """Unless a client moved it by hand."""
    if after is None or (name, after) in log.requests.placed:
        return None
    if (name, after) not in log.requests.commits:
        return f"cursor {name} is at {after}, which no reader committed"
    if before is not None and after < before:
        return f"cursor {name} moved back from {before} to {after}"
    return None


def a_truncation_marks_every_segment_before_it(
    position: DLSN, completed: tuple[LogSegment, ...], now: Mapping[int, LogSegment]
) -> str | None:
    """Judges a truncation that returned, by the segments that were completed when it was called."""
    for segment in completed:
        found = now.get(segment.ledger_id)
        if (
            found is not None
            and max(segment.first_dlsn, segment.last_dlsn) < position
            and found.truncation is not TruncationStatus.TRUNCATED
        ):
            return f"the log was truncated before {position}, segment {found.segment_seqno} is not marked"
    return None


def a_reopened_writer_has_told_every_outcome(submissions: Sequence[Submission]) -> str | None:
    """Judges a reopening that returned, by the records that the writer had taken before."""
    pending = [each for each in submissions if each.outcome is RecordOutcome.PENDING]
    return f"{len(pending)} records have no outcome, such as {pending[0].payload[:60]!r}" if pending else None


def a_reopened_writer_is_behind_every_durable_record(last_txid: int, durable: Sequence[int]) -> str | None:
    """Judges a reopening that returned, by the transaction ids that were durable before it began."""
    missed = [txid for txid in durable if txid > last_txid]
    return f"it goes on behind txid {last_txid}, but {max(missed)} was durable" if missed else None


def attributes_for(payload: bytes) -> tuple[bytes | None, dict[str, bytes]]:
    """The key and headers that writers give a record with this payload; every third record has any."""
    number = zlib.crc32(payload)
    if number % 3:
        return None, {}
    key = b"k%d" % number if number % 2 else None
    return key, {"payload": b"%d" % number, "size": b"%d" % len(payload)}


def a_record_has_its_key_and_headers(record: Record) -> str | None:
    """A record has the key and headers that it was written with."""
    if (record.key, dict(record.headers)) == attributes_for(record.payload):
        return None
    return f"{record.dlsn} has the key {record.key!r} and the headers {dict(record.headers)}"
