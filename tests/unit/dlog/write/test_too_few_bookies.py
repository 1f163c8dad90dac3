"""A cluster that is too small for the quorums: told within the connect timeout, with the numbers."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
import trio.testing

import dlog
from dlog.config import WriterConfig
from dlog.errors import TooFewBookiesError
from dlog.write.writer_shell import WriterShell
from ledger.causes import cause_of
from ledger.codes import Code
from ledger.errors import LedgerWriteError, NotEnoughBookiesError
from ledger.runtime.tasks.timers import Timers
from ledger.wire.messages import AddRequest
from tests.fakes.dict_bookies import open_cluster
from tests.fakes.dict_namespace import CONFIG, open_on
from tests.unit.dlog.test_expired_sessions import program
from tests.unit.dlog.write.test_writer_shell import Lock, ScriptedLedger, ScriptedSegments, submitted

FOUR = attrs.evolve(CONFIG, ensemble_size=4, write_quorum=4, ack_quorum=4, connect_timeout_s=10)


async def test_a_cluster_that_is_too_small_is_told_within_the_connect_timeout(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with (
        open_cluster(2) as cluster,
        open_on(cluster, config=FOUR) as opened,
        opened.namespace.open_writer("log", create=True) as writer,
    ):
        began_s = trio.current_time()
        with pytest.raises(dlog.LogWriteError) as caught:
            await writer.append(b"one")
        assert trio.current_time() - began_s <= FOUR.connect_timeout_s < FOUR.writer.retry_timeout_s
        with pytest.raises(dlog.LogWriteError):
            await writer.append(b"two")
        await writer.reopen()
        began_s = trio.current_time()
        with pytest.raises(dlog.LogWriteError, match="4 bookies wanted, 2 writable"):
            await writer.append(b"three")
        assert trio.current_time() - began_s <= FOUR.connect_timeout_s
    assert "4 bookies wanted, 2 writable (b1:1, b2:1)" in str(caught.value)
    assert caught.value.outcome is dlog.RecordOutcome.NOT_WRITTEN
    cause = cause_of(caught.value)
    while not isinstance(cause, TooFewBookiesError):
        assert cause is not None
        cause = cause_of(cause)
    assert (cause.wanted, cause.bookies, cause.readonly) == (4, ("b1:1", "b2:1"), ())


async def test_bookies_that_register_within_the_connect_timeout_are_used(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with (
        open_cluster(2) as cluster,
        open_on(cluster, config=FOUR) as opened,
        opened.namespace.open_writer("log", create=True) as writer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(writer.append, b"one")
        await trio.sleep(3)
        for name in ("b3:1", "b4:1"):
            await cluster.start(name)


async def test_a_writer_that_has_written_waits_for_its_bookies_as_long_as_for_all_else(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A restart of bookies may take longer than the connect timeout. It ends no writer."""

    class Shrinking(ScriptedSegments):
        async def allocate(self) -> ScriptedLedger:
            if self.ledgers and trio.current_time() < began_s + 30:
                raise TooFewBookiesError("too few", 3, (), ())
            self.may_roll.set()
            return await super().allocate()

    began_s = trio.current_time()
    segments: Any = Shrinking()
    segments.may_recover.set()
    lock: Any = Lock()
    config = WriterConfig(retry_timeout_s=60)
    shell = WriterShell("log", segments, lock, config, last_txid=-1, timers=Timers(), bookies_timeout_s=10)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shell.run)
        batch = submitted(shell, b"one")
        await trio.testing.wait_all_tasks_blocked()
        segments.ledgers[0].fail(LedgerWriteError(0, "its bookies are gone"))
        while len(segments.ledgers) < 2:
            assert shell.machine.stopped is None
            await trio.sleep(1)
        await trio.testing.wait_all_tasks_blocked()
        segments.ledgers[1].confirm(0)
        assert batch.outcome is dlog.RecordOutcome.DURABLE
        nursery.cancel_scope.cancel()


async def test_a_reopened_writer_waits_for_the_bookies_that_it_had_as_long(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_cluster(3) as cluster, program(cluster, "one") as one:
        await one.store.create("/ns")
        async with one.namespace.open_writer("log", create=True) as writer:
            await writer.append(b"one")
            await one.lose_session()
            await writer.reopen()
            for name in ("b2:1", "b3:1"):  # one is less than the ack quorum
                await cluster.stop(name)
            await trio.sleep(10)  # the client reads the list of bookies again
            async with trio.open_nursery() as nursery:
                nursery.start_soon(writer.append, b"two")
                await trio.sleep(30)
                await cluster.start("b3:1")


@pytest.mark.slow
async def test_a_writer_whose_segments_take_no_entry_fails_after_the_retry_timeout_and_opens_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Each ledger is begun and recovered without an error, so no step fails for so long."""
    config = attrs.evolve(CONFIG, writer=WriterConfig(retry_timeout_s=30))
    async with open_cluster(3) as cluster, open_on(cluster, config=config) as opened:
        async with opened.namespace.open_writer("log", create=True) as writer:
            await writer.append(b"one")
            for bookie in cluster.bookies.values():
                bookie.refuse = lambda request: (
                    Code.NO_ENTRY if isinstance(request, AddRequest) and not request.recovery else None
                )
            began_s = trio.current_time()
            with pytest.raises(dlog.LogWriteError, match="no segment took a record for 30 s: ") as caught:
                await writer.append(b"two")
            assert 30 <= trio.current_time() - began_s < 120
            assert caught.value.outcome is dlog.RecordOutcome.NOT_WRITTEN
            for bookie in cluster.bookies.values():
                bookie.refuse = lambda _request: None
            await writer.reopen()
            await writer.append(b"three")
        async with opened.namespace.open_reader("log", follow=False) as reader:
            assert [record.payload async for record in reader] == [b"one", b"three"]


def test_the_error_names_some_of_many_bookies_and_the_read_only_ones() -> None:
    bookies = [f"b{number:02}:1" for number in range(20)]
    message = str(NotEnoughBookiesError(30, 20, bookies, ["r1:1"]))
    assert "30 bookies wanted, 20 writable (b00:1, " in message
    assert "b15:1 and 4 more), 1 read-only (r1:1); start more bookies" in message
