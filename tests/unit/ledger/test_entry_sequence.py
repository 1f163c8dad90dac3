from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from ledger.entry_sequence import EntrySequence


def test_entries_behind_a_gap_wait_for_it_to_be_filled() -> None:
    sequence = EntrySequence()
    assert sequence.take(2, b"two") == []
    assert sequence.take(1, b"one") == []
    assert (sequence.waiting_count, sequence.waiting_bytes, sequence.next_id) == (2, 6, 0)
    assert sequence.take(0, b"zero") == [b"zero", b"one", b"two"]
    assert (sequence.waiting_count, sequence.waiting_bytes, sequence.next_id) == (0, 0, 3)


def test_ids_that_left_or_wait_are_taken() -> None:
    sequence = EntrySequence()
    sequence.take(0, b"")
    sequence.take(5, b"")
    assert [entry_id for entry_id in range(7) if sequence.is_taken(entry_id)] == [0, 5]


@given(st.integers(0, 30), st.integers(0, 2**32))
def test_any_order_comes_out_sorted(count: int, seed: int) -> None:
    ids = list(range(count))
    random.Random(seed).shuffle(ids)
    sequence, came_out = EntrySequence(), list[bytes]()
    for number, entry_id in enumerate(ids, 1):
        came_out += sequence.take(entry_id, b"%d" % entry_id)
        seen = set(ids[:number])
        assert len(came_out) == next(n for n in range(count + 1) if n not in seen)
    assert [int(payload) for payload in came_out] == list(range(count))
    assert sequence.waiting_bytes == 0
