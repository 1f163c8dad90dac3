"""What a writer does when its ledger fails and its session is over as well; what readers see of a segment."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio
import trio.testing

from dlog.batcher import Batch
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


class ToldLedger:
    """Acknowledges when the test says so, and knows what readers see; as ``ledger.handle.WriteHandle``."""

    bytes_in_flight = 0

    def __init__(self, ledger_id: int) -> None:
        self.ledger_id, self.lac = ledger_id, -1
        self.carried: list[int] = []  # the LAC in each entry
        self._told: Callable[[int, BaseException | None], None] = lambda lac, error: None

    @property
    def visible(self) -> int:
        """The last entry that a reader sees."""
        return max(self.carried[: self.lac + 1], default=-1)

    def submit(self, payload: bytes) -> int:
        self.carried.append(self.lac)
        return len(self.carried) - 1

    def on_confirmed(self, callback: Callable[[int, BaseException | None], None]) -> None:
        self._told = callback

    def confirm(self, entry_id: int) -> None:
        """Up to this entry all are durable."""
        self.lac = entry_id
        self._told(entry_id, None)

    def abandon(self) -> None:
        pass


class ToldSegments:
    """Segments that are rolled and closed when the test says so; as ``dlog.segments.LogSegments``."""

    compression = Compression.NONE

    def __init__(self) -> None:
        self.ledgers: list[ToldLedger] = []
        self.visible_at_start: list[int] = []  # of the ledger before, when the next segment was started
        self.may_roll, self.may_close = trio.Event(), trio.Event()

    async def allocate(self) -> ToldLedger:
        if self.ledgers:
            await self.may_roll.wait()
        self.ledgers.append(ToldLedger(len(self.ledgers)))
        return self.ledgers[-1]

    async def start(self, handle: ToldLedger, first_txid: int) -> LogSegment:
        await trio.lowlevel.checkpoint()
        if handle.ledger_id:
            self.visible_at_start.append(self.ledgers[handle.ledger_id - 1].visible)
        return LogSegment(
            segment_seqno=1 + handle.ledger_id, ledger_id=handle.ledger_id, first_txid=first_txid
        )

    async def close(self, handle: ToldLedger, segment: LogSegment) -> None:
        await self.may_close.wait()

    async def complete(self, segment: LogSegment, **_: object) -> None:
        await trio.lowlevel.checkpoint()


@asynccontextmanager
async def running(**config: Any) -> AsyncIterator[tuple[SegmentKeeper, Any, trio.Nursery]]:
    """A writer of that configuration, over segments that a test drives."""
    segments: Any = ToldSegments()
    lock: Any = Lock()
    keeper = SegmentKeeper("log", segments, lock, WriterConfig(**config), last_txid=-1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keeper.run)
        yield keeper, segments, nursery
        nursery.cancel_scope.cancel()


def submitted(keeper: SegmentKeeper, payload: bytes) -> Batch:
    """The batch of one record that is sent at once, whatever is in flight."""
    batch, _ = keeper.batcher.add(payload, 1)
    keeper.batcher.cut()
    keeper.pump()
    return batch


async def test_a_batch_is_visible_only_once_an_entry_sent_after_it_was_durable_is_durable() -> None:
    async with running() as (keeper, segments, nursery):
        mine = submitted(keeper, b"mine")
        await trio.testing.wait_all_tasks_blocked()
        (ledger,) = segments.ledgers
        submitted(keeper, b"beside it")  # carries a LAC before mine
        ledger.confirm(0)
        assert mine.outcome is RecordOutcome.DURABLE
        visible = [trio.Event(), trio.Event()]

        async def flush(event: trio.Event) -> None:
            await keeper.make_visible(mine)
            event.set()

        for event in visible:
            nursery.start_soon(flush, event)
        await trio.testing.wait_all_tasks_blocked()
        assert ledger.carried == [-1, -1, 0], "one control record serves both"
        ledger.confirm(1)
        await trio.testing.wait_all_tasks_blocked()
        assert ledger.visible == -1
        assert not visible[0].is_set()
        ledger.confirm(2)
        await trio.testing.wait_all_tasks_blocked()
        assert ledger.visible == 0
        assert visible[0].is_set()
        assert visible[1].is_set()
        submitted(keeper, b"later")
        await keeper.make_visible(mine)
        assert len(ledger.carried) == 4, "what is visible needs no control record"


async def test_the_next_segment_is_started_only_when_all_of_the_one_before_is_visible() -> None:
    async with running(segment_bytes_max=100) as (keeper, segments, _):
        submitted(keeper, bytes(100))
        await trio.testing.wait_all_tasks_blocked()
        (old,) = segments.ledgers
        old.confirm(0)
        await trio.testing.wait_all_tasks_blocked()
        for number in range(3):
            submitted(keeper, b"beside the roll %d" % number)
        segments.may_roll.set()
        await trio.testing.wait_all_tasks_blocked()
        behind = submitted(keeper, b"behind it")
        for entry_id in (1, 3):
            old.confirm(entry_id)
            await trio.testing.wait_all_tasks_blocked()
        assert segments.visible_at_start == []
        assert old.carried == [-1, 0, 0, 0, 3], "the last one is a control record"
        old.confirm(4)
        await trio.testing.wait_all_tasks_blocked()
        assert segments.visible_at_start == [3]
        assert (behind.segment_seqno, behind.entry_id) == (2, 0)


async def test_beside_closing_a_batch_is_visible_only_once_its_segment_is_closed() -> None:
    async with running() as (keeper, segments, nursery):
        mine = submitted(keeper, b"mine")
        await trio.testing.wait_all_tasks_blocked()
        segments.ledgers[0].confirm(0)
        nursery.start_soon(keeper.aclose)
        await trio.testing.wait_all_tasks_blocked()
        visible = trio.Event()

        async def flush() -> None:
            await keeper.make_visible(mine)
            visible.set()

        nursery.start_soon(flush)
        await trio.testing.wait_all_tasks_blocked()
        assert not visible.is_set()
        segments.may_close.set()
        await visible.wait()
        assert keeper.stopped is None


async def test_who_waits_for_room_in_the_smallest_window_gets_it() -> None:
    async with running(bytes_in_flight_max=1) as (keeper, segments, nursery):
        submitted(keeper, b"")
        has_room = trio.Event()

        async def wait() -> None:
            await keeper.wait_room()
            has_room.set()

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        assert not has_room.is_set()
        segments.ledgers[0].confirm(0)
        await trio.testing.wait_all_tasks_blocked()
        assert has_room.is_set()
