"""The page index with damaged pages that can be replaced.

Inside: which pages of a ledger cannot be read, what their bytes still say, storing one again. Not inside:
which entries a page must name (``bookie.healing.index_healing``), sound pages (``page_index``).
Always: a damaged page is never sealed. It fails each read until new bytes and their checksum are durable,
also after a power cut between the two.

A page that is overwritten in the usual way has a mark ``i``, and the next start accepts its bytes as they
are. A damaged page gets no mark: its old checksum stays until the new bytes are synced, so a cut leaves a
page that is damaged or whole.

Source: none; Apache's files have no checksum, so its bookie cannot notice the damage.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from struct import unpack_from

from bookie.disk.disk import Disk
from bookie.disk.key_values import KeyValues
from bookie.errors import FormatError, IndexFailedError
from bookie.index.entry_index import DamagedRange
from bookie.index.page_cache import IndexPage, PageIndexConfig, PageKey
from bookie.index.page_file import LOCATION_BYTES, put_locations
from bookie.index.page_index import PageIndex
from bookie.index.page_keys import PAGE_KEY, page_keys

_DAMAGE_ERRNOS = (errno.EIO, errno.ENOENT)  # a bad sector; a file that is gone


class RepairablePageIndex(PageIndex):
    """A page index whose damaged pages are found and replaced."""

    def __init__(self, disk: Disk, directory: Path, key_values: KeyValues, config: PageIndexConfig) -> None:
        self._replaced: set[PageKey] = set()  # pages that get no mark when they are written
        super().__init__(disk, directory, key_values, config)

    def damaged_ranges(self, ledger_id: int) -> list[DamagedRange]:
        return [
            self._damaged_range(ledger_id, number)
            for number in [PAGE_KEY.unpack(key)[2] for key, _ in self._map.scan(*page_keys(b"c", ledger_id))]
            if not self._is_readable(ledger_id, number)
        ]

    def replace(self, damaged: DamagedRange, locations: Mapping[int, int]) -> bool:
        ledger_id, first = damaged.ledger_id, damaged.entry_ids.start
        key = ledger_id, first // self._page_entries
        self.sync()  # removes a mark of this page
        if self._is_readable(*key):
            return False
        data = bytearray(self._page_bytes)
        if locations:
            entry_ids = sorted(locations)
            put_locations(data, first, entry_ids, [locations[entry_id] for entry_id in entry_ids])
        self._disk.with_descriptors(partial(self._files.create_missing, ledger_id))
        with self._cache_lock:
            page = self._cache.add(key, data)
            assert page is not None, "no page is dirty after a sync"  # ``sync`` has just cleaned all pages
            self._cache.mark_dirty(key)
        self._replaced.add(key)
        try:
            self.sync()
        finally:
            self._replaced.discard(key)
        return True

    def _mark_overwritten(self, ledgers: dict[int, list[tuple[int, IndexPage]]]) -> None:
        super()._mark_overwritten(
            {
                ledger_id: [page for page in pages if (ledger_id, page[0]) not in self._replaced]
                for ledger_id, pages in ledgers.items()
            }
        )

    def _is_readable(self, ledger_id: int, number: int) -> bool:
        try:
            self._page(ledger_id, number)
        except FormatError:
            return False
        except IndexFailedError:
            raise  # the map, not the page
        except OSError as exc:
            if exc.errno not in _DAMAGE_ERRNOS:
                raise
            return False
        return True

    def _damaged_range(self, ledger_id: int, number: int) -> DamagedRange:
        first = number * self._page_entries
        try:
            read = partial(self._files.read, ledger_id, self._page_bytes, self._offset(number))
            data = self._disk.with_descriptors(read)
        except OSError as exc:
            if exc.errno not in _DAMAGE_ERRNOS:
                raise
            data = b""
        named = unpack_from(f">{len(data) // LOCATION_BYTES}q", data)
        return DamagedRange(
            ledger_id,
            range(first, first + self._page_entries),
            {first + slot: location for slot, location in enumerate(named) if location > 0},
        )
