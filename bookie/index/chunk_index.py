"""The default index: chunk records in an ordered map.

Inside: the chunk format, lookups, inserts, moves, deletes; the stored ledger data, which are in the same map
so that one sync makes a checkpoint durable. Not inside: the database (``key_values``), the interface
(``entry_index``).
Always: chunks of one ledger never overlap. A chunk holds 1 to 1024 entries in ascending order. Each change of
existing chunks is one atomic batch.

key    ``e``, ledger i64, first entry id i64
value  0, n x location i64                                  dense: consecutive ids
       1, n x (id - first id: u32), n x location i64        sparse: of a striped ledger
key    ``l``, ledger i64        value  ``LedgerData`` (see ``ledger_record``)
key    ``m``                    value  ``1``: the index is complete

A chunk for each ledger and flush costs a sixteenth of a record for each entry.

Source: docs/storage-format.md 5.2; EntryLocationIndex.java for keys and their order.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct, pack, unpack_from

from bookie.disk.key_values import BATCH_OPERATIONS_MAX, KeyValues, Operation
from bookie.errors import FormatError
from bookie.index.entry_index import EntryIndex, EntryRange, LedgerMove
from bookie.ledger_record import LedgerData, decode_ledger_data, encode_ledger_data

CHUNK_ENTRIES_MAX = 1024
_ID_BLOCK_BITS = 8  # a block of 256 entry ids has one cached chunk
_ID_BLOCKS_MAX = 4  # blocks on each side of an entry that get its chunk; a full dense chunk spans five
_LAST_MAX = 100_000  # 10 MB
_CACHED_ID_BLOCKS_MAX = 8192  # 13 MiB of full chunks
_KEY = Struct(">cqq")
_LEDGER_KEY = Struct(">cq")
_DELTA_MAX = 2**32 - 1
_ENTRY_ID_MAX = 2**63 - 1
COMPLETE = b"m"  # the key that marks the index as complete


class IndexChunk:
    """The locations of some entries of a ledger. Locations are decoded only when they are read."""

    __slots__ = ("_deltas", "_locations_at", "_value", "count", "first")

    def __init__(self, first: int, value: bytes) -> None:
        self.first = first
        self._value = value
        form = value[:1]
        size = len(value) - 1
        if form == b"\0" and size and size % 8 == 0:
            self.count = size // 8
            self._deltas: tuple[int, ...] | None = None
            self._locations_at = 1
        elif form == b"\1" and size and size % 12 == 0:
            self.count = size // 12
            self._deltas = unpack_from(f">{self.count}I", value, 1)
            self._locations_at = 1 + 4 * self.count
        else:
            raise FormatError(f"index chunk of {len(value)} bytes with form {form!r}")

    @property
    def last(self) -> int:
        return self.first + (self.count - 1 if self._deltas is None else self._deltas[-1])

    def position(self, entry_id: int) -> int | None:
        """The position of the entry in the chunk; None if it is absent."""
        delta = entry_id - self.first
        if self._deltas is None:
            return delta if 0 <= delta < self.count else None
        at = bisect_left(self._deltas, delta)
        return at if at < self.count and self._deltas[at] == delta else None

    def consecutive_from(self, position: int, count_max: int) -> int:
        """How many entries from this position on have consecutive ids; at most ``count_max``."""
        stop = min(self.count, position + count_max)
        if self._deltas is None:
            return stop - position
        base = self._deltas[position] - position
        at = position
        while at < stop and self._deltas[at] - at == base:
            at += 1
        return at - position

    def locations(self, position: int, count: int) -> tuple[int, ...]:
        return unpack_from(f">{count}q", self._value, self._locations_at + 8 * position)

    def relocated(self, move: LedgerMove, start: int, stop: int) -> tuple[bytes, list[int]]:
        """Apply the moves [start, stop) whose old location matches. The new value, and the moved ids."""
        ids = move.entry_ids[start:stop]
        locations = list(self.locations(0, self.count))
        at = self.position(ids[0]) if ids else None
        if (
            at is not None
            and self.consecutive_from(at, len(ids)) == len(ids) == ids[-1] - ids[0] + 1
            and locations[at : at + len(ids)] == list(move.old_locations[start:stop])
        ):  # consecutive entries, the usual case of compaction: one comparison and one assignment
            locations[at : at + len(ids)] = move.new_locations[start:stop]
            value = self._value[: self._locations_at] + pack(f">{self.count}q", *locations)
            return value, list(ids)
        moved: list[int] = []
        for entry_id, old, new in zip(
            ids, move.old_locations[start:stop], move.new_locations[start:stop], strict=True
        ):
            position = self.position(entry_id)
            if position is not None and locations[position] == old:
                locations[position] = new
                moved.append(entry_id)
        return self._value[: self._locations_at] + pack(f">{self.count}q", *locations), moved

    def ids(self, position: int, count: int) -> Sequence[int]:
        if self._deltas is None:
            return range(self.first + position, self.first + position + count)
        return [self.first + delta for delta in self._deltas[position : position + count]]

    def entry_ids(self) -> list[int]:
        if self._deltas is None:
            return list(range(self.first, self.first + self.count))
        return [self.first + delta for delta in self._deltas]


def encode_chunks(
    ledger_id: int, entry_ids: Sequence[int], locations: Sequence[int]
) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of the chunks that hold these ascending entries."""
    start = 0
    while start < len(entry_ids):
        stop = min(start + CHUNK_ENTRIES_MAX, len(entry_ids))
        first = entry_ids[start]
        while entry_ids[stop - 1] - first > _DELTA_MAX:
            stop -= 1
        count = stop - start
        packed = pack(f">{count}q", *locations[start:stop])
        if entry_ids[stop - 1] - first == count - 1:
            value = b"\0" + packed
        else:
            value = b"\1" + pack(f">{count}I", *[e - first for e in entry_ids[start:stop]]) + packed
        yield _KEY.pack(b"e", ledger_id, first), value
        start = stop


class ChunkIndex(EntryIndex):
    """The index of one directory in an ordered map."""

    def __init__(self, key_values: KeyValues) -> None:
        self._map = key_values
        # Ledger -> last indexed entry, of the newest ledgers only. Used by the storage thread only.
        self._last: dict[int, int] = {}
        # (ledger, id block) -> the chunk read last there. A write replaces the dict. A reader adds to the
        # dict that it began with, so a chunk read before a write is not cached after the write.
        self._cached: dict[tuple[int, int], IndexChunk] = {}

    # --- reading ---

    def locate(self, ledger_id: int, entry_id: int, count_max: int = 1) -> Sequence[int]:
        found = self._find(ledger_id, entry_id)
        if found is None:
            return ()
        chunk, position = found
        count = 1 if count_max == 1 else chunk.consecutive_from(position, count_max)
        return chunk.locations(position, count)

    def following(self, ledger_id: int, entry_id: int, count_max: int) -> EntryRange:
        found = self._find(ledger_id, entry_id)
        if found is None:
            return EntryRange(ledger_id, (), ())
        chunk, position = found
        count = min(count_max, chunk.count - position)
        return EntryRange(ledger_id, chunk.ids(position, count), chunk.locations(position, count))

    def _find(self, ledger_id: int, entry_id: int) -> tuple[IndexChunk, int] | None:
        """The chunk that holds the entry, and its position there; None if the entry is absent."""
        cached = self._cached
        key = ledger_id, entry_id >> _ID_BLOCK_BITS
        chunk = cached.get(key)
        if chunk is None or (position := chunk.position(entry_id)) is None:
            if entry_id > _ENTRY_ID_MAX:
                return None
            found = self._map.floor(_KEY.pack(b"e", ledger_id, entry_id))
            if found is None or found[0][:9] != _LEDGER_KEY.pack(b"e", ledger_id):
                return None
            chunk = IndexChunk(_KEY.unpack(found[0])[2], found[1])
            position = chunk.position(entry_id)
            if position is None:
                return None
            if len(cached) >= _CACHED_ID_BLOCKS_MAX:
                cached.clear()  # not `self._cached`: a write may have replaced it meanwhile
            block = entry_id >> _ID_BLOCK_BITS
            first = max(chunk.first >> _ID_BLOCK_BITS, block - _ID_BLOCKS_MAX)
            last = min(chunk.last >> _ID_BLOCK_BITS, block + _ID_BLOCKS_MAX)
            for number in range(first, last + 1):
                cached[ledger_id, number] = chunk
        return chunk, position

    def forget_cached(self) -> None:
        self._cached = {}

    def last_entry_id(self, ledger_id: int) -> int:
        found = self._map.floor(_KEY.pack(b"e", ledger_id, _ENTRY_ID_MAX))
        if found is None or found[0][:9] != _LEDGER_KEY.pack(b"e", ledger_id):
            return -1
        return IndexChunk(_KEY.unpack(found[0])[2], found[1]).last

    def ranges(self, ledger_id: int, first_entry_id: int = 0) -> Iterator[EntryRange]:
        if first_entry_id > _ENTRY_ID_MAX:
            return
        first_key, stop_key = _ledger_range(ledger_id)
        if first_entry_id:
            first_key = self._chunks_of(ledger_id, (first_entry_id,))[0]
        for key, value in self._map.scan(first_key, stop_key):
            chunk = IndexChunk(_KEY.unpack(key)[2], value)
            yield EntryRange(ledger_id, chunk.entry_ids(), chunk.locations(0, chunk.count))

    def ledgers(self) -> Iterator[tuple[int, LedgerData]]:
        for key, value in self._map.scan(b"l", b"m"):
            ledger_id = _LEDGER_KEY.unpack(key)[1]
            try:
                yield ledger_id, decode_ledger_data(value)
            except FormatError as exc:
                raise FormatError(f"index: data of ledger {ledger_id}: {exc}") from exc

    @property
    def is_complete(self) -> bool:
        return self._map.get(COMPLETE) is not None

    # --- writing ---

    def put(self, ranges: Iterable[EntryRange], ledgers: Iterable[tuple[int, LedgerData]] = ()) -> None:
        batch: list[Operation] = []
        for entry_range in ranges:
            if not entry_range.entry_ids:
                continue
            last = self._last.get(entry_range.ledger_id)
            if last is None:
                # Read from the chunks, not from the ledger data: after a crash the chunks may be ahead.
                last = self._last[entry_range.ledger_id] = self.last_entry_id(entry_range.ledger_id)
            if entry_range.entry_ids[0] > last:
                batch.extend(
                    encode_chunks(entry_range.ledger_id, entry_range.entry_ids, entry_range.locations)
                )
            else:
                self._map.write(batch)
                batch = []
                self._merge(entry_range)
            self._last[entry_range.ledger_id] = max(last, entry_range.entry_ids[-1])
            if len(self._last) > _LAST_MAX:
                del self._last[next(iter(self._last))]
            if len(batch) >= BATCH_OPERATIONS_MAX:
                self._write(batch)
                batch = []
        for ledger_id, data in ledgers:
            batch.append((_LEDGER_KEY.pack(b"l", ledger_id), encode_ledger_data(data)))
        self._write(batch)
        self.forget_cached()

    def relocate(self, moves: Iterable[LedgerMove]) -> list[list[int]]:
        moved: list[list[int]] = []
        changed: dict[bytes, bytes | None] = {}  # chunks not yet written; two moves may change one chunk
        for move in moves:
            moved.append([])
            if not move.entry_ids:
                continue
            start = 0  # index into the move: earlier entries belong to chunks already processed
            for key, value in self._map.scan(*self._chunks_of(move.ledger_id, move.entry_ids)):
                chunk = IndexChunk(_KEY.unpack(key)[2], changed.get(key) or value)
                stop = bisect_right(move.entry_ids, chunk.last, start)
                after, ids = chunk.relocated(move, start, stop)
                start = stop
                if ids:
                    moved[-1] += ids
                    changed[key] = after
            if len(changed) >= BATCH_OPERATIONS_MAX:
                self._write(list(changed.items()))
                changed.clear()
        self._write(list(changed.items()))
        self.forget_cached()
        return moved

    def delete_ledger(self, ledger_id: int) -> None:
        self._map.delete_range(*_ledger_range(ledger_id))
        self._map.write([(_LEDGER_KEY.pack(b"l", ledger_id), None)])
        self._last.pop(ledger_id, None)
        self.forget_cached()

    def mark_complete(self) -> None:
        self._map.write([(COMPLETE, b"1")])

    def sync(self) -> None:
        self._map.sync()

    def close(self) -> None:
        self._map.close()

    def _write(self, batch: Sequence[Operation]) -> None:
        for start in range(0, len(batch), BATCH_OPERATIONS_MAX):
            self._map.write(batch[start : start + BATCH_OPERATIONS_MAX])

    def _merge(self, entry_range: EntryRange) -> None:
        """Rewrite the chunks that new entries overlap, with the new locations replacing the old.

        In one batch: after half of a merge chunks would overlap, and a lookup would miss entries.
        """
        ledger_id, entry_ids = entry_range.ledger_id, entry_range.entry_ids
        merged: dict[int, int] = {}
        batch: list[Operation] = []
        for key, value in list(self._map.scan(*self._chunks_of(ledger_id, entry_ids))):
            chunk = IndexChunk(_KEY.unpack(key)[2], value)
            merged.update(zip(chunk.entry_ids(), chunk.locations(0, chunk.count), strict=True))
            batch.append((key, None))
        merged.update(zip(entry_ids, entry_range.locations, strict=True))
        ids = sorted(merged)
        batch.extend(encode_chunks(ledger_id, ids, [merged[e] for e in ids]))
        self._map.write(batch)

    def _chunks_of(self, ledger_id: int, entry_ids: Sequence[int]) -> tuple[bytes, bytes]:
        """The range of keys of the chunks that may hold these entries."""
        first_key = _KEY.pack(b"e", ledger_id, entry_ids[0])
        floor = self._map.floor(first_key)
        if floor is not None and floor[0][:9] == first_key[:9]:
            first_key = floor[0]
        return first_key, _KEY.pack(b"e", ledger_id, entry_ids[-1]) + b"\0"


def _ledger_range(ledger_id: int) -> tuple[bytes, bytes]:
    return _LEDGER_KEY.pack(b"e", ledger_id), _KEY.pack(b"e", ledger_id, _ENTRY_ID_MAX) + b"\0"
