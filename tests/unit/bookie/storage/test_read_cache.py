"""The read cache: what is kept, what goes first, what it may take."""

from __future__ import annotations

from bookie.storage.read_cache import ENTRY_OVERHEAD_BYTES, ReadCache

SIZE = 1000 - ENTRY_OVERHEAD_BYTES  # an entry that counts 1000 bytes


def test_an_entry_is_found_under_its_location_only() -> None:
    cache = ReadCache(1 << 20)
    cache.put(1, 100, b"a")
    cache.put(1, 100, b"another reader missed it too")
    assert (cache.get(1, 100), cache.get(1, 101), cache.get(2, 100)) == (b"a", None, None)
    assert (cache.hits, cache.misses, cache.count) == (1, 2, 1)
    assert cache.holds(1)
    assert not cache.holds(2)
    assert "1 hits" in repr(cache)


def test_the_entries_nobody_asked_for_again_go_first() -> None:
    cache = ReadCache(4000)
    for location in (1, 2):
        cache.put(1, location, bytes(SIZE))
    for location in range(3, 20):
        assert cache.get(1, 1) is not None
        cache.put(1, location, bytes(SIZE))
        assert cache.size_bytes <= 4000
    assert cache.get(1, 1) is not None
    assert cache.get(1, 2) is None


def test_what_is_too_large_is_not_kept_and_pushes_nothing_out() -> None:
    cache = ReadCache(4000)
    cache.put(1, 1, b"small")
    cache.put(1, 2, bytes(2001 - ENTRY_OVERHEAD_BYTES))
    assert cache.get(1, 2) is None
    assert cache.get(1, 1) == b"small"
    nothing = ReadCache(0)
    nothing.put(1, 1, b"")
    assert nothing.count == 0


def test_a_deleted_ledger_leaves_nothing_and_gives_its_bytes_back() -> None:
    cache = ReadCache(4000)
    for location in range(3):  # in both halves
        cache.put(1, location, bytes(SIZE))
    cache.put(2, 7, b"other")
    cache.drop_ledger(1)
    assert not cache.holds(1)
    assert cache.size_bytes == 5 + ENTRY_OVERHEAD_BYTES
    cache.drop_ledger(2)
    cache.drop_ledger(3)
    assert cache.size_bytes == 0
