"""A writer that is opened again by itself: by which reasons, for how long, and what its callers get."""

from __future__ import annotations

import logging

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import dlog
from dlog.errors import WriterDiskFullError
from dlog.write.reopening import passes
from dlog.write.writer_shell import WriterNamespaceLostError
from ledger.codes import Code
from ledger.wire.messages import AddRequest
from tests.fakes.dict_bookies import DictCluster, open_cluster
from tests.fakes.dict_namespace import CONFIG, open_on
from tests.unit.dlog.test_expired_sessions import payloads, program, two_programs

LOCK = "/ns/log/<default>/lock"
QUICK = attrs.evolve(
    CONFIG, writer=dlog.WriterConfig(retry_timeout_s=10, reopen_timeout_s=200, close_timeout_s=5)
)


def state_of(writer: dlog.LogWriter) -> dlog.WriterState:
    return writer.state  # a type checker takes a property for constant


def test_reasons_that_pass() -> None:
    unknown = dlog.RecordOutcome.UNKNOWN
    assert passes(dlog.LogWriteError("log", "bookies are away", unknown))
    assert passes(WriterDiskFullError("log", "the disk is full"))
    assert passes(dlog.LogLockLostError("log", "the session expired"))
    assert not passes(dlog.LogFencedError("log", "another writer took it"))
    assert not passes(dlog.LogMovedError("log", "file:///there"))
    assert not passes(dlog.WriterClosedError("log"))
    assert not passes(WriterNamespaceLostError("the directory was replaced"))


async def test_appends_wait_for_the_next_session_and_each_record_in_flight_has_one_outcome(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "dlog.write.reopening")
    async with two_programs() as (one, two):
        async with one.namespace.open_writer("log", reopen=True) as writer:
            await writer.append(b"durable")
            pendings = [writer.submit(b"%d" % number) for number in range(5)]
            one.sessions.failures = 20  # of attempts to get the next session, at pauses of 0.2 s
            one.sessions.expire()
            await wait_all_tasks_blocked()
            assert state_of(writer) is dlog.WriterState.REOPENING
            assert isinstance(writer.failure, dlog.LogLockLostError)
            assert not one.namespace.health().ok
            with pytest.raises(dlog.LogLockLostError) as refused:
                writer.submit(b"refused")
            assert refused.value.outcome is dlog.RecordOutcome.NOT_WRITTEN
            last = await writer.append(b"after")
            assert state_of(writer) is dlog.WriterState.OPEN
            assert one.namespace.health().ok
            outcomes = [pending.outcome for pending in pendings]
            assert not {dlog.RecordOutcome.PENDING, dlog.RecordOutcome.UNKNOWN} & set(outcomes)
            for pending in pendings:
                try:
                    await pending
                except dlog.WriteError:
                    pass
            assert await writer.append_after(b"conditional", last) > last
            await writer.flush()
        kept = [b"%d" % n for n, each in enumerate(outcomes) if each is dlog.RecordOutcome.DURABLE]
        assert await payloads(two.namespace) == [b"durable", *kept, b"after", b"conditional"]
    lost = len(outcomes) - len(kept)
    assert f"{lost} records in flight were not written, and of 0 it is unknown" in caplog.text


async def test_a_writer_comes_back_with_its_bookies_after_longer_than_the_retry_timeout(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster(3) as cluster, open_on(cluster, config=QUICK) as opened:
        async with opened.namespace.open_writer("log", create=True, reopen=True) as writer:
            await writer.append(b"one")
            for name in ("b1:1", "b2:1"):
                await cluster.stop(name)
            with pytest.raises(dlog.LogWriteError) as caught:
                await writer.append(b"two")
            assert str(caught.value).count("the writer had to stop") == 1
            async with trio.open_nursery() as nursery:
                nursery.start_soon(writer.append, b"three")
                await trio.sleep(60)
                assert state_of(writer) is dlog.WriterState.REOPENING
                for name in ("b1:1", "b2:1"):
                    cluster.revive(name)
                    await cluster.start(name)
        written = await payloads(opened.namespace)
        assert written in ([b"one", b"three"], [b"one", b"two", b"three"])
        if caught.value.outcome is dlog.RecordOutcome.NOT_WRITTEN:
            assert written == [b"one", b"three"]


async def test_it_ends_after_its_limit_and_says_why(autojump_clock: MockClock) -> None:
    async with (
        open_cluster(3) as cluster,
        open_on(cluster, config=QUICK) as opened,
        opened.namespace.open_writer("log", create=True, reopen=True) as writer,
    ):
        await writer.append(b"one")
        for name in ("b1:1", "b2:1"):
            await cluster.stop(name)
        began_s = trio.current_time()
        with pytest.raises(dlog.LogWriteError):
            await writer.append(b"two")
        with pytest.raises(dlog.LogWriteError) as caught:
            await until_error(writer)
        assert trio.current_time() - began_s < 200 + 60
        assert caught.value.outcome is dlog.RecordOutcome.NOT_WRITTEN
        with pytest.raises(dlog.LogWriteError):
            writer.submit(b"four")
        with pytest.raises(dlog.LogWriteError):
            await writer.wait_capacity()
        assert state_of(writer) is dlog.WriterState.FAILED
        for name in ("b1:1", "b2:1"):
            cluster.revive(name)
            await cluster.start(name)
        await trio.sleep(100)
        await writer.reopen()
        await writer.append(b"five")
        assert state_of(writer) is dlog.WriterState.OPEN


async def test_it_does_not_fight_with_a_writer_that_took_the_log(autojump_clock: MockClock) -> None:
    async with two_programs() as (one, two):
        async with one.namespace.open_writer("log", reopen=True) as writer:
            await writer.append(b"0")
            one.sessions.failures = 50
            one.sessions.expire()
            async with two.namespace.open_writer("log") as other:
                await other.append(b"1")
                began_s = trio.current_time()
                with pytest.raises(dlog.LogFencedError, match="two holds its lock") as caught:
                    await writer.append(b"x")
                assert not isinstance(caught.value, dlog.LogLockLostError)
                assert trio.current_time() - began_s < 60, "it waits for the lock once"
                assert state_of(writer) is dlog.WriterState.FAILED
                await other.append(b"2")
            await trio.sleep(300)
            assert state_of(writer) is dlog.WriterState.FAILED
            assert (await two.store.children(LOCK)).names == ()
        assert await payloads(two.namespace) == [b"0", b"1", b"2"]


async def test_a_fence_ends_it_although_no_writer_holds_the_lock(autojump_clock: MockClock) -> None:
    async with two_programs() as (one, _), one.namespace.open_writer("log", reopen=True) as writer:
        await writer.append(b"0")
        writer._machine.overtaken(dlog.LogFencedError("log", "its segment was completed by another writer"))
        with pytest.raises(dlog.LogFencedError):
            await until_error(writer)
        await trio.sleep(300)
        assert state_of(writer) is dlog.WriterState.FAILED
        assert not isinstance(writer.failure, dlog.LogLockLostError)


@pytest.mark.slow
async def test_a_block_that_ends_while_its_writer_is_reopened_does_not_wait_for_that(
    autojump_clock: MockClock,
) -> None:
    async with two_programs() as (one, two):
        async with one.namespace.open_writer("log", reopen=True) as writer:
            await writer.append(b"0")
            one.sessions.failures = 10**6
            one.sessions.expire()
            await wait_all_tasks_blocked()
            assert state_of(writer) is dlog.WriterState.REOPENING
            began_s = trio.current_time()
        assert trio.current_time() - began_s <= 30  # a lock is released for at most so long
        assert state_of(writer) is dlog.WriterState.CLOSED
        await trio.sleep(300)
        assert (await two.store.children(LOCK)).names == ()


async def test_an_append_that_waits_ends_when_the_writer_is_closed(autojump_clock: MockClock) -> None:
    async with (
        two_programs() as (one, _),
        one.namespace.open_writer("log", reopen=True) as writer,
        trio.open_nursery() as nursery,
    ):
        one.sessions.failures = 10**6
        one.sessions.expire()
        await wait_all_tasks_blocked()

        async def append() -> None:
            with pytest.raises(dlog.LogLockLostError) as caught:
                await writer.append(b"x")
            assert caught.value.outcome is dlog.RecordOutcome.NOT_WRITTEN

        nursery.start_soon(append)
        await wait_all_tasks_blocked()
        await writer.aclose()


async def test_a_flush_after_reopening_tells_of_a_record_that_failed_before(
    autojump_clock: MockClock,
) -> None:
    async with two_programs() as (one, _):
        async with one.namespace.open_writer("log", reopen=True) as writer:
            one.sessions.opened[-1].suspend()  # so the writer starts no segment for the record
            writer.submit(b"its outcome is never asked for")
            await wait_all_tasks_blocked()
            await one.lose_session()
            await wait_all_tasks_blocked()
            await writer.append(b"after")
            with pytest.raises(dlog.LogLockLostError) as caught:
                await writer.flush()
            assert caught.value.outcome is dlog.RecordOutcome.NOT_WRITTEN
            await writer.flush()
        assert await payloads(one.namespace) == [b"after"]


async def test_without_reopen_a_writer_stays_stopped(autojump_clock: MockClock) -> None:
    async with two_programs() as (one, _), one.namespace.open_writer("log") as writer:
        await one.lose_session()
        await trio.sleep(300)
        assert state_of(writer) is dlog.WriterState.FAILED
        with pytest.raises(dlog.LogLockLostError):
            await writer.append(b"0")


@pytest.mark.slow
async def test_the_limit_counts_over_reopenings_that_write_nothing(autojump_clock: MockClock) -> None:
    """Reopening works each time, and no segment takes a record: that must not go on for ever."""
    async with open_cluster(3) as cluster, program(cluster, "one") as one:
        await one.store.create("/ns")
        config = dlog.WriterConfig(retry_timeout_s=5, reopen_timeout_s=60)
        async with one.namespace.open_writer("log", create=True, reopen=True, config=config) as writer:
            await writer.append(b"one")
            began_s = trio.current_time()
            refuse_adds(cluster)
            reopenings = 0
            while state_of(writer) is not dlog.WriterState.FAILED:
                with pytest.raises(dlog.LogWriteError):
                    await writer.append(b"two")
                reopenings += 1
                assert reopenings < 100
            assert reopenings > 2
            assert 60 <= trio.current_time() - began_s < 100


async def test_an_idle_writer_is_reopened_as_often_as_it_loses_its_session(autojump_clock: MockClock) -> None:
    """The limit is for one failure, not for the life of the writer."""
    async with two_programs() as (one, _):
        config = dlog.WriterConfig(reopen_timeout_s=60)
        async with one.namespace.open_writer("log", reopen=True, config=config) as writer:
            for _ in range(5):
                one.sessions.failures = 10
                await one.lose_session()
                await trio.sleep(50)
                assert state_of(writer) is dlog.WriterState.OPEN


def refuse_adds(cluster: DictCluster) -> None:
    """Have bookies refuse the entries of writers, although ledgers can be made and recovered."""
    for bookie in cluster.bookies.values():
        bookie.refuse = lambda request: (
            Code.NO_ENTRY if isinstance(request, AddRequest) and not request.recovery else None
        )


async def until_error(writer: dlog.LogWriter) -> None:
    for _ in range(10_000):
        await writer.append(b"until it fails")
