"""The page cache of the page index: a bounded number of pages in memory, evicted by the clock algorithm.

Inside: cached pages, dirty pages, the choice of a page to evict, the limits of a page index. Not inside:
files, locks, the content of a page.
Always: there are at most ``pages_max`` pages. A dirty page is never evicted, so a page that is absent here is
up to date in its file.

Source: IndexInMemPageMgr.java for the purpose; Corbato's clock (1968).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

import attrs

from bookie.index.page_file import SECTOR_BYTES

PageKey = tuple[int, int]  # ledger id, number of the page in its file


@attrs.frozen(kw_only=True)
class PageIndexConfig:
    """Limits on the pages in memory and the open files of one directory."""

    page_bytes: int = attrs.field(default=8192)
    pages_max: int = attrs.field(default=8192, validator=attrs.validators.ge(4))
    open_files_max: int = attrs.field(default=1024, validator=attrs.validators.ge(1))

    @page_bytes.validator
    def _check(self, _: object, value: int) -> None:
        if value < SECTOR_BYTES or value % SECTOR_BYTES:
            raise ValueError(f"page_bytes must be a multiple of 512, not {value}")


class IndexPage:
    """One page in memory."""

    __slots__ = ("data", "is_dirty", "is_used")

    def __init__(self, data: bytearray) -> None:
        self.data = data
        self.is_dirty = False
        self.is_used = True  # since the clock hand passed it last


class PageCache:
    """Pages by ledger and number. The caller holds a lock."""

    def __init__(self, pages_max: int) -> None:
        assert pages_max >= 1  # a validator of ``PageConfig``
        self.pages_max = pages_max
        self.dirty: set[PageKey] = set()
        self._pages: OrderedDict[PageKey, IndexPage] = (
            OrderedDict()
        )  # in clock order: the hand is at the first
        self._numbers: dict[int, set[int]] = {}  # ledger -> numbers of its cached pages

    def __len__(self) -> int:
        return len(self._pages)

    def get(self, key: PageKey) -> IndexPage | None:
        page = self._pages.get(key)
        if page is not None:
            page.is_used = True
        return page

    def add(self, key: PageKey, data: bytearray) -> IndexPage | None:
        """Cache a page; None if the cache is full of dirty pages."""
        assert key not in self._pages  # callers look under the same lock
        if len(self._pages) >= self.pages_max and not self._evict():
            return None
        page = IndexPage(data)
        # The number first: without memory for the second step, ``drop_ledger`` still finds all pages.
        self._numbers.setdefault(key[0], set()).add(key[1])
        self._pages[key] = page
        return page

    def mark_dirty(self, key: PageKey) -> None:
        self._pages[key].is_dirty = True
        self.dirty.add(key)

    def mark_clean(self, key: PageKey) -> None:
        self._pages[key].is_dirty = False
        self.dirty.discard(key)

    def dirty_pages(self) -> Iterator[tuple[PageKey, IndexPage]]:
        """The dirty pages in the order for writing: by ledger, then by page number."""
        for key in sorted(self.dirty):
            yield key, self._pages[key]

    def dirty_numbers(self, ledger_id: int) -> set[int]:
        """The numbers of the ledger's dirty pages."""
        return {number for number in self._numbers.get(ledger_id, ()) if (ledger_id, number) in self.dirty}

    def drop_ledger(self, ledger_id: int) -> None:
        """Drop the ledger's pages, dirty or not."""
        for number in self._numbers.pop(ledger_id, ()):
            self._pages.pop((ledger_id, number), None)
            self.dirty.discard((ledger_id, number))

    def _evict(self) -> bool:
        if len(self.dirty) == len(self._pages):
            return False
        # At most two rounds: the first clears the marks. Dirty pages are skipped.
        for _ in range(2 * len(self._pages)):
            key, page = next(iter(self._pages.items()))
            if not page.is_dirty and not page.is_used:
                del self._pages[key]
                numbers = self._numbers[key[0]]
                numbers.discard(key[1])
                if not numbers:
                    del self._numbers[key[0]]
                return True
            page.is_used = False
            self._pages.move_to_end(key)  # a dirty page must never leave the cache, not even for a moment
        return False
