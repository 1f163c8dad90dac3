"""Entries that are not in the entry logs yet."""

from __future__ import annotations

from bookie.journal_format import NO_MARK
from bookie.ledgers import LedgerRecord
from bookie.write_cache import WriteCache


def put(cache: WriteCache, record: LedgerRecord, entry_id: int, body: bytes) -> None:
    entries = cache.begin(record) if record.active is None else record.active
    entries[entry_id] = body


def test_an_entry_is_found_before_and_after_its_cache_is_sealed() -> None:
    cache, record = WriteCache(), LedgerRecord(1, b"")
    put(cache, record, 5, b"five")
    assert cache.get(record, 5) == b"five"
    cache.seal(1, [], NO_MARK)
    assert cache.get(record, 5) == b"five"
    assert record.active is None
    cache.remove_flushed(1)
    assert cache.get(record, 5) is None


def test_the_newest_of_two_bodies_is_read() -> None:
    cache, record = WriteCache(), LedgerRecord(1, b"")
    put(cache, record, 5, b"old")
    cache.seal(1, [], NO_MARK)
    put(cache, record, 5, b"new")
    assert cache.get(record, 5) == b"new"
    cache.seal(2, [], NO_MARK)
    assert cache.get(record, 5) == b"new"
    assert cache.entry_ids(record) == {5}


def test_sealed_bytes_are_counted_until_they_are_flushed() -> None:
    cache, record = WriteCache(), LedgerRecord(1, b"")
    put(cache, record, 0, b"x")
    cache.active_bytes = 100
    cache.seal(1, [], NO_MARK)
    assert (cache.active_bytes, cache.sealed_bytes, cache.is_empty) == (0, 100, True)
    cache.remove_flushed(1)
    assert cache.sealed_bytes == 0


def test_a_ledger_made_anew_does_not_see_the_deleted_ones_entries() -> None:
    cache, record = WriteCache(), LedgerRecord(1, b"")
    put(cache, record, 0, b"old")
    cache.seal(1, [], NO_MARK)
    put(cache, record, 1, b"old too")
    cache.drop_ledger(record)
    again = LedgerRecord(1, b"", first_epoch=2)
    assert cache.get(again, 0) is None
    assert cache.get(again, 1) is None
    assert cache.entry_ids(again) == set()
    put(cache, again, 0, b"new")
    cache.seal(2, [], NO_MARK)
    assert cache.get(again, 0) == b"new"
