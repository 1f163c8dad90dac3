"""An index of one file for each ledger, in BookKeeper's original layout, behind a cache of bounded memory.

Inside: lookups, inserts, moves, deletes; when pages are written; checksums. Not inside: the files' bytes
(``page_file``), which are open (``page_files``), which pages are in memory (``page_cache``).
Always: a page that was made durable is read as it was written, or is an error; of a page that was being
written when the power went, every slot holds what was durable before or what was being written.

What the layout has no room for is in an ordered map beside the files (the directory ``index``):

key    ``c``, ledger i64, page i64   value  CRC32C u32: the page is durable, with these bytes
key    ``i``, ledger i64, page i64   value  empty: the page is being overwritten
key    ``d``, ledger i64             value  empty: the ledger was deleted, its file has to go
key    ``l``, ledger i64             value  ``LedgerData``, which is what counts; headers repeat a part
key    ``e``, ...                    chunks of entries whose ids are too great for a file (``chunk_index``)
key    ``p``                         value  page size in bytes, as text: the index was complete when made

The order of a ``sync``, and what a power cut between two steps leaves:

1. ``i`` for each page that is durable and will be overwritten, synced. Left: more marks than needed.
2. Pages and headers, synced; names of new files, synced. Left: pages of which any sector is old or new.
   Sectors are written whole and slots do not cross them, so that no durable location is lost; replay puts
   the new ones again.
3. ``c`` for each of these pages, ``i`` removed, ledger data; synced.
4. Files of deleted ledgers unlinked, only now: as long as there is a ``c`` there must be a file.

At the next start marked pages are taken as they are, and files of deleted ledgers go. A page without ``c``
does not exist: whatever a file holds there is of a flush that did not happen. A page with ``c`` that is
missing, short or different is damage.

Pages leave memory early, by steps 1 and 2, when three quarters of the cache are dirty.

Source: LedgerCacheImpl.java, IndexInMemPageMgr.java, IndexPersistenceMgr.java; what is different is against
apache/bookkeeper#913, #1757, #2485 and headers that are not synced (reference on bookie storage 7.4).
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from struct import Struct, pack_into, unpack_from

import attrs
from crc32c import crc32c

from bookie.chunk_index import ChunkIndex
from bookie.disk import Disk
from bookie.errors import FormatError, StartError
from bookie.index import EntryIndex, LedgerMove, LedgerRun
from bookie.key_values import BATCH_OPERATIONS_MAX, KeyValues, Operation
from bookie.ledgers import LedgerData, decode_ledger_data
from bookie.page_cache import Page, PageCache, PageKey
from bookie.page_file import (
    LOCATION_BYTES,
    PAGE_FILE_HEADER_BYTES,
    PageFileHeader,
    encode_page_file_header,
    page_file_path,
)
from bookie.page_files import PageFiles

log = logging.getLogger(__name__)

# Files have holes, but not without end: ext4 stops at 16 TiB. Greater ids are a client's invention.
PAGED_ENTRY_ID_STOP = 2**38
_PAGE_KEY = Struct(">cqq")
_LEDGER_KEY = Struct(">cq")
_CRC = Struct(">I")
COMPLETE = b"p"  # the key that says so
_NUMBER_MAX = 2**63 - 1
_STRIPES = 64


@attrs.frozen(kw_only=True)
class PageIndexConfig:
    """How much of the files is kept in memory and open, for one directory."""

    page_bytes: int = attrs.field(default=8192)
    pages_max: int = attrs.field(default=8192, validator=attrs.validators.ge(4))
    open_files_max: int = attrs.field(default=1024, validator=attrs.validators.ge(1))

    @page_bytes.validator
    def _check(self, _: object, value: int) -> None:
        if value < 512 or value % 512:
            raise ValueError(f"page_bytes: a multiple of 512, not {value}")


class PageIndex(EntryIndex):
    """See the module."""

    def __init__(self, disk: Disk, directory: Path, key_values: KeyValues, config: PageIndexConfig) -> None:
        """Take over the files below ``directory`` and the map. ``StartError`` for another page size."""
        self._directory = directory
        self._map = key_values
        self._page_bytes = config.page_bytes
        self._page_entries = config.page_bytes // LOCATION_BYTES
        self._files = PageFiles(disk, directory, config.open_files_max)
        self._cache = PageCache(config.pages_max)
        self._dirty_max = max(1, config.pages_max * 3 // 4)
        self._rest = ChunkIndex(key_values)  # ledger data, and entries that no file holds
        # A page enters the cache only if none of its ledger was written since it was read. The stripe's
        # lock is held while pages of a ledger are read or written, the cache's for a moment.
        self._cache_lock = threading.Lock()
        self._stripes = [threading.Lock() for _ in range(_STRIPES)]
        self._writes = [0] * _STRIPES
        # The storage thread's:
        self._written: dict[int, dict[int, int]] = {}  # ledger -> page -> CRC: in the file, not synced
        self._marked: set[tuple[int, int]] = set()  # pages with an ``i``
        self._headers: dict[int, bytes] = {}  # to be compared with the files'
        self._deleted: set[int] = set()  # ledgers with a ``d``: their files are still to go
        self._in_doubt: set[PageKey] = set()  # being overwritten when the power went; of one that only looks
        self._recover()

    # --- reading ---

    def locate(self, ledger_id: int, entry_id: int, count_max: int = 1) -> Sequence[int]:
        if not 0 <= entry_id < PAGED_ENTRY_ID_STOP:
            return self._rest.locate(ledger_id, entry_id, count_max)
        number, slot = divmod(entry_id, self._page_entries)
        data = self._page(ledger_id, number)
        if data is None:
            return ()
        count = min(count_max, self._page_entries - slot)
        found: tuple[int, ...] = unpack_from(f">{count}q", data, LOCATION_BYTES * slot)
        return found[: found.index(0)] if 0 in found else found

    def following(self, ledger_id: int, entry_id: int, count_max: int) -> LedgerRun:
        if not 0 <= entry_id < PAGED_ENTRY_ID_STOP:
            return self._rest.following(ledger_id, entry_id, count_max)
        number, first_slot = divmod(entry_id, self._page_entries)
        data = self._page(ledger_id, number)
        if data is None:
            return LedgerRun(ledger_id, (), ())
        count = self._page_entries - first_slot
        locations: tuple[int, ...] = unpack_from(f">{count}q", data, LOCATION_BYTES * first_slot)
        if not locations[0]:
            return LedgerRun(ledger_id, (), ())
        if 0 not in locations[:count_max]:
            return LedgerRun(
                ledger_id, range(entry_id, entry_id + len(locations[:count_max])), locations[:count_max]
            )
        found = [at for at, location in enumerate(locations) if location][:count_max]
        return LedgerRun(ledger_id, [entry_id + at for at in found], [locations[at] for at in found])

    def forget_cached(self) -> None:
        """Nothing to do: lookups and writes share one cache."""

    def last_entry_id(self, ledger_id: int) -> int:
        if (last := self._rest.last_entry_id(ledger_id)) >= 0:
            return last
        number = max(self._unsealed_numbers(ledger_id), default=-1)
        found = self._map.floor(_PAGE_KEY.pack(b"c", ledger_id, _NUMBER_MAX))
        if found is not None and found[0][:9] == _LEDGER_KEY.pack(b"c", ledger_id):
            number = max(number, _PAGE_KEY.unpack(found[0])[2])
        data = None if number < 0 else self._page(ledger_id, number)
        if data is None:
            return -1
        used_bytes = len(bytes(data).rstrip(b"\0"))
        return number * self._page_entries + (used_bytes - 1) // LOCATION_BYTES

    def runs(self, ledger_id: int, first_entry_id: int = 0) -> Iterator[LedgerRun]:
        keys = self._map.scan(
            _PAGE_KEY.pack(b"c", ledger_id, min(first_entry_id // self._page_entries, _NUMBER_MAX)),
            _PAGE_KEY.pack(b"c", ledger_id, _NUMBER_MAX),
        )
        numbers = self._unsealed_numbers(ledger_id)  # first: a page goes from here to there
        numbers.update(_PAGE_KEY.unpack(key)[2] for key, _ in keys)
        for number in sorted(numbers):
            if number < first_entry_id // self._page_entries:
                continue
            data = self._page(ledger_id, number)
            if data is None:
                continue  # deleted meanwhile
            first = number * self._page_entries
            locations = unpack_from(f">{self._page_entries}q", data)
            if all(locations):
                yield LedgerRun(ledger_id, range(first, first + len(locations)), locations)
            else:
                slots = [slot for slot, location in enumerate(locations) if location]
                yield LedgerRun(ledger_id, [first + s for s in slots], [locations[s] for s in slots])
        yield from self._rest.runs(ledger_id, first_entry_id)

    def ledgers(self) -> Iterator[tuple[int, LedgerData]]:
        return self._rest.ledgers()

    @property
    def is_complete(self) -> bool:
        return self._map.get(COMPLETE) is not None

    # --- writing ---

    def put(self, runs: Iterable[LedgerRun], ledgers: Iterable[tuple[int, LedgerData]] = ()) -> None:
        beyond: list[LedgerRun] = []
        for run in runs:
            ids, start = run.entry_ids, 0
            while start < len(ids):
                number = ids[start] // self._page_entries
                if ids[start] >= PAGED_ENTRY_ID_STOP:
                    beyond.append(LedgerRun(run.ledger_id, ids[start:], run.locations[start:]))
                    break
                first = number * self._page_entries
                stop = bisect_left(ids, min(first + self._page_entries, PAGED_ENTRY_ID_STOP), start)
                data = self._page_to_change(run.ledger_id, number)
                _fill(data, first, ids[start:stop], run.locations[start:stop])
                start = stop
        ledgers = list(ledgers)
        self._rest.put(beyond, ledgers)
        for ledger_id, known in ledgers:
            self._headers[ledger_id] = _header(known)

    def relocate(self, moves: Iterable[LedgerMove]) -> list[list[int]]:
        moved: list[list[int]] = []
        for move in moves:
            moved.append([])
            ids, start = move.entry_ids, 0
            while start < len(ids):
                if ids[start] >= PAGED_ENTRY_ID_STOP:
                    rest = LedgerMove(
                        move.ledger_id, ids[start:], move.old_locations[start:], move.new_locations[start:]
                    )
                    moved[-1] += self._rest.relocate([rest])[0]
                    break
                number = ids[start] // self._page_entries
                first = number * self._page_entries
                stop = bisect_left(ids, min(first + self._page_entries, PAGED_ENTRY_ID_STOP), start)
                moved[-1] += self._relocate_in_page(move, number, start, stop)
                start = stop
        return moved

    def delete_ledger(self, ledger_id: int) -> None:
        stripe = ledger_id % _STRIPES
        with self._stripes[stripe]:
            with self._cache_lock:
                self._writes[stripe] += 1
                self._cache.drop_ledger(ledger_id)
            self._written.pop(ledger_id, None)
            self._headers.pop(ledger_id, None)
            self._marked = {key for key in self._marked if key[0] != ledger_id}
            for kind in (b"c", b"i"):
                self._map.delete_range(*_page_keys(kind, ledger_id))
            self._rest.delete_ledger(ledger_id)
            self._map.write([(_LEDGER_KEY.pack(b"d", ledger_id), b"")])  # the last: now no ``c`` is left
            self._deleted.add(ledger_id)

    def mark_complete(self) -> None:
        self._map.write([(COMPLETE, b"%d" % self._page_bytes)])

    def sync(self) -> None:
        self._write_back()
        self._files.sync()
        seals: list[Operation] = []
        for ledger_id, pages in self._written.items():
            for number, crc in pages.items():
                seals.append((_PAGE_KEY.pack(b"c", ledger_id, number), _CRC.pack(crc)))
        for ledger_id, number in self._marked:
            seals.append((_PAGE_KEY.pack(b"i", ledger_id, number), None))
        # One batch for a page's two keys would be simpler to think of; but ``c`` first is as good: a mark
        # that outlives a crash makes the next start seal the page once more.
        for start in range(0, len(seals), BATCH_OPERATIONS_MAX):
            self._map.write(seals[start : start + BATCH_OPERATIONS_MAX])
        self._map.sync()
        for ledger_id in list(self._written):
            with self._stripes[ledger_id % _STRIPES]:
                del self._written[ledger_id]
        self._marked.clear()
        if self._deleted:
            self._unlink_deleted()

    def _unlink_deleted(self) -> None:
        """Let files of deleted ledgers go; the map's part of the deletion is durable."""
        for ledger_id in self._deleted:
            self._files.delete(ledger_id)
        self._files.sync()
        # Not synced: after a crash there is a ``d`` too many, and no file.
        self._map.write([(_LEDGER_KEY.pack(b"d", ledger_id), None) for ledger_id in self._deleted])
        self._deleted.clear()

    def close(self) -> None:
        self._files.close()
        self._map.close()

    # --- pages ---

    def _page(self, ledger_id: int, number: int) -> bytearray | None:
        """The page's bytes, not to be changed; None if there is no such page. Any thread."""
        key = (ledger_id, number)
        with self._cache_lock:
            if (page := self._cache.get(key)) is not None:
                return page.data
        stripe = ledger_id % _STRIPES
        with self._stripes[stripe]:
            writes = self._writes[stripe]
            data = self._load(ledger_id, number)
        if data is None:
            return None
        with self._cache_lock:
            if (page := self._cache.get(key)) is not None:
                return page.data
            if writes == self._writes[stripe]:
                self._cache.add(key, data)
        return data

    def _page_to_change(self, ledger_id: int, number: int) -> bytearray:
        """The page in the cache, marked as dirty."""
        key = (ledger_id, number)
        with self._cache_lock:
            if (page := self._cache.get(key)) is not None and page.is_dirty:
                return page.data
            is_room = len(self._cache.dirty) < self._dirty_max
        if not is_room:
            self._write_back()
        with self._cache_lock:
            page = self._cache.get(key)
        loaded = None
        if page is None:
            with self._stripes[ledger_id % _STRIPES]:
                loaded = self._load(ledger_id, number)
        with self._cache_lock:
            if (page := self._cache.get(key)) is None:
                page = self._cache.add(key, bytearray(self._page_bytes) if loaded is None else loaded)
                assert page is not None, "less than all of the cache is dirty"
            self._cache.mark_dirty(key)
            return page.data

    def _load(self, ledger_id: int, number: int) -> bytearray | None:
        """Read a page from its file and check it; None if there is no such page. The stripe is locked."""
        crc = self._written.get(ledger_id, {}).get(number)
        if crc is None:
            if (value := self._map.get(_PAGE_KEY.pack(b"c", ledger_id, number))) is None:
                return None
            crc = _CRC.unpack(value)[0]
        offset = self._offset(number)
        data = self._files.read(ledger_id, self._page_bytes, offset)
        is_right = crc32c(data) == crc or (ledger_id, number) in self._in_doubt
        if len(data) != self._page_bytes or not is_right:
            path = page_file_path(self._directory, ledger_id)
            raise FormatError(
                f"{path}: the page at offset {offset} is not what was written. The index is damaged: stop the"
                " bookie and rebuild the index"
            )
        return bytearray(data)

    def _relocate_in_page(self, move: LedgerMove, number: int, start: int, stop: int) -> list[int]:
        current = self._page(move.ledger_id, number)
        if current is None:
            return []
        first = number * self._page_entries
        locations = unpack_from(f">{self._page_entries}q", current)
        ids = list(move.entry_ids[start:stop])
        places = list(move.new_locations[start:stop])
        old = tuple(move.old_locations[start:stop])
        is_dense = ids[-1] - ids[0] == len(ids) - 1
        if not is_dense or locations[ids[0] - first : ids[-1] - first + 1] != old:  # compared in one go
            kept = [at for at, entry_id in enumerate(ids) if locations[entry_id - first] == old[at]]
            ids, places = [ids[at] for at in kept], [places[at] for at in kept]
        if ids:
            _fill(self._page_to_change(move.ledger_id, number), first, ids, places)
        return ids

    def _offset(self, number: int) -> int:
        return PAGE_FILE_HEADER_BYTES + self._page_bytes * number

    def _unsealed_numbers(self, ledger_id: int) -> set[int]:
        """Pages that ``c`` does not tell of yet."""
        with self._cache_lock:
            numbers = self._cache.dirty_numbers(ledger_id)
        return numbers.union(list(self._written.get(ledger_id, ())))

    # --- writing pages; steps 1 and 2 of a sync, without the sync ---

    def _write_back(self) -> None:
        """Write all dirty pages and changed headers to their files, ledger by ledger."""
        ledgers: dict[int, list[tuple[int, Page]]] = {}
        with self._cache_lock:
            for (ledger_id, number), page in self._cache.dirty_pages():
                ledgers.setdefault(ledger_id, []).append((number, page))
        if not self._deleted.isdisjoint(ledgers.keys() | self._headers.keys()):
            self._map.sync()  # a ledger made anew right after its deletion
            self._unlink_deleted()
        self._mark_overwritten(ledgers)
        for ledger_id in sorted(ledgers.keys() | self._headers.keys()):
            self._write_ledger(ledger_id, ledgers.get(ledger_id, []))
        self._headers.clear()

    def _mark_overwritten(self, ledgers: dict[int, list[tuple[int, Page]]]) -> None:
        marks: list[Operation] = []
        for ledger_id, pages in ledgers.items():
            for number, _ in pages:
                if (ledger_id, number) in self._marked:
                    continue
                if self._map.get(_PAGE_KEY.pack(b"c", ledger_id, number)) is not None:
                    self._marked.add((ledger_id, number))
                    marks.append((_PAGE_KEY.pack(b"i", ledger_id, number), b""))
        if marks:
            for start in range(0, len(marks), BATCH_OPERATIONS_MAX):
                self._map.write(marks[start : start + BATCH_OPERATIONS_MAX])
            self._map.sync()  # the mark before the page

    def _write_ledger(self, ledger_id: int, pages: list[tuple[int, Page]]) -> None:
        header = self._headers.get(ledger_id)
        if header is None:
            stored = self._map.get(_LEDGER_KEY.pack(b"l", ledger_id))
            header = _header(
                LedgerData(b"", False, None, -1, -1) if stored is None else decode_ledger_data(stored)
            )
        pieces: list[tuple[int, list[bytearray]]] = []
        crcs: dict[int, int] = {}
        for number, page in pages:
            if pieces and number - 1 in crcs:  # beside the last one: one write for both
                pieces[-1][1].append(page.data)
            else:
                pieces.append((self._offset(number), [page.data]))
            crcs[number] = crc32c(page.data)
        stripe = ledger_id % _STRIPES
        with self._stripes[stripe]:
            self._files.write(ledger_id, pieces, header, is_known=lambda: self._has_pages(ledger_id))
            self._written.setdefault(ledger_id, {}).update(crcs)
            with self._cache_lock:
                self._writes[stripe] += 1
                for number, _ in pages:
                    self._cache.mark_clean((ledger_id, number))

    def _has_pages(self, ledger_id: int) -> bool:
        if self._written.get(ledger_id):
            return True
        found = self._map.floor(_PAGE_KEY.pack(b"c", ledger_id, _NUMBER_MAX))
        return found is not None and found[0][:9] == _LEDGER_KEY.pack(b"c", ledger_id)

    # --- start ---

    def _recover(self) -> None:
        """Check the page size; finish deletions; take pages that were being overwritten as they are."""
        stored = self._map.get(COMPLETE)
        if stored is not None and stored != b"%d" % self._page_bytes:
            raise StartError(
                f"the index in {self._directory} was made with pageSize={stored.decode('ascii', 'replace')},"
                f" and the configuration says {self._page_bytes}. Set it back, or rebuild the index"
            )
        if self._map.is_read_only:
            self._in_doubt = {_PAGE_KEY.unpack(key)[1:] for key, _ in self._map.scan(b"i", b"j")}
            return
        self._deleted = {_LEDGER_KEY.unpack(key)[1] for key, _ in self._map.scan(b"d", b"e")}
        if self._deleted:
            self._map.sync()  # what a killed process wrote may not be durable yet
            self._unlink_deleted()
        seals: list[Operation] = []
        last: int | None = None
        for key, _ in self._map.scan(b"i", b"j"):
            _, ledger_id, number = _PAGE_KEY.unpack(key)
            try:
                if ledger_id != last:
                    # After a kill the page may be in memory only, and what is sealed must not be lost again.
                    self._files.sync_file(ledger_id)
                    last = ledger_id
                data = self._files.read(ledger_id, self._page_bytes, self._offset(number))
            except FileNotFoundError as exc:
                log.error("index file missing, its entries cannot be read: %s", exc)
                continue  # left as it is: ``c`` is there, so that a read is an error
            if len(data) == self._page_bytes:
                seals.append((_PAGE_KEY.pack(b"c", ledger_id, number), _CRC.pack(crc32c(data))))
                seals.append((key, None))
        for start in range(0, len(seals), BATCH_OPERATIONS_MAX):
            self._map.write(seals[start : start + BATCH_OPERATIONS_MAX])
        if seals:
            self._map.sync()


def _page_keys(kind: bytes, ledger_id: int) -> tuple[bytes, bytes]:
    return _PAGE_KEY.pack(kind, ledger_id, 0), _PAGE_KEY.pack(kind, ledger_id, _NUMBER_MAX)


def _header(data: LedgerData) -> bytes:
    return encode_page_file_header(PageFileHeader(data.master_key, data.fenced, data.explicit_lac))


def _fill(data: bytearray, first: int, entry_ids: Sequence[int], locations: Sequence[int]) -> None:
    """Put locations into a page's slots, runs of neighbours in one go."""
    count = len(entry_ids)
    if entry_ids[-1] - entry_ids[0] == count - 1:
        pack_into(f">{count}q", data, LOCATION_BYTES * (entry_ids[0] - first), *locations)
        return
    for entry_id, location in zip(entry_ids, locations, strict=True):
        pack_into(">q", data, LOCATION_BYTES * (entry_id - first), location)
