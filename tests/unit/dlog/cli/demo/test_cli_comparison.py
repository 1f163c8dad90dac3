"""The comparison of the demo, checked against a dumb twin."""

# covers: dlog/cli/demo/comparison.py

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from dlog.cli.demo.comparison import LineComparison
from dlog.cli.demo.lines import fingerprint

LINES = [b"first", b"", b"third", b"third", b"fifth"]


def compared(records: list[tuple[int, bytes]]) -> LineComparison:
    comparison = LineComparison(array("q", map(fingerprint, LINES)))
    for txid, payload in records:
        comparison.take(txid, payload)
    return comparison


def whole(*numbers: int) -> list[tuple[int, bytes]]:
    return [(number, LINES[number - 1]) for number in numbers]


def test_every_line_once_and_in_order_is_good() -> None:
    comparison = compared(whole(1, 2, 3, 4, 5))
    assert comparison.is_good
    assert (comparison.records, comparison.size_bytes) == (5, 20)


def test_a_missing_line_is_lost_and_counted_up_to_a_line() -> None:
    comparison = compared(whole(1, 2, 4, 5))
    assert (comparison.lost, comparison.repeated, comparison.reordered) == (1, 0, 0)
    assert comparison.lost_up_to(2) == 0
    assert comparison.lost_up_to(3) == 1
    assert not comparison.is_good


def test_a_repeated_line_is_repeated_and_not_reordered() -> None:
    comparison = compared(whole(1, 2, 1, 2, 3, 4, 5))
    assert (comparison.lost, comparison.repeated, comparison.reordered) == (0, 2, 0)


def test_a_late_line_is_reordered() -> None:
    comparison = compared(whole(1, 3, 2, 4, 5))
    assert (comparison.lost, comparison.repeated, comparison.reordered) == (0, 0, 1)


def test_a_changed_line_is_lost() -> None:
    comparison = compared([*whole(1, 2, 3, 4), (5, b"other")])
    assert (comparison.lost, comparison.changed) == (1, 1)


def test_a_record_beyond_the_last_line_is_wrong() -> None:
    assert not compared([*whole(1, 2, 3, 4, 5), (6, b"more")]).is_good
    assert not compared([(0, b"before"), *whole(1, 2, 3, 4, 5)]).is_good


@given(st.lists(st.integers(1, len(LINES)), max_size=12))
def test_the_counts_are_those_of_a_dumb_twin(numbers: list[int]) -> None:
    firsts = list(dict.fromkeys(numbers))
    comparison = compared(whole(*numbers))
    assert comparison.lost == len(LINES) - len(firsts)
    assert comparison.repeated == len(numbers) - len(firsts)
    assert comparison.reordered == sum(
        any(earlier > number for earlier in firsts[:index]) for index, number in enumerate(firsts)
    )
