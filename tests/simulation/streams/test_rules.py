"""The rules of a log's metadata with made-up changes: each finds what breaks it."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from dlog.errors import RecordOutcome
from dlog.promotion.record import SourcePhase, SourceRecord
from dlog.testing.history import Submission
from ledger.metadata import Ensemble, LedgerMetadata, LedgerState
from namespace.dlsn import DLSN
from namespace.log_metadata import LAYOUT_VERSION
from namespace.segments.segment import LogSegment
from tests.simulation.streams.promotion import (
    a_copy_is_kept_once_it_takes_records,
    an_original_is_kept_until_the_target_takes_records,
    at_most_one_side_takes_records,
)
from tests.simulation.streams.rules import (
    Requests,
    a_cursor_moves_forward_to_a_commit,
    a_mark_covers_only_truncated_or_consumed_records,
    a_reopened_writer_has_told_every_outcome,
    a_reopened_writer_is_behind_every_durable_record,
    a_segment_is_deleted_after_its_ledger,
    a_segment_moves_only_to_a_complete_copy,
    a_truncation_marks_every_segment_before_it,
    only_truncated_ledgers_are_deleted,
    only_truncated_segments_are_deleted,
)

SEGMENT = LogSegment(segment_seqno=2, ledger_id=7, first_txid=1).completed(
    last_txid=5, record_count=3, last_entry_id=3, last_slot_id=0, completed_ms=1, start_sequence_id=0
)
BEHIND = DLSN(3, 0, 0)


@attrs.define
class Log:
    requests: Requests = attrs.field(factory=Requests)
    cursors: Mapping[str, DLSN] = attrs.field(factory=dict)
    has_ledger: bool = False
    is_filled: bool = True

    def ledger_exists(self, ledger_id: int) -> bool:
        return self.has_ledger

    def has_records(self, segment: LogSegment) -> bool:
        return self.is_filled


def test_a_mark_needs_a_request_or_cursors_that_are_past_it() -> None:
    rule = a_mark_covers_only_truncated_or_consumed_records
    marked = SEGMENT.truncated()
    assert rule(SEGMENT, SEGMENT, Log()) is None
    assert rule(SEGMENT, marked, Log())
    assert rule(SEGMENT, marked, Log(Requests(truncate=SEGMENT.last_dlsn)))
    assert rule(SEGMENT, marked, Log(Requests(truncate=BEHIND))) is None
    assert rule(SEGMENT, marked, Log(Requests(retains=True), {"c": BEHIND})) is None
    assert rule(SEGMENT, marked, Log(Requests(retains=True), {"c": SEGMENT.last_dlsn}))
    assert rule(marked, marked, Log()) is None, "it was marked before"


def test_a_partial_mark_needs_a_truncation_up_to_it() -> None:
    rule = a_mark_covers_only_truncated_or_consumed_records
    partly = SEGMENT.partially_truncated(DLSN(2, 1, 0))
    assert rule(SEGMENT, partly, Log(Requests(truncate=DLSN(2, 1, 0)))) is None
    assert rule(SEGMENT, partly, Log(Requests(truncate=DLSN(2, 0, 1))))
    assert rule(SEGMENT, partly, Log(Requests(retains=True)))


def test_a_segment_goes_after_its_ledger() -> None:
    assert a_segment_is_deleted_after_its_ledger(SEGMENT, None, Log()) is None
    assert a_segment_is_deleted_after_its_ledger(SEGMENT, None, Log(has_ledger=True))
    assert a_segment_is_deleted_after_its_ledger(None, SEGMENT, Log(has_ledger=True)) is None


def test_only_truncated_or_empty_segments_and_their_ledgers_go() -> None:
    for rule in (
        lambda segment, log: only_truncated_segments_are_deleted(segment, None, log),
        only_truncated_ledgers_are_deleted,
    ):
        assert rule(SEGMENT, Log())
        assert rule(SEGMENT, Log(is_filled=False)) is None
        assert rule(SEGMENT.truncated(), Log()) is None
        assert rule(SEGMENT, Log(Requests(deletes=True))) is None


def test_a_cursor_moves_forward_to_a_committed_position() -> None:
    rule = a_cursor_moves_forward_to_a_commit
    one, two = DLSN(1, 0, 0), DLSN(2, 0, 0)
    log = Log(Requests(commits={("c", one), ("c", two)}))
    assert rule("c", None, one, log) is None
    assert rule("c", one, two, log) is None
    assert rule("c", two, one, log)
    assert rule("c", one, BEHIND, log)
    assert rule("c", two, one, Log(Requests(placed={("c", one)}))) is None


def test_a_truncation_marks_all_segments_before_its_position() -> None:
    rule = a_truncation_marks_every_segment_before_it
    assert rule(BEHIND, (SEGMENT,), {7: SEGMENT})
    assert rule(BEHIND, (SEGMENT,), {7: SEGMENT.truncated()}) is None
    assert rule(BEHIND, (SEGMENT,), {}) is None, "it was purged"
    assert rule(SEGMENT.last_dlsn, (SEGMENT,), {7: SEGMENT}) is None


def test_a_reopened_writer_has_told_the_outcome_of_each_record() -> None:
    rule = a_reopened_writer_has_told_every_outcome
    decided = [Submission(b"x", 1, None, outcome=each) for each in RecordOutcome]
    decided = [each for each in decided if each.outcome is not RecordOutcome.PENDING]
    assert len(decided) == 3
    assert rule(decided) is None
    assert rule([*decided, Submission(b"x", 1, None)])


def test_a_reopened_writer_goes_on_behind_the_last_durable_record() -> None:
    rule = a_reopened_writer_is_behind_every_durable_record
    assert rule(-1, []) is None
    assert rule(5, [1, 5]) is None
    assert rule(4, [1, 5])


def test_one_side_at_most_takes_records() -> None:
    rule, closed = at_most_one_side_takes_records, b"closed"
    assert rule(LAYOUT_VERSION, None) is None
    assert rule(LAYOUT_VERSION, closed) is None
    assert rule(closed, closed) is None
    assert rule(closed, LAYOUT_VERSION) is None
    assert rule(LAYOUT_VERSION, LAYOUT_VERSION)


def test_originals_go_when_the_target_is_open_and_known_to_be_complete() -> None:
    rule = an_original_is_kept_until_the_target_takes_records
    copying = SourceRecord("id", "target", SourcePhase.COPYING)
    done = attrs.evolve(copying, phase=SourcePhase.DONE)
    assert rule(SEGMENT, done, LAYOUT_VERSION, has_records=True) is None
    assert rule(SEGMENT, done, b"closed", has_records=True)
    assert rule(SEGMENT, copying, LAYOUT_VERSION, has_records=True)
    assert rule(SEGMENT, None, None, has_records=True)
    assert rule(SEGMENT, None, None, has_records=False) is None
    assert rule(SEGMENT.truncated(), None, None, has_records=True) is None


def test_copies_go_only_before_they_take_records() -> None:
    rule = a_copy_is_kept_once_it_takes_records
    assert rule(SEGMENT, b"closed", has_records=True) is None
    assert rule(SEGMENT, LAYOUT_VERSION, has_records=True)
    assert rule(SEGMENT, LAYOUT_VERSION, has_records=False) is None
    assert rule(SEGMENT.truncated(), LAYOUT_VERSION, has_records=True) is None


def test_a_segment_that_moves_to_an_open_or_shorter_copy_is_found() -> None:
    original = LedgerMetadata(
        ensemble_size=1,
        write_quorum=1,
        ack_quorum=1,
        ensembles=(Ensemble(0, ("b1:1",)),),
        state=LedgerState.CLOSED,
        last_entry_id=3,
        length_bytes=40,
    )
    rule = a_segment_moves_only_to_a_complete_copy
    assert rule(SEGMENT, original, original) is None
    shorter = attrs.evolve(original, last_entry_id=2)
    unclosed = attrs.evolve(original, state=LedgerState.OPEN, last_entry_id=-1, length_bytes=0)
    for wrong in (shorter, unclosed, None):
        assert rule(SEGMENT, original, wrong) is not None
    assert rule(SEGMENT, None, original) is not None
