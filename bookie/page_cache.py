"""The page table of the page index: a bounded number of pages in memory, evicted by a clock.

Inside: which pages are here, which are dirty, which goes next. Not inside: files, locks, what a page means.
Always: at most ``pages_max`` pages; a dirty page is never evicted, so that whoever looks finds either the
page here, or in the file what it was when it left.

Source: IndexInMemPageMgr.java for the purpose; Corbato's clock (1968).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

PageKey = tuple[int, int]  # ledger id, number of the page in its file


class Page:
    """One page in memory."""

    __slots__ = ("data", "is_dirty", "is_used")

    def __init__(self, data: bytearray) -> None:
        self.data = data
        self.is_dirty = False
        self.is_used = True  # since the hand passed


class PageCache:
    """See the module. Its caller locks."""

    def __init__(self, pages_max: int) -> None:
        assert pages_max >= 1
        self.pages_max = pages_max
        self.dirty: set[PageKey] = set()
        self._pages: OrderedDict[PageKey, Page] = OrderedDict()  # the clock: the hand is at the first
        self._numbers: dict[int, set[int]] = {}  # ledger -> its pages that are here

    def __len__(self) -> int:
        return len(self._pages)

    def get(self, key: PageKey) -> Page | None:
        page = self._pages.get(key)
        if page is not None:
            page.is_used = True
        return page

    def add(self, key: PageKey, data: bytearray) -> Page | None:
        """Take a page in; None if there is no room, since all that is here is dirty."""
        assert key not in self._pages
        if len(self._pages) >= self.pages_max and not self._evict():
            return None
        page = self._pages[key] = Page(data)
        self._numbers.setdefault(key[0], set()).add(key[1])
        return page

    def mark_dirty(self, key: PageKey) -> None:
        self._pages[key].is_dirty = True
        self.dirty.add(key)

    def mark_clean(self, key: PageKey) -> None:
        self._pages[key].is_dirty = False
        self.dirty.discard(key)

    def dirty_pages(self) -> Iterator[tuple[PageKey, Page]]:
        """In order of ledger and place in its file, as they should be written."""
        for key in sorted(self.dirty):
            yield key, self._pages[key]

    def dirty_numbers(self, ledger_id: int) -> set[int]:
        """The ledger's dirty pages."""
        return {number for number in self._numbers.get(ledger_id, ()) if (ledger_id, number) in self.dirty}

    def drop_ledger(self, ledger_id: int) -> None:
        """Forget the ledger's pages, dirty or not."""
        for number in self._numbers.pop(ledger_id, ()):
            del self._pages[ledger_id, number]
            self.dirty.discard((ledger_id, number))

    def _evict(self) -> bool:
        if len(self.dirty) == len(self._pages):
            return False
        # Two rounds: the first takes the marks away. Dirty pages only go round.
        for _ in range(2 * len(self._pages)):
            key, page = self._pages.popitem(last=False)
            if not page.is_dirty and not page.is_used:
                numbers = self._numbers[key[0]]
                numbers.discard(key[1])
                if not numbers:
                    del self._numbers[key[0]]
                return True
            page.is_used = False
            self._pages[key] = page
        return False
