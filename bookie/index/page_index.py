"""An index with one file for each ledger, in BookKeeper's original layout, and a bounded page cache.

Inside: lookups, inserts, moves, deletes; when pages are written; checksums. Not inside: the files' bytes
(``page_file``), open files (``page_files``), cached pages (``page_cache``).
Always: a read of a durable page returns the bytes that were written, or raises. If power fails during the
write of a page, each slot keeps its old durable location or has the new one.

An ordered map beside the files (the directory ``index``, ``page_keys``) holds the data that the layout does
not have. The order of a ``sync``, and the state after a power cut between two steps:

1. Put ``i`` for each durable page that will be overwritten; sync. State: more marks than needed.
2. Write pages and headers, sync; sync the names of new files. State: in each page, any sector is old or
   new. A sector is written atomically and slots do not cross sectors, so no durable location is lost. Replay
   puts the new ones again.
3. Put ``c`` for each of these pages, remove ``i``, put ledger data; sync.
4. Unlink files of deleted ledgers. Not earlier: each ledger with a ``c`` must have a file.

At the next start marked pages are accepted as they are, and files of deleted ledgers are unlinked. A page
without ``c`` does not exist: its bytes come from a flush that a crash has undone. A page with ``c`` that is
missing, short or different is damaged.

When three quarters of the cache are dirty, steps 1 and 2 write pages before the next sync.

Source: LedgerCacheImpl.java, IndexInMemPageMgr.java, IndexPersistenceMgr.java; the differences avoid
apache/bookkeeper#913, #1757, #2485 and headers that are not synced (docs/storage-format.md 5.4).
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from struct import unpack_from

from crc32c import crc32c

from bookie.disk.disk import Disk
from bookie.disk.key_values import BATCH_OPERATIONS_MAX, KeyValues, Operation
from bookie.errors import FormatError, StartError
from bookie.index.chunk_index import ChunkIndex
from bookie.index.entry_index import EntryIndex, EntryRange, LedgerMove
from bookie.index.page_cache import IndexPage, PageCache, PageIndexConfig, PageKey
from bookie.index.page_file import (
    LOCATION_BYTES,
    PAGE_FILE_HEADER_BYTES,
    PageFileHeader,
    encode_page_file_header,
    page_file_path,
    put_locations,
    used_page_bytes,
)
from bookie.index.page_files import PageFiles
from bookie.index.page_keys import CRC, LEDGER_KEY, NUMBER_MAX, PAGE_KEY, page_keys
from bookie.ledger_record import LedgerData, decode_ledger_data
from ledger.runtime.log_lines import get_logger

log = get_logger(__name__)

# Files are sparse but limited: 16 TiB on ext4. Only an id chosen by a client is greater; chunks hold it.
PAGED_ENTRY_ID_STOP = 2**38
COMPLETE = b"p"  # the key that marks the index as complete
_STRIPES = 64


class PageIndex(EntryIndex):
    """The index of one directory in page files and an ordered map."""

    def __init__(self, disk: Disk, directory: Path, key_values: KeyValues, config: PageIndexConfig) -> None:
        """Open the files below ``directory`` and the map. ``StartError`` if the page size differs."""
        self._disk = disk
        self._directory = directory
        self._map = key_values
        self._page_bytes = config.page_bytes
        self._page_entries = config.page_bytes // LOCATION_BYTES
        self._files = PageFiles(disk, directory, config.open_files_max)
        self._cache = PageCache(config.pages_max)
        self._dirty_max = max(1, config.pages_max * 3 // 4)
        self._chunks = ChunkIndex(key_values)  # ledger data, and entries with ids too great for a file
        # A page enters the cache only if no page of its stripe was written since it was read. The stripe's
        # lock is held during reads and writes of a ledger's pages, the cache's lock only in memory. A thread
        # that waits for a file descriptor holds neither: the loop takes both.
        self._cache_lock = threading.Lock()
        self._stripes = [threading.Lock() for _ in range(_STRIPES)]
        self._writes = [0] * _STRIPES
        # Used by the storage thread only:
        self._written: dict[
            int, dict[int, int]
        ] = {}  # ledger -> page -> CRC: written to the file, not synced
        self._marked: set[tuple[int, int]] = set()  # pages that have an ``i``
        self._headers: dict[int, bytes] = {}  # headers to write if the files have others
        self._deleted: set[int] = set()  # ledgers with a ``d``: their files must be unlinked
        # Pages that were being overwritten when the bookie stopped. A read-only index cannot seal them.
        self._uncertain: set[PageKey] = set()
        self._recover()

    # --- reading ---

    def locate(self, ledger_id: int, entry_id: int, count_max: int = 1) -> Sequence[int]:
        if not 0 <= entry_id < PAGED_ENTRY_ID_STOP:
            return self._chunks.locate(ledger_id, entry_id, count_max)
        number, slot = divmod(entry_id, self._page_entries)
        data = self._page(ledger_id, number)
        if data is None:
            return ()
        count = min(count_max, self._page_entries - slot)
        found: tuple[int, ...] = unpack_from(f">{count}q", data, LOCATION_BYTES * slot)
        return found[: found.index(0)] if 0 in found else found

    def following(self, ledger_id: int, entry_id: int, count_max: int) -> EntryRange:
        if not 0 <= entry_id < PAGED_ENTRY_ID_STOP:
            return self._chunks.following(ledger_id, entry_id, count_max)
        number, first_slot = divmod(entry_id, self._page_entries)
        data = self._page(ledger_id, number)
        if data is None:
            return EntryRange(ledger_id, (), ())
        count = self._page_entries - first_slot
        locations: tuple[int, ...] = unpack_from(f">{count}q", data, LOCATION_BYTES * first_slot)
        if not locations[0]:
            return EntryRange(ledger_id, (), ())
        if 0 not in locations[:count_max]:
            return EntryRange(
                ledger_id, range(entry_id, entry_id + len(locations[:count_max])), locations[:count_max]
            )
        found = [at for at, location in enumerate(locations) if location][:count_max]
        return EntryRange(ledger_id, [entry_id + at for at in found], [locations[at] for at in found])

    def forget_cached(self) -> None:
        """Nothing to do: lookups and writes share one cache."""

    def last_entry_id(self, ledger_id: int) -> int:
        if (last := self._chunks.last_entry_id(ledger_id)) >= 0:
            return last
        number = max(self._unsealed_numbers(ledger_id), default=-1)
        found = self._map.floor(PAGE_KEY.pack(b"c", ledger_id, NUMBER_MAX))
        if found is not None and found[0][:9] == LEDGER_KEY.pack(b"c", ledger_id):
            number = max(number, PAGE_KEY.unpack(found[0])[2])
        data = None if number < 0 else self._page(ledger_id, number)
        if data is None:
            return -1
        return number * self._page_entries + used_page_bytes(data) // LOCATION_BYTES - 1

    def ranges(self, ledger_id: int, first_entry_id: int = 0) -> Iterator[EntryRange]:
        keys = self._map.scan(
            PAGE_KEY.pack(b"c", ledger_id, min(first_entry_id // self._page_entries, NUMBER_MAX)),
            PAGE_KEY.pack(b"c", ledger_id, NUMBER_MAX),
        )
        # Read before ``keys``, whose scan begins below: a page moves from the unsealed ones to the keys.
        numbers = self._unsealed_numbers(ledger_id)
        numbers.update(PAGE_KEY.unpack(key)[2] for key, _ in keys)
        for number in sorted(numbers):
            if number < first_entry_id // self._page_entries:
                continue
            data = self._page(ledger_id, number)
            if data is None:
                continue  # deleted meanwhile
            first = number * self._page_entries
            locations = unpack_from(f">{self._page_entries}q", data)
            if all(locations):
                yield EntryRange(ledger_id, range(first, first + len(locations)), locations)
            else:
                slots = [slot for slot, location in enumerate(locations) if location]
                yield EntryRange(ledger_id, [first + s for s in slots], [locations[s] for s in slots])
        yield from self._chunks.ranges(ledger_id, first_entry_id)

    def ledgers(self) -> Iterator[tuple[int, LedgerData]]:
        return self._chunks.ledgers()

    @property
    def is_complete(self) -> bool:
        return self._map.get(COMPLETE) is not None

    # --- writing ---

    def put(self, ranges: Iterable[EntryRange], ledgers: Iterable[tuple[int, LedgerData]] = ()) -> None:
        ledgers = list(ledgers)
        # Before the pages: if the cache is too small for them, some files are written below. A file that is
        # written without its header would be opened, written and synced twice.
        for ledger_id, ledger_data in ledgers:
            self._headers[ledger_id] = _header(ledger_data)
        unpaged: list[EntryRange] = []
        for entry_range in ranges:
            ids, start = entry_range.entry_ids, 0
            while start < len(ids):
                number = ids[start] // self._page_entries
                if ids[start] >= PAGED_ENTRY_ID_STOP:
                    unpaged.append(
                        EntryRange(entry_range.ledger_id, ids[start:], entry_range.locations[start:])
                    )
                    break
                first = number * self._page_entries
                stop = bisect_left(ids, min(first + self._page_entries, PAGED_ENTRY_ID_STOP), start)
                data = self._page_to_change(entry_range.ledger_id, number)
                put_locations(data, first, ids[start:stop], entry_range.locations[start:stop])
                start = stop
        self._chunks.put(unpaged, ledgers)

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
                    moved[-1] += self._chunks.relocate([rest])[0]
                    break
                number = ids[start] // self._page_entries
                first = number * self._page_entries
                stop = bisect_left(ids, min(first + self._page_entries, PAGED_ENTRY_ID_STOP), start)
                moved[-1] += self._relocate_in_page(move, number, start, stop)
                start = stop
        return moved

    def delete_ledger(self, ledger_id: int) -> None:
        self._disk.with_descriptors(partial(self._delete_ledger, ledger_id))

    def _delete_ledger(self, ledger_id: int) -> None:
        stripe = ledger_id % _STRIPES
        with self._stripes[stripe]:
            with self._cache_lock:
                self._writes[stripe] += 1
                self._cache.drop_ledger(ledger_id)
            self._written.pop(ledger_id, None)
            self._headers.pop(ledger_id, None)
            self._marked = {key for key in self._marked if key[0] != ledger_id}
            for kind in (b"c", b"i"):
                self._map.delete_range(*page_keys(kind, ledger_id))
            self._chunks.delete_ledger(ledger_id)
            self._map.write([(LEDGER_KEY.pack(b"d", ledger_id), b"")])  # the last: now no ``c`` is left
            self._deleted.add(ledger_id)

    def mark_complete(self) -> None:
        self._map.write([(COMPLETE, b"%d" % self._page_bytes)])

    def sync(self) -> None:
        self._write_back()
        self._files.sync()
        seals: list[Operation] = []
        for ledger_id, pages in self._written.items():
            for number, crc in pages.items():
                seals.append((PAGE_KEY.pack(b"c", ledger_id, number), CRC.pack(crc)))
        for ledger_id, number in self._marked:
            seals.append((PAGE_KEY.pack(b"i", ledger_id, number), None))
        # The two keys of a page need no common batch, since ``c`` comes first: if the mark survives a crash,
        # the next start seals the page again.
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
        """Unlink files of deleted ledgers; the map's part of the deletion is durable already."""
        for ledger_id in self._deleted:
            self._files.delete(ledger_id)
        self._files.sync()
        # Not synced: after a crash a ``d`` may remain without a file.
        self._map.write([(LEDGER_KEY.pack(b"d", ledger_id), None) for ledger_id in self._deleted])
        self._deleted.clear()

    def close(self) -> None:
        self._files.close()
        self._map.close()

    # --- pages ---

    def _page(self, ledger_id: int, number: int) -> bytearray | None:
        """The page's bytes, which the caller must not change; None if the page does not exist. Any thread."""
        key = (ledger_id, number)
        with self._cache_lock:
            if (page := self._cache.get(key)) is not None:
                return page.data
        data, writes = self._disk.with_descriptors(partial(self._load_counted, ledger_id, number))
        if data is None:
            return None
        with self._cache_lock:
            if (page := self._cache.get(key)) is not None:
                return page.data
            if writes == self._writes[ledger_id % _STRIPES]:
                self._cache.add(key, data)
        return data

    def _load_counted(self, ledger_id: int, number: int) -> tuple[bytearray | None, int]:
        """As ``_load``; also the count of the stripe's writes before it."""
        stripe = ledger_id % _STRIPES
        with self._stripes[stripe]:
            writes = self._writes[stripe]
            return self._load(ledger_id, number), writes

    def _page_to_change(self, ledger_id: int, number: int) -> bytearray:
        """The page in the cache, marked dirty, to be changed by the caller."""
        key = (ledger_id, number)
        with self._cache_lock:
            if (page := self._cache.get(key)) is not None and page.is_dirty:
                return page.data
            is_full = len(self._cache.dirty) >= self._dirty_max
        if is_full:
            self._write_back(with_pages_only=True)
        with self._cache_lock:
            page = self._cache.get(key)
        loaded = None
        if page is None:
            loaded, _ = self._disk.with_descriptors(partial(self._load_counted, ledger_id, number))
        with self._cache_lock:
            if (page := self._cache.get(key)) is None:
                page = self._cache.add(key, bytearray(self._page_bytes) if loaded is None else loaded)
                # ``_write_back`` runs above ``_dirty_max``
                assert page is not None, "a part of the cache is always clean"
            self._cache.mark_dirty(key)
            return page.data

    def _load(self, ledger_id: int, number: int) -> bytearray | None:
        """Read a page from its file and check it; None if it does not exist. The caller locks the stripe."""
        crc = self._written.get(ledger_id, {}).get(number)
        if crc is None:
            if (value := self._map.get(PAGE_KEY.pack(b"c", ledger_id, number))) is None:
                return None
            crc = CRC.unpack(value)[0]
        offset = self._offset(number)
        data = self._files.read(ledger_id, self._page_bytes, offset)
        is_valid = crc32c(data) == crc or (ledger_id, number) in self._uncertain
        if len(data) != self._page_bytes or not is_valid:
            path = page_file_path(self._directory, ledger_id)
            raise FormatError(
                f"{path}: the page at offset {offset} does not match its checksum. A running bookie of a"
                " cluster stores it anew; without other bookies stop this one and run `dlog bookie"
                " rebuild-index`"
            )
        return bytearray(data)

    def _relocate_in_page(self, move: LedgerMove, number: int, start: int, stop: int) -> list[int]:
        current = self._page(move.ledger_id, number)
        if current is None:
            return []
        first = number * self._page_entries
        locations = unpack_from(f">{self._page_entries}q", current)
        ids = list(move.entry_ids[start:stop])
        new = list(move.new_locations[start:stop])
        old = tuple(move.old_locations[start:stop])
        is_dense = ids[-1] - ids[0] == len(ids) - 1
        if not is_dense or locations[ids[0] - first : ids[-1] - first + 1] != old:  # one comparison for all
            kept = [at for at, entry_id in enumerate(ids) if locations[entry_id - first] == old[at]]
            ids, new = [ids[at] for at in kept], [new[at] for at in kept]
        if ids:
            put_locations(self._page_to_change(move.ledger_id, number), first, ids, new)
        return ids

    def _offset(self, number: int) -> int:
        return PAGE_FILE_HEADER_BYTES + self._page_bytes * number

    def _unsealed_numbers(self, ledger_id: int) -> set[int]:
        """Numbers of the pages that have no ``c`` for their latest bytes yet."""
        with self._cache_lock:
            numbers = self._cache.dirty_numbers(ledger_id)
        return numbers.union(list(self._written.get(ledger_id, ())))

    # --- writing pages; steps 1 and 2 of a sync, without the sync ---

    def _write_back(self, *, with_pages_only: bool = False) -> None:
        """Write all dirty pages and changed headers to their files, in order of ledger.

        ``with_pages_only``: write no header of a ledger without dirty pages.
        """
        ledgers: dict[int, list[tuple[int, IndexPage]]] = {}
        with self._cache_lock:
            for (ledger_id, number), page in self._cache.dirty_pages():
                ledgers.setdefault(ledger_id, []).append((number, page))
        ledger_ids = set(ledgers) if with_pages_only else ledgers.keys() | self._headers.keys()
        if not self._deleted.isdisjoint(ledger_ids):
            self._map.sync()  # a ledger was created again right after its deletion
            self._unlink_deleted()
        self._mark_overwritten(ledgers)
        for ledger_id in sorted(ledger_ids):
            self._write_ledger(ledger_id, ledgers.get(ledger_id, []))
            self._headers.pop(ledger_id, None)

    def _mark_overwritten(self, ledgers: dict[int, list[tuple[int, IndexPage]]]) -> None:
        marks: list[Operation] = []
        for ledger_id, pages in ledgers.items():
            for number, _ in pages:
                if (ledger_id, number) in self._marked:
                    continue
                if self._map.get(PAGE_KEY.pack(b"c", ledger_id, number)) is not None:
                    self._marked.add((ledger_id, number))
                    marks.append((PAGE_KEY.pack(b"i", ledger_id, number), b""))
        if marks:
            for start in range(0, len(marks), BATCH_OPERATIONS_MAX):
                self._map.write(marks[start : start + BATCH_OPERATIONS_MAX])
            self._map.sync()  # the mark must be durable before the page is overwritten

    def _write_ledger(self, ledger_id: int, pages: list[tuple[int, IndexPage]]) -> None:
        header = self._headers.get(ledger_id)
        if header is None:
            stored = self._map.get(LEDGER_KEY.pack(b"l", ledger_id))
            header = _header(
                LedgerData(b"", False, None, -1, -1) if stored is None else decode_ledger_data(stored)
            )
        pieces: list[tuple[int, list[bytearray | memoryview]]] = []
        crcs: dict[int, int] = {}
        has_pages = self._has_pages(ledger_id)
        for number, page in pages:
            data = self._without_hole(ledger_id, number, page.data, has_pages=has_pages)
            if pieces and number - 1 in crcs and len(pieces[-1][1][-1]) == self._page_bytes:
                pieces[-1][1].append(data)  # adjacent to the previous page: one write for both
            else:
                pieces.append((self._offset(number), [data]))
            crcs[number] = crc32c(page.data)
        stripe = ledger_id % _STRIPES

        def write() -> None:
            with self._stripes[stripe]:
                self._files.write(
                    ledger_id,
                    pieces,
                    header,
                    has_pages=lambda: has_pages,
                    # Whole pages, as Apache's bookie reads them.
                    grow_to_bytes=self._offset(pages[-1][0] + 1) if pages else 0,
                )
                self._written.setdefault(ledger_id, {}).update(crcs)
                with self._cache_lock:
                    self._writes[stripe] += 1
                    for number, _ in pages:
                        self._cache.mark_clean((ledger_id, number))

        self._disk.with_descriptors(write)

    def _without_hole(
        self, ledger_id: int, number: int, data: bytearray, *, has_pages: bool
    ) -> bytearray | memoryview:
        """The part of a page to be written: all but the zeros at its end, if the file has zeros there.

        So a ledger of few entries takes one block of the disk, together with its header.
        """
        if (
            has_pages
            and number not in self._written.get(ledger_id, ())
            and (ledger_id, number) not in self._marked  # it has no ``c``
        ):
            return data  # a crash may have left other bytes here
        # A slot that was used stays used, so the zeros were zeros whenever the page was written.
        used_bytes = used_page_bytes(data)
        return data if used_bytes == len(data) else memoryview(data)[:used_bytes]

    def _has_pages(self, ledger_id: int) -> bool:
        if self._written.get(ledger_id):
            return True
        found = self._map.floor(PAGE_KEY.pack(b"c", ledger_id, NUMBER_MAX))
        return found is not None and found[0][:9] == LEDGER_KEY.pack(b"c", ledger_id)

    # --- start ---

    def _recover(self) -> None:
        """Check the page size, finish deletions, and seal pages that were being overwritten."""
        stored = self._map.get(COMPLETE)
        if stored is not None and stored != b"%d" % self._page_bytes:
            raise StartError(
                f"the index in {self._directory} has pageSize={stored.decode('ascii', 'replace')}, and the"
                f" configuration has {self._page_bytes}. Restore the old pageSize, or rebuild the index"
            )
        if self._map.is_read_only:
            self._uncertain = {PAGE_KEY.unpack(key)[1:] for key, _ in self._map.scan(b"i", b"j")}
            return
        self._deleted = {LEDGER_KEY.unpack(key)[1] for key, _ in self._map.scan(b"d", b"e")}
        if self._deleted:
            self._map.sync()  # writes of a killed process may not be durable yet
            self._unlink_deleted()
        seals: list[Operation] = []
        last: int | None = None
        for key, _ in self._map.scan(b"i", b"j"):
            _, ledger_id, number = PAGE_KEY.unpack(key)
            try:
                if ledger_id != last:
                    # After a kill the page may be in the page cache only; sync it before it is sealed.
                    self._files.sync_file(ledger_id)
                    last = ledger_id
                data = self._files.read(ledger_id, self._page_bytes, self._offset(number))
            except FileNotFoundError as exc:
                log.error("an index file is missing; its entries cannot be read: %s", exc)
                continue  # unchanged: ``c`` remains, so that each read raises
            if len(data) == self._page_bytes:
                seals.append((PAGE_KEY.pack(b"c", ledger_id, number), CRC.pack(crc32c(data))))
                seals.append((key, None))
        for start in range(0, len(seals), BATCH_OPERATIONS_MAX):
            self._map.write(seals[start : start + BATCH_OPERATIONS_MAX])
        if seals:
            self._map.sync()


def _header(data: LedgerData) -> bytes:
    return encode_page_file_header(PageFileHeader(data.master_key, data.fenced, data.explicit_lac))
