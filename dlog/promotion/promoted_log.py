"""Reading a log of a directory before, during and after its promotion.

Inside: which side a segment is read from. Not inside: positions and records (``read_only_log``,
``dlog.read``).
Always: the reader's segments have consecutive numbers and each number keeps its entries, on whichever side,
so a reader that is open continues at its position; without a promotion the one more read of a node is all.

Source: our own; docs/promotion.md.
"""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Sequence

import trio

from dlog.errors import LogMetadataError, translated
from dlog.promotion.nodes import read_source
from dlog.promotion.record import SourcePhase, SourceRecord
from dlog.read.read_only_log import ReadOnlyLog
from ledger.client import LedgerClient
from ledger.errors import NoSuchLedgerError
from ledger.handle import ReadHandle
from namespace.heal_node import Heal
from namespace.log_nodes import LogNodes
from namespace.segments.segment import LogSegment


class PromotedLog(ReadOnlyLog):
    """A log of a directory: its segments there, and those after them where it was promoted to.

    Args:
        open_target: The log in the namespace of a URI.
    """

    def __init__(
        self,
        nodes: LogNodes,
        client: LedgerClient,
        password: bytes | None,
        open_target: Callable[[str], Awaitable[ReadOnlyLog]],
    ) -> None:
        super().__init__(nodes, client, password)
        self._open_target = open_target
        self._last_here: int | None = None  # segments after this number are listed there; None: not yet
        self._opened_here: weakref.WeakSet[ReadHandle] = weakref.WeakSet()
        self._there: set[tuple[int, int]] = set()  # number and ledger of each segment listed there

    async def segments(
        self, *, known: Sequence[LogSegment] = (), watch: trio.Event | None = None
    ) -> tuple[LogSegment, ...]:
        """As ``ReadOnlyLog.segments``; after the promotion also those at the target, which are watched."""
        record = await self._record(watch)
        if record is None or record.phase is not SourcePhase.DONE:
            return await super().segments(known=known, watch=watch)
        last_here = 0 if record.is_purged else record.last_seqno
        # Only what was listed there counts as known there: a segment here has another ledger.
        after = [each for each in known if (each.segment_seqno, each.ledger_id) in self._there]
        before = [each for each in known if each.segment_seqno <= last_here]
        self._last_here = last_here
        here = () if record.is_purged else await super().segments(known=before)
        target = await self._open_target(record.target)
        there = await target.segments(known=after, watch=watch)
        there = tuple(each for each in there if each.segment_seqno > last_here)
        self._there.update((each.segment_seqno, each.ledger_id) for each in there)
        return here + there

    async def open(self, segment: LogSegment) -> ReadHandle:
        """As ``ReadOnlyLog.open``, on the side where the segment is."""
        # A segment here and one there may have ledgers of the same id; but never with the same number and
        # other entries.
        if (segment.segment_seqno, segment.ledger_id) not in self._there:
            try:
                handle = await super().open(segment)
                self._opened_here.add(handle)
                return handle
            except NoSuchLedgerError:
                record = await self._record()
                if record is None or not record.is_purged:
                    raise
            for each in await self.segments():
                if each.segment_seqno == segment.segment_seqno:
                    segment = each
                    break
            else:
                raise NoSuchLedgerError(segment.ledger_id)
        record = await self._record()
        if record is None:
            raise LogMetadataError(f"log {self.name!r}: the record of its promotion was deleted meanwhile")
        return await (await self._open_target(record.target)).open(segment)

    def check_still_same(self, left: LogSegment, listed: Sequence[LogSegment]) -> None:
        """As ``ReadOnlyLog.check_still_same``. The copy of a segment that was read here is no other log."""
        is_copied = self._last_here == 0 and (left.segment_seqno, left.ledger_id) not in self._there
        if not is_copied:
            super().check_still_same(left, listed)

    async def heals(self) -> tuple[Heal, ...]:
        """As ``ReadOnlyLog.heals``, of both sides."""
        record = await self._record()
        if record is None or record.phase is not SourcePhase.DONE:
            return await super().heals()
        here = () if record.is_purged else await super().heals()
        return here + await (await self._open_target(record.target)).heals()

    async def has_moved(self, handle: ReadHandle) -> bool:
        """As ``ReadOnlyLog.has_moved``: the segment was opened here, and the segments here are purged."""
        if handle not in self._opened_here:
            return False
        record = await self._record()
        return record is not None and record.is_purged

    async def _record(self, watch: trio.Event | None = None) -> SourceRecord | None:
        with translated(self.name, "looking whether it was promoted"):
            return await read_source(self.nodes, watch=watch)
