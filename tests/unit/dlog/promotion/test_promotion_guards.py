"""What keeps a process that runs on old knowledge from changing the wrong side of a promotion."""

# covers: dlog/promotion/nodes.py

from __future__ import annotations

import attrs
import pytest
import trio
import trio.testing

import dlog
from dlog.promotion import nodes
from dlog.promotion.promoter import Promoter
from dlog.promotion.record import SourcePhase, SourceRecord, TargetPhase, TargetRecord
from ledger.metadata_store.memory import MemoryStore
from namespace import cursor_nodes
from namespace.log_nodes import LogNodes
from namespace.logs import open_log
from namespace.segment_nodes import list_segments
from namespace.segments.segment import LogSegment
from tests.fakes.promotion_world import (
    HERE,
    LOG,
    SOURCE,
    TARGET,
    THERE,
    CrashError,
    PromotionWorld,
    open_world,
    records_of,
    without_promotions,
)


async def hand_over_and_die(world: PromotionWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Promote up to the hand-over, and no step further."""

    async def die(*_: object) -> None:
        raise CrashError

    with monkeypatch.context() as patched:
        patched.setattr(Promoter, "_finish", die)
        async with world.process("promoter") as dying:
            with pytest.raises(CrashError):
                await dying.promotion.promote(LOG, TARGET)


async def test_an_old_writer_starts_no_segment_after_the_hand_over(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_world() as world, world.process("old") as old, world.process("other") as other:
        old = without_promotions(old)
        async with old.open_writer(LOG) as writer:
            await world.append(writer, 1)
            before = await old.segments(LOG)
            await hand_over_and_die(world, monkeypatch)
            with pytest.raises(dlog.LogFencedError):
                await world.append(writer, 100)  # its ledger is not fenced yet, but it rolls soon
            assert len(await old.segments(LOG)) == len(before)
        assert len(world.acknowledged) < 100
        await other.promotion.promote(LOG)
        assert await records_of(other) == world.acknowledged


async def test_neither_side_takes_records_between_the_hand_over_and_the_end(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_world() as world:
        await hand_over_and_die(world, monkeypatch)
        assert await world.sides_that_take_records() == []
        async with world.process("p") as namespace:
            status = await namespace.promotion.status(LOG)
            assert status is not None
            assert (status.phase, status.takes_records) == ("handed over", None)
            assert await records_of(namespace) == world.acknowledged, "readers read on"
            await namespace.promotion.undo(LOG)
        assert await world.sides_that_take_records() == [SOURCE]


async def test_the_target_does_not_change_or_open_once_the_promotion_is_cancelled(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_world() as world:
        store = MemoryStore(world.target.tree)
        await nodes.create_target(
            LogNodes(store, THERE, LOG),
            TargetRecord("1", SOURCE, TargetPhase.COPYING),
            LOG,
            keeps_chain=False,
        )
        seen = await nodes.read_target(LogNodes(store, THERE, LOG))
        assert seen is not None
        await nodes.put_target(LogNodes(store, THERE, LOG), seen, TargetPhase.UNDOING)
        metadata = await open_log(LogNodes(store, THERE, LOG), closed_too=True)
        segment = LogSegment(segment_seqno=1, ledger_id=7, first_txid=1).completed(
            last_txid=1,
            record_count=1,
            last_entry_id=0,
            last_slot_id=0,
            completed_ms=1,
            start_sequence_id=0,
        )
        with pytest.raises(dlog.PromotionError, match="another process"):
            await nodes.add_segment(metadata, seen, segment)
        with pytest.raises(dlog.PromotionError, match="another process"):
            await nodes.set_marks(LogNodes(store, THERE, LOG), seen, [(segment, segment.truncated())])
        with pytest.raises(dlog.PromotionError, match="another process"):
            await nodes.activate(LogNodes(store, THERE, LOG), seen, [], max_txid=0)
        assert TARGET not in await world.sides_that_take_records()
        await store.aclose()


async def test_a_late_commit_of_a_cursor_is_refused_here(autojump_clock: trio.testing.MockClock) -> None:
    async with open_world() as world, world.process("p") as namespace:
        store = MemoryStore(world.source.tree)
        seen = await cursor_nodes.read_cursor(LogNodes(store, HERE, LOG), "billing")
        assert seen is not None
        await namespace.promotion.promote(LOG, TARGET)
        with pytest.raises(dlog.CursorConflictError):
            await cursor_nodes.advance_cursor(
                LogNodes(store, HERE, LOG), seen, world.acknowledged[9][1], retry_timeout_s=0
            )
        await store.aclose()


async def test_a_purged_ledger_is_not_taken_for_an_empty_one(autojump_clock: trio.testing.MockClock) -> None:
    # A writer that had records in flight would write them again at the target, where they are already.
    async with open_world() as world, world.process("p") as namespace, world.process("old") as old:
        async with old.context.locked(LOG, 0) as lock:
            lifecycle = old.context.writers_lifecycle(LOG, lock, old.config.writer)
            await lifecycle.refresh()
        (segment, *_) = lifecycle.segments
        await namespace.promotion.promote(LOG, TARGET)
        assert await lifecycle.recovered_end(segment) >= 0
        await namespace.promotion.purge(LOG)
        with pytest.raises(dlog.LogMovedError):
            await lifecycle.recovered_end(segment)
        gone = attrs.evolve(segment, ledger_id=1_000)
        with pytest.raises(dlog.LogMovedError):
            await lifecycle.recovered_end(gone)


async def test_a_reader_waits_behind_the_last_segment_until_the_hand_over_is_finished(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        open_world() as world,
        world.process("reader") as reading,
        world.process("p") as namespace,
        reading.open_reader(LOG) as reader,
    ):
        assert len(await reader.read_batch(100) or ()) > 0
        await hand_over_and_die(world, monkeypatch)
        async with reading.open_reader(LOG, start=dlog.LATEST) as late:
            await namespace.promotion.promote(LOG)
            async with namespace.open_writer(LOG) as writer:
                await world.append(writer, 2)
            assert (await anext(late)).payload == b"24"
        async for record in reader:
            if record.payload == b"25":
                break


async def test_the_record_of_a_promotion_is_changed_only_as_it_was_seen(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_world() as world:
        store = MemoryStore(world.source.tree)
        await nodes.begin(LogNodes(store, HERE, LOG), SourceRecord("1", TARGET, SourcePhase.COPYING))
        seen = await nodes.read_source(LogNodes(store, HERE, LOG))
        assert seen is not None
        await nodes.put_source(LogNodes(store, HERE, LOG), seen, seen)
        for stale in (nodes.hand_over, nodes.reopen_source, nodes.forget, nodes.mark_purged):
            with pytest.raises(dlog.PromotionError, match="another process"):
                await stale(LogNodes(store, HERE, LOG), seen)
        with pytest.raises(dlog.PromotionError, match="another process"):
            await nodes.begin(LogNodes(store, HERE, LOG), seen)
        assert len((await list_segments(LogNodes(store, HERE, LOG))).segments) > 0
        await store.aclose()
