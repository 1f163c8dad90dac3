"""The read cache beside a twin that keeps everything: never a wrong body, never too many bytes."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from bookie.storage.read_cache import ENTRY_OVERHEAD_BYTES, ReadCache

PLACES = st.tuples(st.integers(0, 2), st.integers(0, 7))  # few, so that much is found again
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), PLACES, st.integers(0, 900)),
        st.tuples(st.just("get"), PLACES, st.just(0)),
        st.tuples(st.just("drop"), PLACES, st.just(0)),
    ),
    max_size=120,
)


@given(steps=STEPS, bytes_max=st.integers(0, 8000))
@example([*(("put", (0, at), 0) for at in range(4)), ("get", (0, 0), 0)], 960)
@example([("put", (1, 0), 0), ("put", (0, 0), 0), ("put", (0, 1), 0), ("drop", (0, 0), 0)], 320)
def test_the_cache_agrees_with_a_twin_that_forgets_nothing(
    steps: list[tuple[str, tuple[int, int], int]], bytes_max: int
) -> None:
    cache = ReadCache(bytes_max)
    everything: dict[tuple[int, int], bytes] = {}
    recent: list[tuple[tuple[int, int], int]] = []  # put or found, and the bytes; the last one last
    for step, place, size in steps:
        ledger_id, location = place
        if step == "put":
            # What is at a location never changes; the twin decides what it is.
            body = everything.setdefault(place, bytes([location]) * size)
            cache.put(ledger_id, location, body)
            recent.append((place, len(body) + ENTRY_OVERHEAD_BYTES))
        elif step == "get":
            found = cache.get(ledger_id, location)
            assert found is None or found == everything[place]
            if found is not None:
                recent.append((place, len(found) + ENTRY_OVERHEAD_BYTES))
        else:
            cache.drop_ledger(ledger_id)
            everything = {at: body for at, body in everything.items() if at[0] != ledger_id}
            assert not cache.holds(ledger_id)
        kept = [*cache._new.items(), *cache._old.items()]
        bodies = [body for _, entries in kept for body in entries.values()]
        assert cache.size_bytes == sum(map(len, bodies)) + ENTRY_OVERHEAD_BYTES * len(bodies)
        assert cache.size_bytes <= bytes_max
        # Whatever was used last and fits into half of the cache is still there. What was dropped since has
        # taken its room all the same: it may have displaced others before it went.
        used = 0
        for at, size_bytes in reversed(recent):
            used += size_bytes
            if used > bytes_max // 2:
                break
            if at in everything:
                assert at[1] in cache._new.get(at[0], {}) or at[1] in cache._old.get(at[0], {})
