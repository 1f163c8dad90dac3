"""New ledger ids from counters in the metadata store.

Inside: the short generator (31 bits, one counter), and the long one (a series of counters) that follows it.
Not inside: creating ledgers, ids that a caller chooses itself.
Always: each id is given out once. A crash may leave gaps, but never causes a repetition.

Source: ZkLedgerIdGenerator.java, LongZkLedgerIdGenerator.java; docs/metadata.md 8.
"""

from __future__ import annotations

from ledger.catalog.paths import (
    HIGH_ORDER_PREFIX,
    IDGEN_LONG,
    SHORT_ID_LIMIT,
    Layout,
    id_prefix,
    id_series_of,
    long_id_prefix,
)
from ledger.errors import LedgerIdOverflowError
from ledger.metadata_store.errors import NodeExistsError, StoreError
from ledger.metadata_store.store import MetadataStore

LOW_HALF_LIMIT = 2**31 - 1
SERIES_KEPT = 3


class LedgerIds:
    """Draws ids that no other client of the same root gets."""

    def __init__(self, store: MetadataStore, root: str, layout: Layout) -> None:
        self._store = store
        self._root = root
        self._long = f"{root}/{IDGEN_LONG}"
        self._short_prefix = id_prefix(root, layout)
        self._may_be_long = layout in (Layout.HIERARCHICAL, Layout.LONG_HIERARCHICAL)

    async def new(self) -> int:
        """Draw a new ledger id. If cancelled, one id may be skipped.

        Raises:
            LedgerIdOverflowError: All ids of this layout are used.
        """
        if self._may_be_long and await self._store.exists(self._long) is not None:
            return await self._new_long()
        number = await self._draw(self._short_prefix)
        if number is not None and number < SHORT_ID_LIMIT:
            return number
        if not self._may_be_long:
            raise LedgerIdOverflowError(self._root)
        try:
            await self._store.create(self._long)
        except NodeExistsError:
            pass  # another client reached the limit too
        return await self._new_long()

    async def _new_long(self) -> int:
        series = sorted(
            found
            for name in (await self._store.children(self._long)).names
            if (found := id_series_of(name)) is not None
        )
        for old in series[:-SERIES_KEPT]:
            try:
                await self._store.delete(self._series(old), expected=0)
            except StoreError:
                pass  # clean-up only; the next client tries again
        high = series[-1] if series else 0
        while True:
            if high >= 1:
                low = await self._draw(long_id_prefix(self._root, high))
                if low is not None and low < LOW_HALF_LIMIT:
                    return high << 32 | low
            high += 1
            try:
                await self._store.create(self._series(high))
            except NodeExistsError:
                pass  # another client began this series

    def _series(self, high: int) -> str:
        return f"{self._long}/{HIGH_ORDER_PREFIX}{high:010d}"

    async def _draw(self, prefix: str) -> int | None:
        """The number of a new sequential node; None if the 32-bit counter of the store has wrapped."""
        digits = (await self._store.draw_sequential(prefix))[len(prefix) :]
        return int(digits) if digits.isdigit() else None  # ten digits, or a minus sign: the store made them
