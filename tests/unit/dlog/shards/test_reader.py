"""Reading a sharded log: each record once, turns, following, failures, positions and cursors."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import pytest
import trio
import trio.testing

import dlog
from dlog.shards import create_sharded_log, open_sharded_reader, open_sharded_writer, reader, shard_of

KEYS = [b"key-%d" % number for number in range(12)]


async def fill(namespace: dlog.Namespace, shards: int, numbers: Iterable[int]) -> None:
    await create_sharded_log(namespace, "s", shards, exist_ok=True)
    async with open_sharded_writer(namespace, "s") as writer:
        await writer.append_many([(key, b"%s/%d" % (key, number)) for number in numbers for key in KEYS])


async def read_all(merged: reader.ShardedReader) -> list[tuple[int, bytes]]:
    return [(shard, record.payload) async for shard, record in merged]


def check_order(found: list[tuple[int, bytes]], shards: int, numbers: Iterable[int]) -> None:
    """Each record once, in its shard, in the order of its shard."""
    written = [(shard_of(key, shards), b"%s/%d" % (key, number)) for number in numbers for key in KEYS]
    for shard in range(shards):
        assert [each for each in found if each[0] == shard] == [each for each in written if each[0] == shard]
    assert len(found) == len(written)


async def test_each_record_is_seen_once_in_the_order_of_its_shard(namespace: dlog.Namespace) -> None:
    await fill(namespace, 3, range(20))
    async with open_sharded_reader(namespace, "s", follow=False) as merged:
        check_order(await read_all(merged), 3, range(20))
        assert await read_all(merged) == []


async def test_the_shards_take_turns(namespace: dlog.Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "TURN_RECORDS_MAX", 4)
    await create_sharded_log(namespace, "s", 3)
    counts = (60, 12, 8)
    for shard, count in enumerate(counts):
        async with namespace.open_writer(f"s/shard-{shard:05d}") as writer:
            await writer.append_many([b"x"] * count)
    async with open_sharded_reader(namespace, "s", follow=False) as merged:
        await trio.testing.wait_all_tasks_blocked()  # each shard offers its first turn
        shards = [shard async for shard, _ in merged]
    assert [shards.count(shard) for shard in range(3)] == list(counts)
    assert {1, 2} <= set(shards[:12]), "the busy shard lets the others in"
    assert max(index for index, shard in enumerate(shards) if shard) < 45


async def test_a_following_reader_gets_new_records_of_each_shard(namespace: dlog.Namespace) -> None:
    await fill(namespace, 3, range(2))
    found: list[tuple[int, bytes]] = []

    async def follow(merged: reader.ShardedReader) -> None:
        async for shard, record in merged:
            found.append((shard, record.payload))
            if len(found) == 5 * len(KEYS):
                return

    async with open_sharded_reader(namespace, "s") as merged, trio.open_nursery() as nursery:
        nursery.start_soon(follow, merged)
        await fill(namespace, 3, range(2, 5))
    check_order(found, 3, range(5))


async def test_several_tasks_share_a_reader_and_a_cancelled_one_loses_nothing(
    namespace: dlog.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "TURN_RECORDS_MAX", 3)
    await fill(namespace, 2, range(20))
    found: list[tuple[int, bytes]] = []
    scopes: list[trio.CancelScope] = []

    async def take(merged: reader.ShardedReader) -> None:
        with trio.CancelScope() as scope:
            scopes.append(scope)
            async for shard, record in merged:
                found.append((shard, record.payload))
                await trio.lowlevel.checkpoint()

    async with open_sharded_reader(namespace, "s", follow=False) as merged:
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(take, merged)
            await trio.lowlevel.checkpoint()
            for _ in range(10):
                await trio.lowlevel.checkpoint()
            scopes[0].cancel()
        found += await read_all(merged)
    assert sorted(found) == sorted(
        (shard_of(key, 2), b"%s/%d" % (key, number)) for number in range(20) for key in KEYS
    )


async def test_a_shard_that_fails_ends_the_reader_with_its_error(namespace: dlog.Namespace) -> None:
    await fill(namespace, 3, range(2))
    async with open_sharded_reader(namespace, "s") as merged:
        for _ in range(2 * len(KEYS)):
            await anext(merged)
        before = merged.positions
        await merged._readers[1].aclose()  # as any error of a shard
        for _ in range(2):
            with pytest.raises(dlog.NamespaceClosedError, match="s/shard-00001"):
                await anext(merged)
        assert merged.positions == before
    with pytest.raises(dlog.NamespaceClosedError):
        await anext(merged)


async def test_a_closed_reader_wakes_the_task_that_waits_with_an_error(namespace: dlog.Namespace) -> None:
    await create_sharded_log(namespace, "s", 2)
    caught: list[Exception] = []

    async def wait(merged: reader.ShardedReader) -> None:
        try:
            await anext(merged)
        except dlog.NamespaceClosedError as exc:
            caught.append(exc)

    async with trio.open_nursery() as nursery, open_sharded_reader(namespace, "s") as merged:
        nursery.start_soon(wait, merged)
        await trio.testing.wait_all_tasks_blocked()
    assert len(caught) == 1, "and no silent end"


async def test_a_reader_continues_at_the_positions_of_what_was_returned(
    namespace: dlog.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "TURN_RECORDS_MAX", 4)
    await fill(namespace, 3, range(3))
    for count in (0, 1, 4, 7, 30, 36):
        async with open_sharded_reader(namespace, "s", follow=False) as merged:
            found = [await anext(merged) for _ in range(count)]
            positions = merged.positions
        assert merged.positions == positions
        async with open_sharded_reader(namespace, "s", follow=False, start=positions) as merged:
            found += [each async for each in merged]
        check_order([(shard, record.payload) for shard, record in found], 3, range(3))


async def test_commits_of_each_shard_are_where_the_next_reader_continues(
    namespace: dlog.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "TURN_RECORDS_MAX", 4)
    await fill(namespace, 3, range(3))
    opened = partial(open_sharded_reader, namespace, "s", follow=False, cursor="billing")
    found: list[tuple[int, bytes]] = []
    async with opened() as merged:
        assert await merged.commit() == {}
        for _ in range(7):
            shard, record = await anext(merged)
            found.append((shard, record.payload))
        cursors = await merged.commit()
        returned = {shard for shard, _ in found}
        assert {each: cursor.position for each, cursor in cursors.items()} == {
            each: position for each, position in merged.positions.items() if each in returned
        }
        # The reader of the shard has read further than this one has returned.
        with pytest.raises(ValueError, match="was not returned yet"):
            await merged.commit_shard(shard, record.dlsn.next_slot())
        with pytest.raises(ValueError, match="was not returned yet"):
            await merged.commit_shard(7, record.dlsn)
        await anext(merged)  # not committed
    async with opened() as merged:
        found += await read_all(merged)
    check_order(found, 3, range(3))
    async with opened(cursor=None) as merged:
        await anext(merged)
        with pytest.raises(ValueError, match="has no cursor"):
            await merged.commit()


async def test_some_shards_are_read_alone(namespace: dlog.Namespace) -> None:
    await fill(namespace, 3, range(2))
    async with open_sharded_reader(namespace, "s", follow=False, shards=[2, 0]) as merged:
        assert {shard async for shard, _ in merged} == {0, 2}
    for wrong in (3, -1):
        with pytest.raises(ValueError, match="it has 0 to 2"):
            async with open_sharded_reader(namespace, "s", shards=[wrong]):
                pass
    async with open_sharded_reader(namespace, "s", follow=False, shards=[]) as merged:
        assert await read_all(merged) == []


async def test_it_ends_when_all_shards_are_sealed(namespace: dlog.Namespace) -> None:
    await fill(namespace, 2, range(1))
    await namespace.seal_log("s/shard-00000")
    await namespace.seal_log("s/shard-00001")
    async with open_sharded_reader(namespace, "s") as merged:
        check_order(await read_all(merged), 2, range(1))
