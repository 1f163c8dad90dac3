"""Chunks of locations, and the index of chunks over RocksDB. The contract suite covers every index."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookie.disk.key_values import KeyValues, Operation
from bookie.disk.rocksdb import RocksKeyValues
from bookie.errors import FormatError
from bookie.index import chunk_index
from bookie.index.chunk_index import CHUNK_ENTRIES_MAX, ChunkIndex, IndexChunk, encode_chunks
from bookie.index.entry_index import EntryIndex, EntryRange, LedgerMove
from bookie.ledger_record import LedgerData
from tests.effort import examples


class DictKeyValues(KeyValues):
    """A database in a dictionary."""

    def __init__(self) -> None:
        self.data: dict[bytes, bytes] = {}

    def write(self, operations: Sequence[Operation]) -> None:
        for key, value in operations:
            if value is None:
                self.data.pop(key, None)
            else:
                self.data[key] = value

    def delete_range(self, first: bytes, stop: bytes) -> None:
        self.data = {key: value for key, value in self.data.items() if not first <= key < stop}

    def get(self, key: bytes) -> bytes | None:
        return self.data.get(key)

    def floor(self, key: bytes) -> tuple[bytes, bytes] | None:
        below = max((k for k in self.data if k <= key), default=None)
        return None if below is None else (below, self.data[below])

    def scan(self, first: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        return iter(sorted((k, v) for k, v in self.data.items() if first <= k < stop))

    def sync(self) -> None:
        pass

    def close(self) -> None:
        pass


def location(index: EntryIndex, ledger_id: int, entry_id: int) -> int | None:
    found = index.locate(ledger_id, entry_id)
    return found[0] if found else None


def test_consecutive_entries_form_one_dense_chunk() -> None:
    ((key, value),) = encode_chunks(1, [5, 6, 7], [100, 200, 300])
    assert key == b"e" + (1).to_bytes(8, "big") + (5).to_bytes(8, "big")
    assert value == b"\0" + b"".join(n.to_bytes(8, "big") for n in (100, 200, 300))


def test_striped_entries_form_a_sparse_chunk() -> None:
    ((_, value),) = encode_chunks(1, [5, 7, 9], [1, 2, 3])
    assert value[:1] == b"\1"
    chunk = IndexChunk(5, value)
    assert chunk.entry_ids() == [5, 7, 9]
    assert (chunk.position(7), chunk.position(6), chunk.position(10)) == (1, None, None)
    assert chunk.consecutive_from(0, 10) == 1


def test_a_chunk_is_bounded_and_ends_where_ids_are_too_far_apart() -> None:
    many = list(range(CHUNK_ENTRIES_MAX + 1))
    assert [len(value) for _, value in encode_chunks(1, many, many)] == [1 + 8 * CHUNK_ENTRIES_MAX, 9]
    assert len(list(encode_chunks(1, [0, 2**32], [1, 2]))) == 2


@pytest.mark.parametrize("value", [b"", b"\0", b"\0" * 8, b"\1" * 9, b"\2" + bytes(8)])
def test_a_damaged_chunk_is_an_error_not_an_absence(value: bytes) -> None:
    with pytest.raises(FormatError):
        IndexChunk(0, value)


def test_the_last_entry_id_of_a_ledger_is_not_one_of_the_next_ledger() -> None:
    index = ChunkIndex(DictKeyValues())
    index.put([EntryRange(1, [0, 1], [10, 11]), EntryRange(3, [4], [12])])
    assert [index.last_entry_id(ledger_id) for ledger_id in (0, 1, 2, 3)] == [-1, 1, -1, 4]
    assert location(index, 2, 4) is None


def test_after_a_crash_the_chunks_may_be_ahead_of_the_ledger_data() -> None:
    # A flush wrote chunks and its ledger data were lost. Replay stages the same entries in other groups.
    stored = DictKeyValues()
    ChunkIndex(stored).put([EntryRange(1, list(range(5, 105)), list(range(1005, 1105)))])
    index = ChunkIndex(stored)
    index.put([EntryRange(1, [7], [2007])])
    assert [location(index, 1, e) for e in (6, 7, 8, 104)] == [1006, 2007, 1008, 1104]


CHANGES = st.lists(
    st.tuples(st.integers(0, 2), st.sets(st.integers(0, 40), min_size=1, max_size=12), st.booleans()),
    max_size=12,
)


@settings(max_examples=examples(200))
@given(CHANGES)
def test_the_index_behaves_like_a_dictionary(changes: list[tuple[int, set[int], bool]]) -> None:
    index, twin, next_location = ChunkIndex(DictKeyValues()), dict[tuple[int, int], int](), 1
    for ledger_id, ids, deletes in changes:
        if deletes:
            index.delete_ledger(ledger_id)
            twin = {at: where for at, where in twin.items() if at[0] != ledger_id}
        entry_ids = sorted(ids)
        locations = list(range(next_location, next_location + len(ids)))
        next_location += len(ids)
        index.put([EntryRange(ledger_id, entry_ids, locations)])
        twin.update({(ledger_id, e): where for e, where in zip(entry_ids, locations, strict=True)})
    for ledger_id in range(3):
        known = sorted(e for at, e in twin if at == ledger_id)
        assert index.entry_ids(ledger_id) == known
        assert index.last_entry_id(ledger_id) == (known[-1] if known else -1)
        for entry_id in range(42):
            assert location(index, ledger_id, entry_id) == twin.get((ledger_id, entry_id))


def test_in_rocksdb_entries_and_ledger_data_survive_closing(tmp_path: Path) -> None:
    index = ChunkIndex(RocksKeyValues(tmp_path / "index"))
    assert not index.is_complete
    data = LedgerData(b"key", True, None, 3, 4)
    index.put([EntryRange(1, list(range(3000)), list(range(1, 3001)))], [(1, data)])
    index.put([EntryRange(1, [7], [9999])])
    index.put([EntryRange(2, [0], [1])], [(2, data)])
    index.delete_ledger(2)
    index.mark_complete()
    index.sync()
    index.close()
    index = ChunkIndex(RocksKeyValues(tmp_path / "index"))
    assert index.is_complete
    assert list(index.ledgers()) == [(1, data)]
    assert [location(index, 1, e) for e in (0, 7, 2999, 3000)] == [1, 9999, 3000, None]
    assert index.entry_ids(1) == list(range(3000))
    assert index.entry_ids(2) == []
    index.close()


def test_two_moves_in_one_chunk_are_both_applied() -> None:
    index = ChunkIndex(DictKeyValues())
    index.put([EntryRange(1, list(range(10)), list(range(100, 110)))])
    first = LedgerMove(1, [2, 3], [102, 103], [202, 203])
    second = LedgerMove(1, [5, 6], [105, 999], [205, 206])
    assert index.relocate([first, second]) == [[2, 3], [5]]
    assert index.locate(1, 0, 99) == (100, 101, 202, 203, 104, 205, 106, 107, 108, 109)


@pytest.mark.parametrize("chunks_cached", [0, 1], ids=["free cache", "full cache"])
def test_a_chunk_read_before_a_write_is_not_cached_after_it(
    chunks_cached: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_index, "_CACHED_ID_BLOCKS_MAX", 1)

    class Slow(DictKeyValues):
        def __init__(self) -> None:
            super().__init__()
            self.meanwhile: list[Callable[[], object]] = []

        def floor(self, key: bytes) -> tuple[bytes, bytes] | None:
            found = super().floor(key)
            if self.meanwhile:
                self.meanwhile.pop()()
            return found

    stored = Slow()
    index = ChunkIndex(stored)
    index.put([EntryRange(1, [0], [10]), EntryRange(2, [0], [30])])
    for _ in range(chunks_cached):
        assert index.locate(2, 0) == (30,)
    stored.meanwhile = [lambda: index.relocate([LedgerMove(1, [0], [10], [20])])]
    assert index.locate(1, 0) == (10,)
    assert index.locate(1, 0) == (20,)


def test_what_is_remembered_of_flushed_ledgers_is_bounded_and_may_be_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_index, "_LAST_MAX", 5)
    index = ChunkIndex(RocksKeyValues(tmp_path / "index"))
    for first in (0, 1, 0):  # the third round writes the first one's entries again
        index.put([EntryRange(ledger_id, [first], [100 * ledger_id + first + 1]) for ledger_id in range(20)])
        assert len(index._last) <= 5
    for ledger_id in range(20):
        assert index.entry_ids(ledger_id) == [0, 1]
        assert index.locate(ledger_id, 0, 2)[0] == 100 * ledger_id + 1
    index.close()
