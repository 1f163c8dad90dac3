"""A write-ahead log whose writer is reopened: the operations in flight, and those of others in between."""

# covers: dlog/wal/write_ahead_log.py

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import dlog
from dlog.wal import ForeignOperationError, WalStoppedError, open_wal
from dlog.wal.applied_state import operations_log
from dlog.write.pending import Pending
from tests.fakes.dict_bookies import open_cluster
from tests.fakes.dict_namespace import open_on
from tests.unit.dlog.test_expired_sessions import two_programs
from tests.unit.dlog.write.test_reopening import QUICK

pytestmark = pytest.mark.slow
OPERATIONS = 20


async def replayed(namespace: dlog.Namespace) -> list[bytes]:
    lines: list[bytes] = []
    async with open_wal(namespace, apply=lines.append):
        return lines


async def test_each_operation_in_flight_is_applied_or_never_in_the_log(autojump_clock: MockClock) -> None:
    lines: list[bytes] = []
    applied, lost = [], []

    def apply(operation: bytes) -> bytes:
        lines.append(operation)
        return operation

    async with two_programs() as (one, two):
        async with open_wal(one.namespace, apply=apply, reopen=True) as wal:

            async def append(operation: bytes) -> None:
                try:
                    assert await wal.append(operation) == operation
                    applied.append(operation)
                except dlog.WriteError as exc:
                    lost.append((operation, exc.outcome))

            for turn in range(3):
                async with trio.open_nursery() as nursery:
                    for number in range(OPERATIONS):
                        nursery.start_soon(append, b"%d/%d" % (turn, number))
                    await trio.lowlevel.checkpoint()  # some are on their way
                    await trio.lowlevel.checkpoint()
                    one.sessions.failures = 5
                    one.sessions.expire()
                    await wait_all_tasks_blocked()
                    assert wal.state is dlog.WriterState.REOPENING
                    nursery.start_soon(append, b"%d/meanwhile" % turn)
                assert b"%d/meanwhile" % turn in applied, "it waits for the reopening"
                assert wal.health().state is dlog.WriterState.OPEN
                assert wal.failure is None
            assert wal.index == len(lines)
        assert sorted(lines) == sorted(applied)
        assert {outcome for _, outcome in lost} <= {dlog.RecordOutcome.NOT_WRITTEN}
        assert len(applied) + len(lost) == 3 * (OPERATIONS + 1)
        assert await replayed(two.namespace) == lines


async def test_operations_of_another_service_in_between_stop_it(autojump_clock: MockClock) -> None:
    lines: list[bytes] = []
    async with two_programs() as (one, two):
        async with open_wal(one.namespace, apply=lines.append, reopen=True) as wal:
            await wal.append(b"one")
            one.sessions.failures = 20
            one.sessions.expire()
            await wait_all_tasks_blocked()
            others: list[bytes] = []
            async with open_wal(two.namespace, apply=others.append) as other:
                await other.append(b"two")
            with pytest.raises(ForeignOperationError, match=r"operation 2 at 2:0:0 is not of this service"):
                await wal.append(b"two")  # the same bytes at the same index are not the same operation
            assert wal.state is dlog.WriterState.FAILED
            with pytest.raises(WalStoppedError, match="open it again to replay the log"):
                await wal.append(b"three")
        assert (lines, others) == ([b"one"], [b"one", b"two"])
        assert await replayed(two.namespace) == others


async def test_a_reopening_that_ends_for_good_stops_it_with_the_reason(autojump_clock: MockClock) -> None:
    async with two_programs() as (one, two):
        with pytest.raises(dlog.LogFencedError):  # noqa: PT012  of closing
            async with open_wal(one.namespace, apply=len, reopen=True) as wal:
                await wal.append(b"one")
                one.sessions.failures = 10
                one.sessions.expire()
                await wait_all_tasks_blocked()
                async with two.namespace.open_writer(operations_log("wal")):
                    with pytest.raises(dlog.LogFencedError):
                        await wal.append(b"two")
                    assert isinstance(wal.failure, dlog.LogFencedError)
                    with pytest.raises(WalStoppedError):
                        await wal.append(b"three")
                    raise wal.failure
        assert await replayed(two.namespace) == [b"one"]


@pytest.mark.parametrize("is_ours", [True, False], ids=["ours", "another's"])
async def test_an_operation_of_an_unknown_outcome_is_applied_from_where_it_was_sent(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, *, is_ours: bool
) -> None:
    lines: list[bytes] = []
    unknown, outcomes = [], []

    async with open_cluster(3) as cluster, open_on(cluster, config=QUICK) as opened:
        async with open_wal(opened.namespace, apply=lines.append, reopen=True) as wal:

            async def append(operation: bytes) -> None:
                try:
                    await wal.append(operation)
                except dlog.WriteError as exc:
                    outcomes.append((operation, exc.outcome))

            await wal.append(b"one")
            for name in ("b1:1", "b2:1"):
                await cluster.stop(name)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(append, b"two")
                await trio.sleep(60)
                assert wal.state is dlog.WriterState.REOPENING
                unknown = [each.pending.outcome for each in wal._queue]
                if not is_ours:  # what is at its index is at another place
                    monkeypatch.setattr(Pending, "sent_to", None)
                for name in ("b1:1", "b2:1"):
                    cluster.revive(name)
                    await cluster.start(name)
            assert unknown == [dlog.RecordOutcome.UNKNOWN]
            if is_ours:
                await wal.append(b"three")
            else:
                assert isinstance(wal.failure, ForeignOperationError)
        replay = await replayed(opened.namespace)
    assert b"two" in replay, "a bookie that lives has it, so the recovery writes it again"
    assert replay == ([b"one", b"two", b"three"] if is_ours else [b"one", b"two"])
    assert lines == (replay if is_ours else [b"one"])
    assert outcomes == ([] if is_ours else [(b"two", dlog.RecordOutcome.UNKNOWN)])
