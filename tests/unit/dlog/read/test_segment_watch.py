"""Following the segments of a log, and the position of a transaction id, in every face."""

# covers: dlog/aio/segment_watch.py
# covers: dlog/blocking/segment_watch.py
# covers: dlog/cli/logs/segments.py

from __future__ import annotations

import asyncio
import datetime
import json
from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import pytest
import trio

import dlog
from dlog import SegmentChangeKind
from dlog.cli.main import main
from dlog.read.segment_watch import segment_changes
from namespace.segments.segment import LogSegment
from tests.fakes.dict_bookies import DictCluster, open_cluster
from tests.fakes.dict_namespace import open_on, write_segments

APPEARED, COMPLETED, TRUNCATED, DELETED = SegmentChangeKind


@pytest.fixture
async def cluster(autojump_clock: trio.testing.MockClock) -> AsyncIterator[DictCluster]:
    async with open_cluster() as opened:
        yield opened


def told(before: list[LogSegment], now: list[LogSegment]) -> list[tuple[SegmentChangeKind, int, str]]:
    return [
        (each.kind, each.segment.segment_seqno, str(each.first_dlsn)) for each in segment_changes(before, now)
    ]


def test_each_difference_of_two_lists_is_one_change() -> None:
    begun = LogSegment(ledger_id=7, segment_seqno=2, first_txid=5)
    done = attrs.evolve(
        begun, in_progress=False, last_txid=9, record_count=3, last_entry_id=2, completed_ms=1
    )
    cut = done.partially_truncated(dlog.DLSN(2, 1, 0))
    further = done.partially_truncated(dlog.DLSN(2, 2, 0))
    assert told([], [begun]) == [(APPEARED, 2, "2:0:0")]
    assert told([begun], [begun]) == []
    assert told([begun], [done]) == [(COMPLETED, 2, "2:0:0")]
    assert told([], [done]) == [(APPEARED, 2, "2:0:0"), (COMPLETED, 2, "2:0:0")]
    assert told([done], [cut]) == [(TRUNCATED, 2, "2:1:0")]
    assert told([cut], [further]) == [(TRUNCATED, 2, "2:2:0")]
    assert [kind for kind, *_ in told([cut], [done.truncated()])] == [TRUNCATED]
    assert told([cut], [cut]) == []
    assert [kind for kind, *_ in told([cut], [])] == [DELETED]
    assert [kind for kind, *_ in told([begun], [further])] == [COMPLETED, TRUNCATED]


async def test_a_watch_tells_what_appears_is_completed_truncated_and_deleted(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened, trio.open_nursery() as nursery:
        namespace = opened.namespace
        await namespace.create_log("orders")
        await write_segments(namespace, "orders", 1)
        seen: list[tuple[SegmentChangeKind, int]] = []
        async with namespace.watch_segments("orders") as watch:
            assert [each.segment_seqno for each in watch.segments] == [1]

            async def follow() -> None:
                async for change in watch:
                    seen.append((change.kind, change.segment.segment_seqno))
                    assert [each.segment_seqno for each in watch.segments] == sorted(
                        each.segment_seqno for each in watch.segments
                    )

            nursery.start_soon(follow)
            await trio.testing.wait_all_tasks_blocked()
            async with namespace.open_writer("orders") as writer:
                await writer.append(b"x", txid=1)
                await trio.testing.wait_all_tasks_blocked()
                assert seen == [(APPEARED, 2)]
            await trio.testing.wait_all_tasks_blocked()
            assert seen == [(APPEARED, 2), (COMPLETED, 2)]
            await write_segments(namespace, "orders", 1, first=2)
            await trio.testing.wait_all_tasks_blocked()
            del seen[:]
            await namespace.truncate_log("orders", dlog.DLSN(3, 0, 0))
            await trio.testing.wait_all_tasks_blocked()
            assert set(seen) == {(TRUNCATED, 1), (TRUNCATED, 2)}
            del seen[:]
            await namespace.purge_log("orders")
            await trio.testing.wait_all_tasks_blocked()
            assert set(seen) == {(DELETED, 1), (DELETED, 2)}
            assert [each.segment_seqno for each in watch.segments] == [3]
            nursery.cancel_scope.cancel()


async def test_a_cancelled_wait_loses_no_change(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        namespace = opened.namespace
        await namespace.create_log("orders")
        async with namespace.watch_segments("orders") as watch:
            with trio.move_on_after(1):
                await anext(watch)
            await write_segments(namespace, "orders", 2)
            with trio.CancelScope() as scope:
                scope.cancel()
                await anext(watch)
            assert scope.cancelled_caught
            changes = [await anext(watch) for _ in range(4)]
            kinds = [(each.kind, each.segment.segment_seqno) for each in changes]
            assert kinds == [(APPEARED, 1), (COMPLETED, 1), (APPEARED, 2), (COMPLETED, 2)]


async def test_a_deleted_log_ends_the_watch_with_an_error(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        await opened.namespace.create_log("orders")
        async with opened.namespace.watch_segments("orders") as watch:
            await opened.namespace.delete_log("orders")
            with pytest.raises(dlog.LogNotFoundError):
                await anext(watch)
        with pytest.raises(dlog.LogNotFoundError):
            async with opened.namespace.watch_segments("orders"):
                pass


async def test_the_position_of_a_transaction_id_is_that_of_the_first_record_with_it_or_more(
    cluster: DictCluster,
) -> None:
    async with open_on(cluster) as opened:
        namespace = opened.namespace
        moment = datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC)
        async with namespace.open_writer("orders", create=True) as writer:
            first = await writer.append(b"1", txid=10)
            later = await writer.append(b"2", txid=int(moment.timestamp() * 1000) + 5)
            await writer.flush()
            # The writer has the lock all the time.
            assert await namespace.position_of("orders", txid=0) == first
            assert await namespace.position_of("orders", txid=10) == first
            assert await namespace.position_of("orders", txid=11) == later
            assert await namespace.position_of("orders", timestamp=moment) == later
            assert await namespace.position_of("orders", timestamp=moment.replace(year=2027)) is None
        for arguments in ({}, {"txid": 1, "timestamp": moment}):
            with pytest.raises(ValueError, match="either txid or timestamp"):
                await namespace.position_of("orders", **arguments)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="time zone"):
            await namespace.position_of("orders", timestamp=moment.replace(tzinfo=None))
        with pytest.raises(dlog.LogNotFoundError):
            await namespace.position_of("nowhere", txid=1)


@pytest.mark.slow
def test_the_other_faces_and_the_commands_do_the_same(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    uri = (tmp_path / "ns").as_uri()

    with dlog.blocking.open_namespace(uri) as namespace:
        namespace.create_log("orders")
        with namespace.watch_segments("orders") as watch:
            with namespace.open_writer("orders") as writer:
                writer.append(b"x", txid=3)
            assert next(watch).kind is APPEARED
            assert watch.next_change().kind is COMPLETED
            assert len(watch.segments) == 1
        first = namespace.position_of("orders", txid=1)

    async def by_asyncio() -> None:
        async with dlog.aio.open_namespace(uri) as namespace:
            assert await namespace.position_of("orders", txid=1) == first
            async with namespace.watch_segments("orders") as watch:
                async with namespace.open_writer("orders") as writer:
                    await writer.append(b"x", txid=4)
                assert (await anext(watch)).kind is APPEARED
                assert (await watch.next_change()).kind is COMPLETED

    asyncio.run(by_asyncio())
    capfd.readouterr()
    assert main(["log", "position", "orders", "1", "--uri", uri]) == 0
    assert capfd.readouterr().out.strip() == str(first)
    assert main(["log", "position", "orders", "99", "--uri", uri, "--json"]) == 3
    assert json.loads(capfd.readouterr().out) == {"log": "orders", "dlsn": None}
    assert main(["log", "position", "orders", "latest", "--uri", uri]) == 2
