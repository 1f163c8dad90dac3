"""The page cache: bounded, never evicts a dirty page, never returns a stale one."""

from __future__ import annotations

import random

from hypothesis import given

from bookie.index.page_cache import PageCache
from tests.strategies import SEEDS


def test_the_page_that_was_not_used_is_evicted_first() -> None:
    cache = PageCache(3)
    for number in range(3):
        assert cache.add((1, number), bytearray(8)) is not None
    cache.add((1, 3), bytearray(8))  # the clock hand clears all marks and evicts page 0
    assert cache.get((1, 1)) is not None
    cache.add((1, 4), bytearray(8))
    assert [cache.get((1, n)) is not None for n in range(5)] == [False, True, False, True, True]


def test_a_cache_full_of_dirty_pages_accepts_no_page() -> None:
    cache = PageCache(2)
    for number in range(2):
        cache.add((1, number), bytearray(8))
        cache.mark_dirty((1, number))
    assert cache.add((2, 0), bytearray(8)) is None
    cache.mark_clean((1, 1))
    assert cache.add((2, 0), bytearray(8)) is not None
    assert cache.get((1, 0)) is not None


def test_dirty_pages_are_listed_by_ledger_and_number() -> None:
    cache = PageCache(9)
    for key in [(2, 1), (1, 7), (2, 0), (1, 3)]:
        cache.add(key, bytearray(8))
        cache.mark_dirty(key)
    assert [key for key, _ in cache.dirty_pages()] == [(1, 3), (1, 7), (2, 0), (2, 1)]
    assert cache.dirty_numbers(1) == {3, 7}
    cache.drop_ledger(1)
    assert [key for key, _ in cache.dirty_pages()] == [(2, 0), (2, 1)]
    assert (len(cache), cache.get((1, 3))) == (2, None)


@given(SEEDS)
def test_the_cache_is_bounded_and_keeps_dirty_pages(seed: int) -> None:
    rng, cache = random.Random(seed), PageCache(5)
    dirty: dict[tuple[int, int], bytearray] = {}
    for step in range(200):
        key = (rng.randrange(3), rng.randrange(4))
        page = cache.get(key)
        if key in dirty:
            assert page is not None
            assert page.data is dirty[key]
        if page is None:
            page = cache.add(key, bytearray(step.to_bytes(8, "big")))
            assert (page is None) == (len(dirty) == 5)
        if page is not None and rng.random() < 0.4:
            cache.mark_dirty(key)
            dirty[key] = page.data
        if dirty and rng.random() < 0.35:
            clean = rng.choice(sorted(dirty))
            cache.mark_clean(clean)
            del dirty[clean]
        if rng.random() < 0.05:
            cache.drop_ledger(key[0])
            dirty = {one: data for one, data in dirty.items() if one[0] != key[0]}
        assert len(cache) <= 5
        assert cache.dirty == set(dirty)
