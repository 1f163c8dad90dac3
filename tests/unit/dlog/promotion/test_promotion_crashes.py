"""A promotion that ends at any of its writes, beside a writer and a reader at work."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
import trio.testing

import dlog
from tests.fakes.promotion_world import (
    LOG,
    SOURCE,
    TARGET,
    CrashError,
    PromotionWorld,
    Writes,
    open_world,
    record_of,
    records_of,
)

WRITES_MAX = 200  # more than a promotion makes
ORPHANS_MAX = 1  # ledgers that one crash may leave


@attrs.define
class AtWork:
    """A process with a writer and a reader that are open all the time."""

    writer: dlog.LogWriter
    read: list[tuple[bytes, dlog.DLSN]]


@asynccontextmanager
async def at_work(world: PromotionWorld) -> AsyncIterator[AtWork]:
    async with world.process("writer") as writing, world.process("reader") as reading:
        read: list[tuple[bytes, dlog.DLSN]] = []

        async def follow(*, task_status: trio.TaskStatus[None]) -> None:
            async with reading.open_reader(LOG, cursor="follower") as reader:
                task_status.started()
                async for record in reader:
                    read.append((record.payload, record.dlsn))
                    await reader.commit(record.dlsn)
                    if is_written.is_set() and len(read) == len(world.acknowledged):
                        break

        is_written = trio.Event()
        async with trio.open_nursery() as nursery:
            await nursery.start(follow)
            async with writing.open_writer(LOG) as writer:
                await world.append(writer, 6)
                yield AtWork(writer, read)
                is_written.set()
                await world.append(writer, 1)
        assert read == world.acknowledged, "the reader sees each record once, in order"
        cursor = await reading.cursors(LOG).get("follower")
        assert cursor is not None
        assert cursor.position == world.acknowledged[-1][1].next_slot()


async def crashed(world: PromotionWorld, writes: Writes) -> bool:
    """Promote in a process of its own; True if it crashed."""
    try:
        async with world.process("promoter", writes) as namespace:
            await namespace.promotion.promote(LOG, TARGET)
    except* CrashError:
        pass
    return writes.is_dead


async def check_promoted(world: PromotionWorld) -> None:
    assert await world.sides_that_take_records() == [TARGET]
    async with world.process("last") as namespace:
        status = await namespace.promotion.status(LOG)
        assert status is not None
        assert (status.phase, status.takes_records) == ("done", TARGET)
        assert await records_of(namespace) == world.acknowledged
        assert (await namespace.repair.verify(LOG)).is_sound
        billing = await namespace.cursors(LOG).get("billing")
        assert billing is not None
        assert billing.position == world.acknowledged[5][1]
        assert await namespace.retention.get(LOG) == dlog.Retention(age_s=86_400)
        await namespace.promotion.purge(LOG)
        assert await records_of(namespace) == world.acknowledged
    # A crash between the creation of a ledger and the note of its id leaves an empty ledger, as for any
    # writer; `dlog ledger` commands find it by its log.
    left = len(await ledgers_in(world, TARGET)) - status.segments - await segments_after(world)
    assert 0 <= left <= ORPHANS_MAX
    assert await ledgers_in(world, SOURCE) == []


async def ledgers_in(world: PromotionWorld, uri: str) -> list[int]:
    cluster = world.source if uri == SOURCE else world.target
    async with cluster.client() as client:
        return await client.ledger_ids()


async def segments_after(world: PromotionWorld) -> int:
    """Segments that were begun at the target."""
    async with world.process("counter") as namespace:
        status = await namespace.promotion.status(LOG)
        assert status is not None
        record = await record_of(namespace)
        assert record is not None
        return sum(each.segment_seqno > record.last_seqno for each in await namespace.segments(LOG))


async def test_a_log_is_promoted_while_it_is_written_and_read(autojump_clock: trio.testing.MockClock) -> None:
    async with open_world() as world:
        async with at_work(world) as work:
            async with world.process("promoter") as namespace, trio.open_nursery() as nursery:
                nursery.start_soon(world.append, work.writer, 10)
                await namespace.promotion.promote(LOG, TARGET)
            await world.append(work.writer, 10)
        await check_promoted(world)


@pytest.mark.slow
async def test_a_promotion_that_crashed_at_any_write_is_resumed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    for number in range(1, WRITES_MAX):
        async with open_world() as world:
            async with at_work(world) as work:
                was_crashed = await crashed(world, writes := Writes(crash_after=number))
                assert len(await world.sides_that_take_records()) <= 1
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(world.append, work.writer, 4)
                    if was_crashed:
                        async with world.process("second") as namespace:
                            if await namespace.promotion.status(LOG) is None:
                                await namespace.promotion.promote(LOG, TARGET)
                            else:
                                await namespace.promotion.promote(LOG)
                await world.append(work.writer, 4)
            await check_promoted(world)
        if writes.count < number:
            assert number > 15, "every write was tried"
            return
    raise AssertionError("the promotion does not end")


@pytest.mark.slow
async def test_a_promotion_that_crashed_at_any_write_is_undone_or_complete(
    autojump_clock: trio.testing.MockClock,
) -> None:
    kept = undone = 0
    for number in range(1, WRITES_MAX):
        async with open_world() as world:
            async with world.process("writer") as namespace, namespace.open_writer(LOG) as writer:
                await world.append(writer, 6)
                await crashed(world, writes := Writes(crash_after=number))
                async with world.process("second") as other:
                    try:
                        if await other.promotion.status(LOG) is not None:
                            await other.promotion.undo(LOG)
                        undone += 1
                        expected = SOURCE
                    except dlog.PromotionError:
                        kept += 1
                        await other.promotion.promote(LOG)
                        expected = TARGET
            async with world.process("third") as namespace:
                assert await world.sides_that_take_records() == [expected]
                async with namespace.open_writer(LOG) as writer:
                    await world.append(writer, 4)
                assert await records_of(namespace) == world.acknowledged
                billing = await namespace.cursors(LOG).get("billing")
                assert billing is not None
                assert billing.position == world.acknowledged[5][1]
                if expected == SOURCE:
                    assert await namespace.promotion.status(LOG) is None
                    assert len(await ledgers_in(world, TARGET)) <= ORPHANS_MAX, "no copy is left"
                    await namespace.promotion.promote(LOG, TARGET)
            await check_promoted(world)
        if writes.count < number:
            assert kept >= 2, "the target was open, and the source knew it or did not"
            assert undone > 10
            return
    raise AssertionError("the promotion does not end")


@pytest.mark.slow
async def test_undoing_that_crashed_at_any_write_is_continued(autojump_clock: trio.testing.MockClock) -> None:
    for number in range(1, WRITES_MAX):
        async with open_world() as world:
            hand_over = 15  # some write in the middle; the test before tries them all
            assert await crashed(world, Writes(crash_after=hand_over))
            writes = Writes(crash_after=number)
            try:
                async with world.process("undoer", writes) as namespace:
                    await namespace.promotion.undo(LOG)
            except* CrashError:
                pass
            assert len(await world.sides_that_take_records()) <= 1
            async with world.process("second") as namespace:
                if await namespace.promotion.status(LOG) is not None:
                    await namespace.promotion.undo(LOG)
                assert await world.sides_that_take_records() == [SOURCE]
                assert len(await ledgers_in(world, TARGET)) <= ORPHANS_MAX
                async with namespace.open_writer(LOG) as writer:
                    await world.append(writer, 4)
                assert await records_of(namespace) == world.acknowledged
        if writes.count < number:
            assert number > 5
            return
    raise AssertionError("undoing does not end")


@pytest.mark.slow
async def test_a_lost_reply_to_any_write_changes_nothing(autojump_clock: trio.testing.MockClock) -> None:
    for number in range(1, WRITES_MAX):
        async with open_world() as world:
            writes = Writes(lose_reply_of=number)
            async with world.process("promoter", writes) as namespace:
                await namespace.promotion.promote(LOG, TARGET)
            await check_promoted(world)
        if writes.count < number:
            assert number > 15
            return
    raise AssertionError("the promotion does not end")
