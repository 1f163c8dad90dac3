"""Which runs share a group."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from bookie.group_commit import Run, cut_batches, take_group


def run(size_bytes: int) -> Run:
    return Run([], size_bytes, lambda _: None, True)


def test_a_group_takes_all_that_waits() -> None:
    waiting = deque([run(10), run(20), run(30)])
    assert [r.size_bytes for r in take_group(waiting, 1000)] == [10, 20, 30]
    assert not waiting


def test_a_group_stops_once_it_is_full() -> None:
    waiting = deque([run(10), run(20), run(30)])
    assert [r.size_bytes for r in take_group(waiting, 25)] == [10, 20]
    assert [r.size_bytes for r in waiting] == [30]


def test_a_run_larger_than_a_group_goes_alone() -> None:
    assert [r.size_bytes for r in take_group(deque([run(1000), run(1)]), 100)] == [1000]


def test_nothing_waiting_is_an_empty_group() -> None:
    assert take_group(deque(), 100) == []


@given(st.lists(st.binary(max_size=50), max_size=60), st.integers(1, 200))
def test_batches_are_the_records_in_order_and_bounded(records: list[bytes], size_bytes_max: int) -> None:
    batches = list(cut_batches(records, size_bytes_max))
    assert [record for batch in batches for record in batch] == records
    for batch in batches:
        assert len(batch) == 1 or sum(len(record) + 4 for record in batch) <= size_bytes_max
