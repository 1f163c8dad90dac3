"""What a writer does when its ledger fails and its session with the metadata store is over as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio
import trio.testing

from dlog.compression import Compression
from dlog.config import WriterConfig
from dlog.errors import LogFencedError, NamespaceLostError, RecordOutcome
from dlog.pending import Pending
from dlog.segment_keeper import SegmentKeeper
from ledger.errors import LedgerFencedError
from namespace.segment import LogSegment


class SilentLedger:
    """Takes entries and acknowledges none; as ``ledger.handle.WriteHandle``."""

    ledger_id, bytes_in_flight = 7, 0

    def __init__(self) -> None:
        self._entries = 0
        self.told: Callable[[int, BaseException | None], None] | None = None

    def submit(self, payload: bytes) -> int:
        self._entries += 1
        return self._entries - 1

    def on_confirmed(self, callback: Callable[[int, BaseException | None], None]) -> None:
        self.told = callback

    def abandon(self) -> None:
        pass


class LostSegments:
    """One segment can be started; then the session is over. As ``dlog.segments.LogSegments``."""

    compression = Compression.NONE

    def __init__(self) -> None:
        self.ledger = SilentLedger()
        self.asked = 0

    async def allocate(self) -> SilentLedger:
        await trio.lowlevel.checkpoint()
        return self.ledger

    async def start(self, handle: SilentLedger, first_txid: int) -> LogSegment:
        await trio.lowlevel.checkpoint()
        return LogSegment(segment_seqno=1, ledger_id=handle.ledger_id, first_txid=first_txid)

    async def recovered_end(self, segment: LogSegment) -> int:
        await trio.lowlevel.checkpoint()
        self.asked += 1
        raise NamespaceLostError("the session is over")


class Lock:
    """Held until ``lost`` is set; as ``namespace.lock.DistributedLock``."""

    def __init__(self) -> None:
        self.lost = trio.Event()

    @property
    def held(self) -> bool:
        return not self.lost.is_set()

    async def wait_lost(self) -> None:
        await self.lost.wait()

    async def release(self) -> None:
        await trio.lowlevel.checkpoint()


async def test_once_the_session_is_over_records_in_flight_are_answered_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    segments: Any = LostSegments()
    lock: Any = Lock()
    keeper = SegmentKeeper("log", segments, lock, WriterConfig(), last_txid=-1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keeper.run)
        nursery.start_soon(keeper.watch_lock)
        pending = Pending(*keeper.batcher.add(b"a", 1))
        keeper.pump()
        while segments.ledger.told is None:
            await trio.lowlevel.checkpoint()
        began_s = trio.current_time()
        lock.lost.set()
        segments.ledger.told(-1, LedgerFencedError(7, "a bookie said so"))
        settled = trio.Event()
        pending.on_settled(settled.set)
        await settled.wait()
        assert trio.current_time() == began_s
        assert pending.outcome is RecordOutcome.UNKNOWN
        assert segments.asked == 1
        assert isinstance(keeper.stopped, LogFencedError)
