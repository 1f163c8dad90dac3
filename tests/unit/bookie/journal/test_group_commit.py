"""Which batches share a group."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from bookie.journal.group_commit import WriteBatch, cut_records, take_group


def batch_of(*sizes_bytes: int) -> WriteBatch:
    """A submitted batch, of so many bytes for each journal."""
    batch = WriteBatch(len(sizes_bytes))
    batch.sizes_bytes = list(sizes_bytes)
    return batch


def sizes(batches: Iterable[WriteBatch], journal: int = 0) -> list[int]:
    return [batch.sizes_bytes[journal] for batch in batches]


def test_a_group_takes_all_that_waits() -> None:
    waiting = deque([batch_of(10), batch_of(20), batch_of(30)])
    assert sizes(take_group(waiting, 0, 1000)) == [10, 20, 30]
    assert not waiting


def test_a_group_stops_once_it_is_full() -> None:
    waiting = deque([batch_of(10), batch_of(20), batch_of(30)])
    assert sizes(take_group(waiting, 0, 25)) == [10, 20]
    assert sizes(waiting) == [30]


def test_only_the_journals_own_part_of_a_batch_counts() -> None:
    waiting = deque([batch_of(1000, 10), batch_of(1000, 20), batch_of(0, 30)])
    assert sizes(take_group(waiting, 1, 25), 1) == [10, 20]


def test_a_batch_larger_than_a_group_goes_alone() -> None:
    assert sizes(take_group(deque([batch_of(1000), batch_of(1)]), 0, 100)) == [1000]


def test_nothing_waiting_is_an_empty_group() -> None:
    assert take_group(deque(), 0, 100) == []


def test_a_batch_is_empty_until_it_has_a_record_or_awaits_a_ledger() -> None:
    assert WriteBatch(2).is_empty
    with_a_record, awaiting = WriteBatch(2), WriteBatch(2)
    with_a_record.records[1].append(b"record")
    awaiting.await_ledger(7)
    assert not with_a_record.is_empty
    assert not awaiting.is_empty
    assert awaiting.awaited_journals == {1}


@given(st.lists(st.binary(max_size=50), max_size=60), st.integers(1, 200))
def test_pieces_are_the_records_in_order_and_bounded(records: list[bytes], size_bytes_max: int) -> None:
    pieces = list(cut_records(records, size_bytes_max))
    assert [record for piece in pieces for record in piece] == records
    for piece in pieces:
        assert len(piece) == 1 or sum(len(record) + 4 for record in piece) <= size_bytes_max
