"""Payloads of one ledger that are read before the caller requests them.

Inside: ranges of entries that are being read or wait for the caller; how many entries a range has.
Not inside: reading a range (``read.handle``).
Always: payloads are taken in order, each once; a read that fails gives no payloads, so the caller reads the
same entries again and gets the reason; at most ``RANGES_MAX`` ranges are in flight or wait, and one holds
about two replies at most, whatever its entries turn out to be.

While the client verifies the entries of one range, the bookie reads those of the next one.

Source: our own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable

import trio

from ledger.errors import LedgerError

RANGES_MAX = 2
_SAMPLES = 16  # payloads whose average size decides how many entries the next range has

ReadSome = Callable[[int, int, int], Awaitable[list[bytes]]]
"""Given the first id, the last one and a size in bytes: the payloads of the first entry and of those after
it, as far as one reply has them."""


class _Range:
    """Entries that one task reads, with as many requests as the bookie needs."""

    __slots__ = ("changed", "first", "is_over", "payloads", "scope", "stop", "taken")

    def __init__(self, first: int, stop: int) -> None:
        self.first, self.stop = first, stop  # of the entries not taken yet
        self.payloads: list[bytes] = []  # from ``first`` on
        self.is_over = False  # all were read, or reading failed or was cancelled
        self.changed = trio.Event()  # there are payloads, or it is over
        self.taken = trio.Event()  # set while there are no payloads
        self.scope = trio.CancelScope()


class PayloadsAhead:
    """The ranges ahead of one reader."""

    def __init__(self, read_some: ReadSome, nursery: trio.Nursery, *, overhead_bytes: int) -> None:
        """``overhead_bytes``: what a reply has besides each payload."""
        self._read_some, self._nursery = read_some, nursery
        self._overhead_bytes = overhead_bytes
        self._ranges: deque[_Range] = deque()  # consecutive
        self._is_sequential = False  # the last payloads taken were read ahead

    def __repr__(self) -> str:
        if not self._ranges:
            return "<PayloadsAhead, nothing>"
        first, stop = self._ranges[0].first, self._ranges[-1].stop
        return f"<PayloadsAhead, entries {first} to {stop - 1} in {len(self._ranges)} ranges>"

    async def take(self, first: int, last: int) -> list[bytes]:
        """The payloads from ``first`` on as far as they were read together; [] if the caller must read them.

        A cancelled call has taken nothing.
        """
        if not self._ranges or self._ranges[0].first != first or self._ranges[0].stop > last + 1:
            self.drop()
            await trio.lowlevel.checkpoint_if_cancelled()
            return []
        head = self._ranges[0]
        await head.changed.wait()
        if not self._ranges or self._ranges[0] is not head or head.first != first:
            return []  # another task has taken them meanwhile
        payloads, head.payloads = head.payloads, []
        if not payloads:
            self.drop()
            return []
        head.first += len(payloads)
        if head.first == head.stop:
            self._ranges.popleft()
        elif head.is_over:
            self.drop()
        else:
            head.changed = trio.Event()
            head.taken.set()
        self._is_sequential = True
        return payloads

    def plan(
        self, payloads: list[bytes], following: int, last: int, size_bytes: int, *, ranges_max: int
    ) -> None:
        """Read what follows.

        Args:
            payloads: Those that the caller gets now; at least one.
            following: The entry after them.
            last: The last entry that may be read.
            size_bytes: Of one range, about.
        """
        if self._ranges and self._ranges[0].first != following:
            self.drop()
        sample = payloads[:: len(payloads) // _SAMPLES + 1]
        entry_bytes = sum(map(len, sample)) // len(sample) + self._overhead_bytes
        count = max(1, size_bytes // entry_bytes)
        first = self._ranges[-1].stop if self._ranges else following
        wanted = ranges_max if self._is_sequential else 1
        while len(self._ranges) < wanted and first <= last:
            stop = min(first + count, last + 1)
            each = _Range(first, stop)
            self._ranges.append(each)
            self._nursery.start_soon(self._read, each, size_bytes)
            first = stop

    def drop(self) -> None:
        """Forget all ranges and stop reading them."""
        self._is_sequential = False
        while self._ranges:
            self._ranges.pop().scope.cancel()

    async def _read(self, each: _Range, size_bytes: int) -> None:
        # Entries that are a little larger than those before still fit into one reply.
        size_bytes += size_bytes // 4
        try:
            with each.scope:
                first = each.first
                while first < each.stop:
                    payloads = await self._read_some(first, each.stop - 1, size_bytes)
                    first += len(payloads)
                    each.payloads += payloads
                    if first < each.stop:
                        each.changed.set()
                        if sum(map(len, each.payloads)) >= size_bytes // 2:
                            each.taken = trio.Event()
                            await each.taken.wait()
        except LedgerError:
            pass  # the caller reads these entries again and gets the error
        finally:
            each.is_over = True
            each.changed.set()
