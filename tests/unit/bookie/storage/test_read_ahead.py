"""Read-ahead: readers in order are distinguished from the others."""

from __future__ import annotations

import random

from bookie.storage.read_ahead import (
    GAP_MAX,
    LEDGERS_MAX,
    READERS_MAX,
    WINDOW_BYTES_MAX,
    WINDOW_BYTES_MIN,
    EntryReadAhead,
)


def test_a_first_read_brings_only_its_entry_and_each_that_follows_twice_as_much() -> None:
    ahead = EntryReadAhead()
    assert ahead.window_bytes(1, 100) == 0
    windows = []
    entry_id = 100
    for _ in range(5):
        entry_id += 1
        windows.append(ahead.window_bytes(1, entry_id))
        ahead.has_read(1, entry_id, entry_id + 50)
        entry_id += 50
    assert windows == [WINDOW_BYTES_MIN, 2 * WINDOW_BYTES_MIN, *[WINDOW_BYTES_MAX] * 3]


def test_gaps_of_a_striped_ledger_do_not_end_a_sequence_and_larger_ones_do() -> None:
    ahead = EntryReadAhead()
    ahead.window_bytes(1, 0)
    assert ahead.window_bytes(1, 1 + GAP_MAX)
    assert not ahead.window_bytes(1, 3 + 2 * GAP_MAX)
    assert not ahead.window_bytes(1, 0), "back to the beginning is another reader"


def test_random_reads_bring_nothing_more() -> None:
    ahead, rng = EntryReadAhead(), random.Random(1)
    ids = [rng.randrange(1_000_000) for _ in range(1000)]
    assert sum(ahead.window_bytes(1, entry_id) > 0 for entry_id in ids) < 5


def test_a_few_readers_of_one_ledger_are_told_apart() -> None:
    ahead = EntryReadAhead()
    for step in range(3):
        for reader in range(READERS_MAX):
            window = ahead.window_bytes(1, 10_000 * reader + step)
            assert (window > 0) == (step > 0)


def test_what_is_remembered_is_bounded_and_goes_with_the_ledger() -> None:
    ahead = EntryReadAhead()
    for ledger_id in range(LEDGERS_MAX + 100):
        for entry_id in range(0, 1000 * (READERS_MAX + 2), 1000):
            ahead.window_bytes(ledger_id, entry_id)
    assert len(ahead._ledgers) == LEDGERS_MAX
    assert max(map(len, ahead._ledgers.values())) == READERS_MAX
    ahead.drop_ledger(LEDGERS_MAX)
    assert not ahead.window_bytes(LEDGERS_MAX, 1000 * (READERS_MAX + 1) + 1)
    ahead.has_read(77, 0, 10)  # of a ledger that is not remembered


def test_it_can_be_switched_off() -> None:
    ahead = EntryReadAhead(window_bytes_max=0)
    assert [ahead.window_bytes(1, entry_id) for entry_id in range(5)] == [0] * 5
