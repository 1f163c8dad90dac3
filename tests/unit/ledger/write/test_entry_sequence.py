from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from ledger.write.entry_sequence import EntrySequence


def test_entries_behind_a_gap_wait_until_it_is_filled() -> None:
    sequence = EntrySequence()
    assert sequence.take(2, b"two") == []
    assert sequence.take(1, b"one") == []
    assert (sequence.waiting_count, sequence.waiting_bytes, sequence.next_id) == (2, 6, 0)
    assert sequence.take(0, b"zero") == [b"zero", b"one", b"two"]
    assert (sequence.waiting_count, sequence.waiting_bytes, sequence.next_id) == (0, 0, 3)


def test_ids_of_ready_and_waiting_entries_are_taken() -> None:
    sequence = EntrySequence()
    sequence.take(0, b"")
    sequence.take(5, b"")
    assert [entry_id for entry_id in range(7) if sequence.is_taken(entry_id)] == [0, 5]


@given(st.integers(0, 30), st.integers(0, 2**32))
def test_entries_submitted_in_any_order_leave_in_the_order_of_ids(count: int, seed: int) -> None:
    ids = list(range(count))
    random.Random(seed).shuffle(ids)
    sequence, ready = EntrySequence(), list[bytes]()
    for number, entry_id in enumerate(ids, 1):
        ready += sequence.take(entry_id, b"%d" % entry_id)
        seen = set(ids[:number])
        assert len(ready) == next(n for n in range(count + 1) if n not in seen)
    assert [int(payload) for payload in ready] == list(range(count))
    assert sequence.waiting_bytes == 0
