"""Reading a sharded log between bounds, in batches, and over data that are missing."""

from __future__ import annotations

import datetime
from functools import partial
from typing import Any

import pytest
import trio

import dlog
from dlog.read.positioning import Where
from dlog.read.record_batch import RecordBatch
from dlog.shards import NO_SHARD, open_sharded_reader, open_sharded_writer, reader, shard_of
from tests.unit.dlog.shards.test_reader import KEYS, check_order, fill

Found = dict[int, list[Any]]


async def by_shard(merged: reader.ShardedReader, *, gaps: bool = False) -> Found:
    """The payloads of each shard, and the causes of gaps."""
    found: Found = {}
    with trio.fail_after(60):
        async for shard, each in merged.batches(7, gaps=True) if gaps else merged.batches(7):
            if isinstance(each, dlog.Gap):
                found.setdefault(shard, []).append(each.cause)
            else:
                assert 1 <= len(each) <= 7
                found.setdefault(shard, []).extend(bytes(payload) for payload in each.payloads())
    return found


async def test_batches_are_columns_of_one_shard_in_its_order(namespace: dlog.Namespace) -> None:
    await fill(namespace, 3, range(20))
    async with open_sharded_reader(namespace, "s", follow=False) as merged:
        found = await by_shard(merged)
        assert await merged.read_batch(5) is None
    check_order([(shard, payload) for shard, each in found.items() for payload in each], 3, range(20))


async def test_batches_and_single_records_can_be_mixed(
    namespace: dlog.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "TURN_RECORDS_MAX", 4)
    await fill(namespace, 3, range(20))
    found = []
    async with open_sharded_reader(namespace, "s", follow=False) as merged:
        async for shard, record in merged:
            found.append((shard, record.payload))
            if (batch := await merged.read_batch(3)) is not None:
                assert isinstance(batch[1], RecordBatch)
                found += [(batch[0], each.payload) for each in batch[1]]
                at, last = batch[0], batch[1].last_dlsn
                assert merged.positions[at] == last.next_slot()
    check_order(found, 3, range(20))


async def test_an_empty_batch_says_that_no_record_came_in_time(namespace: dlog.Namespace) -> None:
    await fill(namespace, 3, range(1))
    async with open_sharded_reader(namespace, "s") as merged:
        found: Found = {}
        while sum(len(each) for each in found.values()) < len(KEYS):
            taken = await merged.read_batch(len(KEYS), wait_s=0)
            assert taken is not None
            if taken[0] == NO_SHARD:
                assert taken[1] == []
            else:
                found.setdefault(taken[0], []).extend(record.payload for record in taken[1])
        check_order([(shard, payload) for shard, each in found.items() for payload in each], 3, range(1))
        assert await merged.read_batch(1, wait_s=0.01) == (NO_SHARD, RecordBatch())
        with pytest.raises(ValueError, match="records_max=0"):
            await merged.read_batch(0)


async def test_waits_that_end_in_time_and_tasks_at_once_lose_nothing(
    namespace: dlog.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "TURN_RECORDS_MAX", 3)
    await fill(namespace, 2, range(20))
    found: list[tuple[int, bytes]] = []

    async def take(merged: reader.ShardedReader, wait_s: float) -> None:
        while (taken := await merged.read_batch(2, wait_s=wait_s)) is not None:
            found.extend((taken[0], record.payload) for record in taken[1])

    async with open_sharded_reader(namespace, "s", follow=False) as merged, trio.open_nursery() as nursery:
        for wait_s in (0, 0, 0.001, 0.01):
            nursery.start_soon(take, merged, wait_s)
    assert len(found) == len(set(found)) == 20 * len(KEYS)


async def test_latest_ends_each_shard_behind_what_was_visible_at_the_opening(
    namespace: dlog.Namespace,
) -> None:
    await fill(namespace, 3, range(5))
    async with open_sharded_reader(namespace, "s", end=dlog.LATEST) as merged:
        ends = merged.ends
        await fill(namespace, 3, range(5, 9))
        first = await by_shard(merged)
    check_order([(shard, payload) for shard, each in first.items() for payload in each], 3, range(5))
    for _ in range(2):
        async with open_sharded_reader(namespace, "s", end=ends) as merged:
            assert await by_shard(merged) == first, "the same bounds, the same records"
            assert merged.ends == ends


async def test_a_reader_between_two_positions_continues_where_another_one_ended(
    namespace: dlog.Namespace,
) -> None:
    await fill(namespace, 3, range(4))
    async with open_sharded_reader(namespace, "s", end=dlog.LATEST) as merged:
        first, ends, positions = await by_shard(merged), merged.ends, merged.positions
    await fill(namespace, 3, range(4, 8))
    async with open_sharded_reader(namespace, "s", start=positions, end=dlog.LATEST) as merged:
        second = await by_shard(merged)
    async with open_sharded_reader(namespace, "s", start=ends, end=ends) as merged:
        assert all(len(each) <= 1 for each in (await by_shard(merged)).values()), "ends are inclusive"
    together = {shard: first.get(shard, []) + second.get(shard, []) for shard in range(3)}
    check_order([(shard, payload) for shard, each in together.items() for payload in each], 3, range(8))


async def test_a_transaction_id_or_a_moment_ends_each_shard(namespace: dlog.Namespace) -> None:
    await fill(namespace, 2, [])
    async with open_sharded_writer(namespace, "s") as writer:
        for number in range(10):
            for key in KEYS:
                await writer.append(key, b"%s/%d" % (key, number), txid=number)
    moment = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(milliseconds=6)
    by_shard_end: dict[int, Where] = {0: 6, 1: moment}
    for end in (6, moment, by_shard_end):
        async with open_sharded_reader(namespace, "s", start=3, end=end) as merged:
            found = await by_shard(merged)
            assert merged.ends == {}
        check_order([(shard, payload) for shard, each in found.items() for payload in each], 2, range(3, 7))
    async with open_sharded_reader(namespace, "s", follow=False, end={1: 0}) as merged:
        found = await by_shard(merged)
        assert {each.rpartition(b"/")[2] for each in found[1]} == {b"0"}
        assert {each.rpartition(b"/")[2] for each in found[0]} == {b"%d" % number for number in range(10)}
    with pytest.raises(ValueError, match="end=EARLIEST"):
        async with open_sharded_reader(namespace, "s", end=dlog.EARLIEST):
            pass
    with pytest.raises(ValueError, match="it has 0 to 1"):
        async with open_sharded_reader(namespace, "s", end={2: 5}):
            pass


async def lose_a_segment(namespace: dlog.Namespace) -> None:
    """A sharded log of three segments in each of two shards; the second segment of shard 1 is lost."""
    await fill(namespace, 2, [])
    for number in range(3):
        await fill(namespace, 2, [number])
    lost = (await namespace.segments("s/shard-00001"))[1]
    await namespace.context.client.delete(lost.ledger_id)


async def test_missing_data_of_a_shard_are_a_gap_between_its_records(namespace: dlog.Namespace) -> None:
    await lose_a_segment(namespace)
    opened = partial(open_sharded_reader, namespace, "s", end=dlog.LATEST, gaps=True, cursor="audit")
    async with opened() as merged:
        found = await by_shard(merged, gaps=True)
        assert [each for each in found[0] if isinstance(each, dlog.GapCause)] == []
        at = found[1].index(dlog.GapCause.LEDGER_MISSING)
        assert {each.rpartition(b"/")[2] for each in found[1][:at]} == {b"0"}
        assert {each.rpartition(b"/")[2] for each in found[1][at + 1 :]} == {b"2"}
        assert {each.rpartition(b"/")[2] for each in found[0]} == {b"0", b"1", b"2"}
        await merged.commit()
    async with opened() as merged:
        assert await by_shard(merged, gaps=True) == {}, "the commit is behind the gap"


async def test_a_gap_stays_until_it_is_taken_and_is_committed_alone(namespace: dlog.Namespace) -> None:
    """Calls that return no gaps raise its error, again and again, and the other calls then continue."""
    await lose_a_segment(namespace)
    opened = partial(open_sharded_reader, namespace, "s", follow=False, gaps=True, cursor="c", shards=[1])
    async with opened() as merged:
        first = await anext(merged)
        while True:
            try:
                last = await anext(merged)
            except dlog.CorruptLogError:
                break
        for _ in range(3):
            with pytest.raises(dlog.CorruptLogError):
                await merged.read_batch(9)
            assert merged.positions == {1: last[1].dlsn.next_slot()}
        assert first != last
        taken = await merged.read_batch_or_gap(9)
        assert taken is not None
        gap = taken[1]
        assert isinstance(gap, dlog.Gap)
        assert merged.positions == {1: gap.resume}
        cursor = await merged.commit_shard(1, gap.last)
        assert cursor.position == gap.resume
    async with opened() as merged:
        found = [record.payload async for _, record in merged]
    assert found == [b"%s/2" % key for key in KEYS if shard_of(key, 2) == 1]


async def test_without_gaps_missing_data_are_errors(namespace: dlog.Namespace) -> None:
    await fill(namespace, 2, range(1))
    async with open_sharded_reader(namespace, "s", follow=False) as merged:
        with pytest.raises(ValueError, match="open it with gaps=True"):
            await merged.read_batch_or_gap(9)
    await namespace.truncate_log("s/shard-00001", dlog.DLSN(1, 1, 0))
    async with open_sharded_reader(
        namespace, "s", start={1: dlog.DLSN(1, 0, 0)}, follow=False, gaps=True
    ) as merged:
        assert await by_shard(merged, gaps=True)


async def test_positions_of_an_earlier_time_can_be_committed(namespace: dlog.Namespace) -> None:
    await fill(namespace, 2, range(5))
    async with open_sharded_reader(namespace, "s", follow=False, cursor="c") as merged:
        for _ in range(30):
            await anext(merged)
        earlier = merged.positions
        rest = [each async for each in merged]
        cursors = await merged.commit_to(earlier)
        assert {shard: cursor.position for shard, cursor in cursors.items()} == earlier
        with pytest.raises(ValueError, match="was not returned up to"):
            await merged.commit_to({1: dlog.DLSN(9, 0, 0)})
    async with open_sharded_reader(namespace, "s", follow=False, cursor="c") as merged:
        again = [each async for each in merged]
    assert {each[1].payload for each in again} == {each[1].payload for each in rest}
