"""The figures of one log and its cursors: size, end, age, and the lag of each reader.

Inside: what is read for them, and what is remembered so that the next look reads less. Not inside: which logs
are looked at, how often, their bounds (``exporter``).
Always: nothing is changed. An unknown figure is absent, never 0. The figures of a completed segment are not
read again; so is the first record that a cursor waits for, while the cursor stays where it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

import attrs
import trio

from dlog.description import LogDescription
from dlog.errors import DLogError
from dlog.namespace_handle import Namespace
from ledger.runtime.clock import wall_ms
from namespace.dlsn import DLSN

GROWTHS_MAX = 1024  # of one log that are remembered
SEGMENTS_SIZED_MAX = 20  # whose size is read in one look; the size of the log is known when all were read
TIME_MIN_MS = 1_000_000_000_000  # September 2001: a lower transaction id is no time
AHEAD_MAX_MS = 86_400_000  # a higher one neither


def age_s(txid: int | None, now_ms: int) -> float | None:
    """Seconds since a record was written, if its transaction id is the time in milliseconds; else None."""
    if txid is None or not TIME_MIN_MS <= txid <= now_ms + AHEAD_MAX_MS:
        return None
    return max(0, now_ms - txid) / 1000


@attrs.define
class Growth:
    """When a log was seen to grow; answers how long ago a record was there already.

    The numbers count from the first record that was ever seen, so that a purge changes none of them.
    """

    _purged: int = 0
    _records_of: dict[int, int | None] = attrs.Factory(dict)  # of each segment; None: in progress
    _seen: deque[tuple[float, int]] = attrs.field(factory=lambda: deque(maxlen=GROWTHS_MAX))

    def look(self, described: LogDescription, now_s: float) -> int:
        """Note the log as it is now; returns the number of its last record."""
        first = described.segments[0].segment_seqno if described.segments else None
        gone = [seqno for seqno in self._records_of if first is None or seqno < first]
        for seqno in gone:
            count = self._records_of[seqno]
            if count is None:  # how many records it had when it was purged is not known
                self._seen.clear()
            else:
                self._purged += count
        self._records_of = {each.segment_seqno: each.record_count for each in described.segments}
        total = self._purged + described.record_count
        if not self._seen or self._seen[-1][1] < total:
            self._seen.append((now_s, total))
        return total

    def idle_s(self, now_s: float) -> float:
        """Seconds since the log was last seen to grow, or since the first look."""
        return now_s - self._seen[-1][0]

    def lag_s(self, consumed: int, now_s: float) -> float:
        """Seconds that the first record after ``consumed`` has been there at least."""
        return next((now_s - at_s for at_s, total in self._seen if total > consumed), 0.0)


@attrs.define
class SeenLog:
    """A log as it was seen, and what the next look need not read again."""

    described: LogDescription
    _growth: Growth = attrs.Factory(Growth)
    _last: int = 0  # the number of its last record at the last look
    _bytes_of: dict[int, int] = attrs.Factory(dict)  # of each completed segment
    _waits: dict[tuple[str, str], tuple[DLSN, DLSN | None, int]] = attrs.Factory(dict)  # txid, by reader

    def look(self, described: LogDescription) -> None:
        """Note the log as it is now; the calls below speak of it."""
        self.described = described
        self._last = self._growth.look(described, trio.current_time())

    @property
    def idle_s(self) -> float:
        """Seconds since the log was last seen to grow, or since the first look."""
        return self._growth.idle_s(trio.current_time())

    async def size_bytes(self, namespace: Namespace) -> int | None:
        """The stored bytes of one replica, up to the last visible record; None if not all are known yet."""
        described = self.described
        completed = {each.segment_seqno: each for each in described.segments if each.is_completed}
        self._bytes_of = {seqno: size for seqno, size in self._bytes_of.items() if seqno in completed}
        wanted = []
        for seqno, segment in completed.items():
            if segment.last_entry_id < 0:
                self._bytes_of[seqno] = 0
            elif seqno not in self._bytes_of:
                wanted.append((seqno, segment.last_entry_id))
        wanted = wanted[-SEGMENTS_SIZED_MAX:]
        end = described.last_dlsn
        is_open = end is not None and end.segment_seqno not in completed
        entries = [*wanted, (end.segment_seqno, end.entry_id)] if end is not None and is_open else wanted
        totals = await namespace.entry_totals(described.name, entries) if entries else []
        for (seqno, _), total in zip(entries, totals, strict=True):
            if total is not None and seqno in completed:
                self._bytes_of[seqno] = total.size_bytes
        if len(self._bytes_of) < len(completed) or (is_open and totals[-1] is None):
            return None
        return sum(self._bytes_of.values()) + (totals[-1].size_bytes if is_open and totals[-1] else 0)

    async def lag_s(
        self, namespace: Namespace, reader: tuple[str, str], position: DLSN, lag: int, *, until_s: float
    ) -> float:
        """Seconds since the first record from ``position`` on was written, of ``lag`` that are there.

        By the record's transaction id, if that is a time; else since this program saw the record.

        Args:
            reader: The kind and the name of the one who waits, for what is remembered.
            until_s: No record is read after this moment.
        """
        if not lag:
            self._waits.pop(reader, None)
            return 0.0
        txid = None
        with trio.move_on_at(until_s):
            txid = await self._first_txid(namespace, reader, position)
        waits_s = age_s(txid, wall_ms())
        return self._growth.lag_s(self._last - lag, trio.current_time()) if waits_s is None else waits_s

    async def _first_txid(self, namespace: Namespace, reader: tuple[str, str], position: DLSN) -> int | None:
        described = self.described
        if age_s(described.last_txid, wall_ms()) is None:
            return None  # the ids of this log are no times
        known = self._waits.get(reader)
        if known is not None and known[:2] == (position, described.first_dlsn):
            return known[2]
        left = described.first_dlsn  # a cursor may be at a place that was purged
        start = position if left is None else max(position, left)
        try:
            async with namespace.open_reader(described.name, start=start, follow=False) as opened:
                found = await opened.read_batch(1)
        except DLogError:
            return None
        if not found:
            return None
        txid = found[0].txid
        self._waits[reader] = (position, described.first_dlsn, txid)
        return txid

    def forget_readers(self, kept: Collection[tuple[str, str]]) -> None:
        """Drop what is remembered of readers that are gone."""
        self._waits = {reader: wait for reader, wait in self._waits.items() if reader in kept}
