"""Batches of segments: all of it in its logs at once, or nothing; once, however often it is tried."""

# covers: dlog/bulk/plan.py
# covers: dlog/operations/batches.py

from __future__ import annotations

import datetime
import pickle
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress

import attrs
import pytest
import trio

import dlog
from dlog.bulk import AttachedBatch, BatchOvertakenError, BatchPlan, DetachedSegment
from dlog.namespace_handle import Namespace
from ledger.errors import NoSuchLedgerError
from ledger.metadata_store.errors import ConnectionLostError
from ledger.metadata_store.store import Operation
from namespace.log_nodes import LogNodes
from namespace.logs import open_log
from namespace.segment_nodes import record_allocation
from tests.fakes.dict_bookies import DictCluster, open_cluster
from tests.fakes.dict_namespace import CONFIG, WatchedStore, open_on, read_all, write_segments

NOW = datetime.timedelta()


@pytest.fixture
async def cluster() -> AsyncIterator[DictCluster]:
    async with open_cluster() as opened:
        yield opened


async def begun(namespace: Namespace, number: int = 1, logs: Sequence[str] = ("a", "b")) -> BatchPlan:
    plan = await namespace.batches.begin(logs, series="query", number=number)
    assert plan is not None
    return plan


async def segment(namespace: Namespace, plan: BatchPlan, log: str, *payloads: bytes) -> DetachedSegment:
    async with namespace.batches.open_segment(plan, log) as writer:
        await writer.append_many(payloads)
    assert writer.result is not None
    return writer.result


async def make_logs(namespace: Namespace, *names: str) -> None:
    for name in names:
        await namespace.create_log(name)


async def test_a_batch_appears_in_its_logs_in_the_order_of_its_segments(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        namespace = opened.namespace
        await write_segments(namespace, "a", 2)
        await namespace.create_log("b")
        plan = pickle.loads(pickle.dumps(await begun(namespace)))
        late = await segment(namespace, plan, "a", b"y", b"z")
        early = await segment(namespace, plan, "a", b"x")
        other = await segment(namespace, plan, "b", b"o")
        assert await read_all(namespace, "a") == [b"0", b"1"]
        parts = pickle.loads(pickle.dumps([early, other, late]))
        attached = await namespace.batches.attach(plan, parts)
        assert attached == AttachedBatch(
            positions={
                "a": (dlog.DLSN(3, 0, 0), dlog.DLSN(4, 0, 1)),
                "b": (dlog.DLSN(1, 0, 0), dlog.DLSN(1, 0, 0)),
            },
            is_repeated=False,
        )
        assert await read_all(namespace, "a") == [b"0", b"1", b"x", b"y", b"z"]
        assert await read_all(namespace, "b") == [b"o"]
        await write_segments(namespace, "b", 0)
        async with namespace.open_writer("a") as writer:
            await writer.append(b"after")
        async with namespace.open_reader("a", follow=False) as reader:
            records = [record async for record in reader]
        assert [record.payload for record in records[-4:]] == [b"x", b"y", b"z", b"after"]
        assert {record.txid for record in records[2:5]} == {plan.logs["a"].txid}
        assert records[4].txid < records[5].txid
        assert await namespace.count_records("a") == 6
        for log in "a", "b":
            assert (await namespace.repair.check(log)).findings == ()
            assert (await namespace.repair.verify(log)).is_sound


async def test_a_long_segment_has_many_entries(cluster: DictCluster) -> None:
    config = attrs.evolve(CONFIG, compression=dlog.Compression.LZ4)
    async with open_on(cluster, config=config) as opened:
        namespace = opened.namespace
        await namespace.create_log("a")
        plan = await begun(namespace, logs=["a"])
        payloads = [b"%05d" % number * 100 for number in range(2_000)]
        async with namespace.batches.open_segment(plan, "a") as writer:
            for first in range(0, len(payloads), 300):
                await writer.append_many(payloads[first : first + 300])
        assert writer.result is not None
        assert writer.result.last_entry_id > 5
        await namespace.batches.attach(plan, [writer.result])
        assert await read_all(namespace, "a") == payloads


async def test_a_cancelled_call_loses_no_record_and_keeps_their_order(cluster: DictCluster) -> None:
    config = attrs.evolve(CONFIG, writer=attrs.evolve(CONFIG.writer, bytes_in_flight_max=1))
    async with open_on(cluster, config=config) as opened:
        namespace = opened.namespace
        await namespace.create_log("a")
        plan = await begun(namespace, logs=["a"])
        payloads = [b"%05d" % number * 100 for number in range(1_000)]
        async with namespace.batches.open_segment(plan, "a") as writer:
            await writer.append_many(payloads[:1])
            cancelled = 0
            for first in range(1, 1_000, 111):
                with trio.CancelScope() as scope:
                    scope.cancel()
                    await writer.append_many(payloads[first : first + 111])
                cancelled += scope.cancelled_caught
            assert cancelled
            async with trio.open_nursery() as nursery:
                nursery.start_soon(writer.append_many, payloads[:500])
                nursery.start_soon(writer.append_many, [])
        assert writer.result is not None
        await namespace.batches.attach(plan, [writer.result])
        assert await read_all(namespace, "a") == [*payloads, *payloads[:500]]


async def test_a_follower_reads_a_batch(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        namespace = opened.namespace
        await write_segments(namespace, "a", 1)
        async with namespace.open_reader("a") as reader:
            assert (await anext(reader)).payload == b"0"
            plan = await begun(namespace, logs=["a"])
            await namespace.batches.attach(plan, [await segment(namespace, plan, "a", b"1", b"2")])
            assert [(await anext(reader)).payload for _ in range(2)] == [b"1", b"2"]


async def test_a_batch_that_is_there_is_not_begun_and_not_attached_again(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        namespace = opened.namespace
        await make_logs(namespace, "a", "b")
        plan, zombie = await begun(namespace, 7), await begun(namespace, 7)
        theirs = await segment(namespace, zombie, "a", b"theirs")
        ours = await segment(namespace, plan, "a", b"ours")
        first = await namespace.batches.attach(plan, [ours])
        assert await namespace.batches.attach(plan, [ours]) == first
        assert await namespace.batches.attach(zombie, [theirs]) == AttachedBatch(
            positions={}, is_repeated=True
        )
        assert await namespace.batches.begin(["a", "b"], series="query", number=7) is None
        assert await namespace.batches.begin(["a", "b"], series="query", number=6) is None
        assert (await namespace.batches.begin(["a", "b"], series="another query", number=6)) is not None
        assert await namespace.batches.abandon(zombie, [theirs, ours]) == [theirs.ledger_id]
        assert await read_all(namespace, "a") == [b"ours"]
        with pytest.raises(NoSuchLedgerError):
            await opened.client.metadata(theirs.ledger_id)


async def test_a_batch_without_a_series_stores_no_number_and_is_still_attached_once(
    cluster: DictCluster,
) -> None:
    async with open_on(cluster) as opened:
        namespace = opened.namespace
        await namespace.create_log("a")
        plan = await namespace.batches.begin(["a"])
        assert plan is not None
        part = await segment(namespace, plan, "a", b"x")
        first = await namespace.batches.attach(plan, [part])
        assert await namespace.batches.attach(plan, [part]) == first
        assert (await namespace.properties.get("a")).values == {}
        assert await read_all(namespace, "a") == [b"x"]


async def test_parts_that_were_begun_in_several_processes_are_attached_together(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened, open_on(cluster, days_later=1) as ahead:
        namespace = opened.namespace
        await make_logs(namespace, "a", "b")
        late = await begun(ahead.namespace, logs=["a"])
        early = await begun(namespace, logs=["a", "b"])
        parts = [await segment(ahead.namespace, late, "a", b"2"), await segment(namespace, early, "a", b"1")]
        plan = BatchPlan.merged([late, early])
        await namespace.batches.attach(plan, parts)
        assert await read_all(namespace, "a") == [b"1", b"2"]
        assert (await namespace.repair.verify("a")).is_sound
        assert await namespace.batches.last("query", "a") == 1
        assert await namespace.batches.last("other", "a") is None
        later = await begun(namespace, 2, logs=["a"])
        with pytest.raises(BatchOvertakenError, match="saw another state"):
            BatchPlan.merged([early, attrs.evolve(later, number=1)])
        with pytest.raises(ValueError, match="is not batch"):
            BatchPlan.merged([early, later])


async def test_a_batch_without_records_is_recorded(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        namespace = opened.namespace
        await make_logs(namespace, "a", "b")
        plan = await begun(namespace)
        async with namespace.batches.open_segment(plan, "a") as writer:
            pass
        assert writer.result is None
        assert await namespace.repair.find_orphans(older_than=NOW) == []
        assert await namespace.batches.attach(plan, []) == AttachedBatch(positions={}, is_repeated=False)
        assert await namespace.batches.begin(["a", "b"], series="query", number=1) is None


async def test_a_batch_that_a_writer_overtook_changes_nothing(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        namespace = opened.namespace
        await make_logs(namespace, "a", "b")
        plan = await begun(namespace)
        parts = [await segment(namespace, plan, log, b"batch") for log in ("a", "b")]
        await write_segments(namespace, "b", 1)
        with pytest.raises(BatchOvertakenError, match="log 'b' has changed"):
            await namespace.batches.attach(plan, parts)
        assert await read_all(namespace, "a") == []
        assert await read_all(namespace, "b") == [b"0"]
        again = await begun(namespace)
        await namespace.batches.attach(again, [await segment(namespace, again, "b", b"batch")])
        assert await read_all(namespace, "b") == [b"0", b"batch"]


async def test_a_log_that_changes_at_the_last_moment_keeps_the_batch_out(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        namespace = opened.namespace
        await make_logs(namespace, "a", "b")
        plan = await begun(namespace)
        parts = [await segment(namespace, plan, log, b"batch") for log in ("a", "b")]
        moments = 0

        async def overtake(kind: str, _path: str) -> None:
            nonlocal moments
            if kind == "commit" and moments == 0:
                moments += 1
                async with open_on(cluster) as other:
                    known = await open_log(LogNodes(other.store, "/ns", "a"))
                    await record_allocation(known, 99)

        opened.store.before = overtake
        with pytest.raises(BatchOvertakenError, match="log 'a' has changed"):
            await namespace.batches.attach(plan, parts)
        assert moments == 1
        assert await read_all(namespace, "b") == []


async def test_a_batch_fences_a_writer_that_knows_an_older_state(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        namespace = opened.namespace
        await namespace.create_log("a")
        known = await open_log(LogNodes(opened.store, "/ns", "a"))
        plan = await begun(namespace, logs=["a"])
        await namespace.batches.attach(plan, [await segment(namespace, plan, "a", b"batch")])
        with pytest.raises(dlog.LogFencedError):
            await record_allocation(known, 99)


async def test_a_log_with_a_writer_takes_no_batch(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened, open_on(cluster) as other:
        namespace = opened.namespace
        await namespace.create_log("a")
        plan = await begun(namespace, logs=["a"])
        part = await segment(namespace, plan, "a", b"batch")
        async with other.namespace.open_writer("a"):
            for call in (
                namespace.batches.begin(["a"], series="query", number=1),
                namespace.batches.attach(plan, [part]),
                namespace.batches.abandon(plan, [part]),
            ):
                with pytest.raises(dlog.LogLockedError):
                    await call
        await namespace.batches.attach(plan, [part])  # that writer wrote nothing
        assert await read_all(namespace, "a") == [b"batch"]


async def test_what_a_dead_writer_left_comes_before_the_batch(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        with suppress(dlog.DLogError):
            async with (
                open_on(cluster) as other,
                other.namespace.open_writer("a", create=True) as writer,
            ):
                await writer.append(b"0", txid=2**60)
                other.store.expire()
        plan = await begun(opened.namespace, logs=["a"])
        assert plan.logs["a"].txid == 2**60 + 1
        await opened.namespace.batches.attach(plan, [await segment(opened.namespace, plan, "a", b"1")])
        assert await read_all(opened.namespace, "a") == [b"0", b"1"]


@pytest.mark.slow
@pytest.mark.parametrize("is_applied", [True, False])
async def test_a_lost_reply_is_settled_and_the_batch_is_there_once(
    cluster: DictCluster, *, is_applied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_on(cluster) as opened:
        namespace, commit, lost = opened.namespace, opened.store.commit, 0

        async def losing(operations: Sequence[Operation]) -> None:
            nonlocal lost
            lost += 1
            if is_applied or lost > 1:
                await commit(operations)
            if lost == 1:
                raise ConnectionLostError("/", "the reply is lost")

        await make_logs(namespace, "a", "b")
        plan = await begun(namespace)
        parts = [await segment(namespace, plan, log, b"x") for log in ("a", "b")]
        monkeypatch.setattr(opened.store, "commit", losing)
        attached = await namespace.batches.attach(plan, parts)
        assert lost == (1 if is_applied else 2)
        assert attached.positions == {log: (dlog.DLSN(1, 0, 0),) * 2 for log in ("a", "b")}
        assert await read_all(namespace, "a") == await read_all(namespace, "b") == [b"x"]


class CrashError(Exception):
    """The program is dead from here on."""


def die_at(store: WatchedStore, number: int, *, is_applied: bool) -> None:
    """Have the program die at its write of this number, before or after the store applies it."""
    count = 0

    def dying(write: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def call(*args: object, **kwargs: object) -> object:
            nonlocal count
            count += 1
            if count == number and not is_applied:
                store.expire()
                raise CrashError
            result = await write(*args, **kwargs)
            if count == number:
                store.expire()
                raise CrashError
            return result

        return call

    for name in "create", "put", "delete", "commit":
        setattr(store, name, dying(getattr(store, name)))


@pytest.mark.slow
@pytest.mark.parametrize("is_applied", [True, False])
async def test_a_program_that_dies_at_any_write_leaves_all_or_nothing(
    cluster: DictCluster, *, is_applied: bool
) -> None:
    outcomes = []
    for number in range(1, 100):
        logs = [f"{number}/a", f"{number}/b"]
        async with open_on(cluster) as opened:
            await make_logs(opened.namespace, *logs)
        with suppress(CrashError):
            async with open_on(cluster) as opened:
                die_at(opened.store, number, is_applied=is_applied)
                plan = await begun(opened.namespace, logs=logs)
                parts = [await segment(opened.namespace, plan, log, b"x") for log in logs]
                await opened.namespace.batches.attach(plan, parts)
        async with open_on(cluster) as opened:
            namespace = opened.namespace
            found = [await read_all(namespace, log) for log in logs]
            again = await namespace.batches.begin(logs, series="query", number=1)
            outcomes.append(again is None)
            assert found == ([[], []] if again else [[b"x"], [b"x"]])
            if again is not None:
                parts = [await segment(namespace, again, log, b"x") for log in logs]
                await namespace.batches.attach(again, parts)
            left = [each.ledger_id for each in await namespace.repair.find_orphans(older_than=NOW)]
            swept = await namespace.repair.delete_orphans(left, older_than=NOW)
            assert all(each.is_deleted for each in swept)
            assert [await read_all(namespace, log) for log in logs] == [[b"x"], [b"x"]]
        if outcomes[-3:] == [True] * 3:
            break
    assert outcomes == sorted(outcomes)
    assert len(outcomes) > 8


async def test_a_ledger_that_was_swept_as_an_orphan_keeps_the_batch_out(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        namespace = opened.namespace
        await namespace.create_log("a")
        plan = await begun(namespace, logs=["a"])
        kept, swept = [await segment(namespace, plan, "a", b"x") for _ in range(2)]
        (outcome,) = await namespace.repair.delete_orphans([swept.ledger_id], older_than=NOW)
        assert outcome.is_deleted
        with pytest.raises(BatchOvertakenError):
            await namespace.batches.attach(plan, [kept])
        assert await read_all(namespace, "a") == []


async def test_an_abandoned_batch_can_not_be_attached(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        namespace = opened.namespace
        await make_logs(namespace, "a", "b")
        plan = await begun(namespace)
        left, kept = await segment(namespace, plan, "a", b"x"), await segment(namespace, plan, "b", b"x")
        assert await namespace.batches.abandon(plan, [left]) == [left.ledger_id]
        with pytest.raises(BatchOvertakenError):
            await namespace.batches.attach(plan, [kept])
        assert await namespace.batches.abandon(plan, [left, kept]) == [left.ledger_id, kept.ledger_id]


async def test_a_log_that_was_created_again_takes_nothing_and_loses_nothing(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        namespace = opened.namespace
        await namespace.create_log("a")
        plan = await begun(namespace, logs=["a"])
        part = await segment(namespace, plan, "a", b"x")
        await namespace.batches.attach(plan, [part])
        await namespace.rename_log("a", "moved")
        with pytest.raises(dlog.LogNotFoundError):
            await namespace.batches.abandon(plan, [part])
        await namespace.create_log("a")
        with pytest.raises(BatchOvertakenError):
            await namespace.batches.attach(plan, [part])
        assert await namespace.batches.abandon(plan, [part]) == []
        assert await read_all(namespace, "moved") == [b"x"]
