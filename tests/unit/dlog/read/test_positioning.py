"""Where reading starts: truncation, the segment, the entry."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import LogTruncatedError
from dlog.format.record import POSITION_MAX
from dlog.read.positioning import EntrySearch, TruncatedRange, segment_for_txid, truncated_ranges
from dlog.write.segment_writer import should_roll
from namespace.dlsn import DLSN
from namespace.segments.segment import LogSegment
from namespace.segments.truncation import first_left


def completed(seqno: int, first_txid: int, last_txid: int) -> LogSegment:
    return LogSegment(segment_seqno=seqno, ledger_id=seqno, first_txid=first_txid).completed(
        last_txid=last_txid,
        record_count=3,
        last_entry_id=2,
        last_slot_id=0,
        completed_ms=1,
        start_sequence_id=0,
    )


LOG = [completed(1, 10, 20), completed(2, 20, 30), completed(3, 40, 50)]
OPEN = LogSegment(segment_seqno=4, ledger_id=4, first_txid=50)


def test_the_first_position_left_follows_the_truncated_records() -> None:
    assert first_left([]) is None
    assert first_left(LOG) == DLSN(1, 0, 0)
    assert first_left([LOG[0].truncated(), *LOG[1:]]) == DLSN(2, 0, 0)
    partly = LOG[1].partially_truncated(DLSN(2, 1, 4))
    assert first_left([LOG[0].truncated(), partly]) == DLSN(2, 1, 4)
    assert first_left([LOG[0].truncated()]) == DLSN(2, 0, 0)
    assert first_left([LOG[1], LOG[2]]) == DLSN(2, 0, 0), "the first was purged"


def test_a_position_that_is_left_has_no_truncated_range() -> None:
    segments = [LOG[0].truncated(), LOG[1].partially_truncated(DLSN(2, 1, 0)), OPEN]
    for start in (DLSN(2, 1, 0), DLSN(2, 9, 0), DLSN(4, 0, 0), DLSN(5, 0, 0)):
        assert truncated_ranges("log", segments, start) == []
    assert truncated_ranges("log", [], DLSN(1, 0, 0)) == []
    assert truncated_ranges("log", LOG, DLSN(1, 0, -1)) == [], "there is no record before the first one"


def test_a_position_after_the_last_truncated_record_misses_nothing() -> None:
    empty = attrs.evolve(LOG[1], record_count=0, last_entry_id=-1, last_slot_id=-1)
    for segments in ([LOG[0].truncated(), *LOG[1:]], [LOG[0].truncated(), empty.truncated(), LOG[2]]):
        assert truncated_ranges("log", segments, DLSN(1, 2, 1)) == []
        assert truncated_ranges("log", segments, DLSN(1, 7, 0)) == []


def test_the_truncated_ranges_at_or_after_a_position_are_returned() -> None:
    gone = [LOG[0].truncated(), LOG[1].truncated(), LOG[2].partially_truncated(DLSN(3, 1, 0))]
    assert truncated_ranges("log", gone, DLSN(1, 1, 5)) == [
        TruncatedRange(gone[0], DLSN(1, 1, 5), DLSN(1, 2, 1)),
        TruncatedRange(gone[1], DLSN(2, 0, 0), DLSN(2, 2, 1)),
        TruncatedRange(gone[2], DLSN(3, 0, 0), DLSN(3, 1, 0)),
    ]
    assert truncated_ranges("log", gone, DLSN(3, 0, 1)) == [
        TruncatedRange(gone[2], DLSN(3, 0, 1), DLSN(3, 1, 0))
    ]


@pytest.mark.parametrize(
    "segments",
    [
        [LOG[1], LOG[2]],
        [attrs.evolve(LOG[0], last_entry_id=-1, last_slot_id=-1).truncated(), LOG[1]],
    ],
)
def test_a_position_in_a_segment_without_a_known_end_raises(segments: list[LogSegment]) -> None:
    with pytest.raises(LogTruncatedError, match=r"1:2:1 is gone .* begins at 2:0:0"):
        truncated_ranges("log", segments, DLSN(1, 2, 1))


@pytest.mark.parametrize(
    ("txid", "seqno"), [(0, 1), (10, 1), (20, 1), (21, 2), (30, 2), (31, 3), (50, 3), (51, 4), (999, 4)]
)
def test_the_first_segment_that_may_hold_a_transaction_id(txid: int, seqno: int) -> None:
    found = segment_for_txid([*LOG, OPEN], txid)
    assert found is not None
    assert found.segment_seqno == seqno


def test_no_completed_segment_holds_a_future_id() -> None:
    assert segment_for_txid(LOG, 51) is None
    assert segment_for_txid([LOG[0].truncated(), *LOG[1:]], 0) == LOG[1]


@given(
    txids=st.lists(st.integers(0, 30), max_size=40).map(sorted),
    wanted=st.integers(0, 31),
    width=st.integers(1, 4),
)
def test_the_binary_search_finds_what_a_linear_search_finds(
    txids: list[int], wanted: int, width: int
) -> None:
    entries = [txids[i : i + width] for i in range(0, len(txids), width)]
    search, looks = EntrySearch(0, len(entries) - 1), 0
    while (entry_id := search.next_entry_id) is not None:
        slots = [slot for slot, txid in enumerate(entries[entry_id]) if txid >= wanted]
        search.searched(slots[0] if slots else None)
        looks += 1
    places = [(e, s) for e, entry in enumerate(entries) for s, txid in enumerate(entry) if txid >= wanted]
    assert search.found == (places[0] if places else None)
    assert looks <= len(entries).bit_length()


def test_a_segment_rolls_by_size_or_age_but_never_while_empty() -> None:
    def full(records: int, size: int, age: float) -> bool:
        return should_roll(
            record_count=records, size_bytes=size, age_s=age, segment_bytes_max=100, segment_age_s_max=60
        )

    assert not full(1, 99, 59.9)
    assert full(1, 100, 0)
    assert full(1, 0, 60)
    assert not full(0, 1000, 1000)
    assert not should_roll(
        record_count=1, size_bytes=10**12, age_s=10**6, segment_bytes_max=None, segment_age_s_max=None
    )


def test_a_mark_does_not_change_the_segment_it_is_made_from() -> None:
    assert attrs.evolve(LOG[0].truncated(), truncation=LOG[0].truncation) == LOG[0]


def test_a_segment_without_limits_rolls_before_positions_run_out() -> None:
    def due(record_count: int) -> bool:
        return should_roll(
            record_count=record_count,
            size_bytes=2**60,
            age_s=1e9,
            segment_bytes_max=None,
            segment_age_s_max=None,
        )

    assert not due(10**9)
    assert due(POSITION_MAX - 10**9)
