"""Entries that are not in the entry logs yet."""

from __future__ import annotations

import pytest

from bookie.ledger_record import LedgerRecord
from bookie.storage.write_cache import WriteCache


def put(cache: WriteCache, record: LedgerRecord, entry_id: int, body: bytes) -> None:
    entries = cache.begin(record) if record.active is None else record.active
    entries[entry_id] = body


def test_an_entry_is_found_before_and_after_its_cache_is_sealed() -> None:
    cache, record = WriteCache(), LedgerRecord(1, b"")
    put(cache, record, 5, b"five")
    assert cache.get(record, 5) == b"five"
    cache.seal(1, [])
    assert cache.get(record, 5) == b"five"
    assert record.active is None
    cache.remove_flushed(1)
    assert cache.get(record, 5) is None


def test_only_the_oldest_sealed_cache_is_removed() -> None:
    cache, record = WriteCache(), LedgerRecord(1, b"")
    for checkpoint_id in (1, 2):
        put(cache, record, checkpoint_id, b"body")
        cache.seal(checkpoint_id, [])
    with pytest.raises(AssertionError, match="checkpoint 2 was flushed before 1"):
        cache.remove_flushed(2)
    assert cache.get(record, 1) == b"body"


def test_the_newest_of_two_bodies_is_read() -> None:
    cache, record = WriteCache(), LedgerRecord(1, b"")
    put(cache, record, 5, b"old")
    cache.seal(1, [])
    put(cache, record, 5, b"new")
    assert cache.get(record, 5) == b"new"
    cache.seal(2, [])
    assert cache.get(record, 5) == b"new"
    assert cache.entry_ids(record) == {5}


def test_dropping_a_ledger_tells_what_memory_that_frees() -> None:
    cache, record = WriteCache(), LedgerRecord(1, b"")
    assert cache.drop_ledger(record) == 0
    put(cache, record, 0, b"x" * 100)
    assert cache.drop_ledger(record) >= 100
    assert cache.is_empty


def test_a_ledger_made_anew_does_not_see_the_deleted_ones_entries() -> None:
    cache, record = WriteCache(), LedgerRecord(1, b"")
    put(cache, record, 0, b"old")
    cache.seal(1, [])
    put(cache, record, 1, b"old too")
    cache.drop_ledger(record)
    again = LedgerRecord(1, b"", first_checkpoint_id=2)
    assert cache.get(again, 0) is None
    assert cache.get(again, 1) is None
    assert cache.entry_ids(again) == set()
    put(cache, again, 0, b"new")
    cache.seal(2, [])
    assert cache.get(again, 0) == b"new"
