"""Entries that came with long polls: which are handed out, and how many are kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.digest import Entry
from ledger.read.recent_entries import ENTRIES_MAX, ENTRY_BYTES_MAX, RecentEntries


def entry(entry_id: int, payload: bytes | None = None) -> Entry:
    return Entry(7, entry_id, entry_id - 1, 0, b"%d" % entry_id if payload is None else payload)


def test_consecutive_entries_are_handed_out_once_and_none_beyond_the_last() -> None:
    recent = RecentEntries()
    for entry_id in (4, 5, 6):
        recent.add(entry(entry_id))
    assert recent.take(4, 5) == [b"4", b"5"]
    assert recent.take(4, 5) == []
    assert recent.take(6, 9) == [b"6"]


def test_nothing_is_handed_out_behind_a_gap() -> None:
    recent = RecentEntries()
    recent.add(entry(4))
    recent.add(entry(6))
    assert recent.take(4, 9) == [b"4"]
    assert recent.take(5, 9) == []
    assert recent.take(6, 9) == [b"6"]


def test_an_entry_that_comes_again_or_late_is_left_out() -> None:
    recent = RecentEntries()
    for entry_id in (5, 5, 4):
        recent.add(entry(entry_id))
    assert repr(recent) == "<RecentEntries [5]>"


def test_what_is_kept_is_bounded() -> None:
    recent = RecentEntries()
    recent.add(entry(0, bytes(ENTRY_BYTES_MAX + 1)))
    assert recent.take(0, 0) == []
    for entry_id in range(100):
        recent.add(entry(entry_id, bytes(ENTRY_BYTES_MAX)))
    assert repr(recent) == f"<RecentEntries {list(range(100 - ENTRIES_MAX, 100))}>"


@pytest.mark.parametrize("first", [0, 3])
@given(added=st.lists(st.integers(0, 8)), last=st.integers(0, 8))
def test_each_payload_is_that_of_its_entry(first: int, added: list[int], last: int) -> None:
    recent = RecentEntries()
    for entry_id in added:
        recent.add(entry(entry_id))
    last = max(first, last)
    taken = recent.take(first, last)
    assert taken == [b"%d" % entry_id for entry_id in range(first, first + len(taken))]
    assert first + len(taken) - 1 <= last
