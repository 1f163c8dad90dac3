"""Where a pipeline continues behind its mark."""

# covers: spark_integration/pipelines/marks.py

from __future__ import annotations

import pytest

from dlog import SegmentDescription
from namespace.segments.segment import TruncationStatus
from spark_integration.errors import PipelineError
from spark_integration.offsets import Position, just_before
from spark_integration.pipelines.marks import ReadMark, start_after

MARK = ReadMark(source="file:///x", log="orders", position=Position(4, 9, 0), ledger_id=40, sequence=100)


def segment(number: int, *, first: int | None) -> SegmentDescription:
    """A segment; in progress without the number of its first record."""
    done = first is not None
    return SegmentDescription(
        segment_seqno=number,
        ledger_id=10 * number,
        is_completed=done,
        first_txid=1,
        last_txid=2 if done else None,
        record_count=10 if done else None,
        last_entry_id=9 if done else -1,
        last_slot_id=0,
        start_sequence_id=first,
        completed_ms=3 if done else None,
        truncation=TruncationStatus.ACTIVE,
    )


def test_a_pipeline_goes_on_in_the_segment_of_its_mark_or_the_one_that_follows_its_records() -> None:
    assert start_after(MARK, [segment(4, first=90), segment(5, first=100)]) == MARK.position
    assert start_after(MARK, [segment(5, first=100)]) == just_before(5, 0, 0)


def test_records_that_are_gone_behind_the_mark_are_an_error() -> None:
    with pytest.raises(PipelineError, match="was truncated behind the last record"):
        start_after(MARK, [segment(6, first=101)])


@pytest.mark.parametrize("first", [0, 99, None])
def test_a_log_whose_record_numbers_began_again_is_an_error_that_says_so(first: int | None) -> None:
    with pytest.raises(PipelineError, match="nothing shows whether records before segment 5 were missed"):
        start_after(MARK, [segment(5, first=first)])
