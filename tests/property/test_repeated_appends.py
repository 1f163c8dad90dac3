"""Appends that are repeated until they succeed, over failing ledgers, lost replies and changing writers."""

from __future__ import annotations

import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

import dlog
from tests.effort import examples
from tests.fakes.failing_ledgers import LOCK, FlakyStore, World, namespace_in
from tests.property.test_dlog_writer import UNSHRUNK, rates, small_parts
from tests.strategies import SEEDS

RECORDS = 12


class Producer:
    """A program that appends records with the transaction ids 0, 1, ... and repeats each until it is done."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.found: dict[int, dlog.DLSN] = {}  # the first position that a call returned, by txid
        self.writers = 0

    async def run(self, rate: float, lost_rate: float) -> None:
        while len(self.found) < RECORDS:
            self.writers += 1
            calm = self.writers > 30  # in the end nothing fails
            self.world.failure_rate, self.world.lost_reply_rate = (0, 0) if calm else (rate, lost_rate)
            store, namespace = namespace_in(self.world, f"writer-{self.writers}")
            try:
                async with namespace.open_writer("log") as writer:
                    await self.append(store, writer)
            except (dlog.WriteError, dlog.LogUnavailableError, dlog.LogLockedError):
                pass  # the outcome may be unknown; the next writer repeats the append
            finally:
                store.expire()

    async def append(self, store: FlakyStore, writer: dlog.LogWriter) -> None:
        """Append until something fails, or another writer is to take over."""
        rng = self.world.rng
        # It may not know the last results: it begins with records that may be in the log already.
        txid = max(0, len(self.found) - rng.randint(0, 3))
        while txid < RECORDS:
            await self.append_once(writer, txid)
            if rng.random() < 0.2:
                await self.append_once(writer, txid)
            if rng.random() < 0.1:
                pending = self.append_once(writer, min(txid + 1, RECORDS - 1))
                with trio.move_on_after(rng.random() * 0.02):
                    await pending
            if rng.random() < 0.1:
                store.expire()
            txid += 1

    async def append_once(self, writer: dlog.LogWriter, txid: int) -> None:
        payload = b"%d" % txid * (1, 40)[txid % 2]
        dlsn = await writer.append_once(payload, txid=txid)
        assert self.found.setdefault(txid, dlsn) == dlsn, f"txid {txid} was stored again at {dlsn}"


async def produce(seed: int, failure_rate: float, lost_reply_rate: float) -> None:
    world = World(seed, failure_rate, lost_reply_rate)
    with small_parts(), trio.fail_after(3600):  # virtual seconds
        async with trio.open_nursery() as nursery:
            world.begin(nursery)
            world.calm()
            setup, namespace = namespace_in(world, "setup")
            await setup.create("/ns")
            await namespace.create_log("log")
            producer = Producer(world)
            await producer.run(failure_rate, lost_reply_rate)
            world.calm()
            async with namespace.open_writer("log"):
                pass  # it recovers what the last writer left
            async with namespace.open_reader("log", follow=False) as reader:
                records = [(record.txid, record.dlsn) async for record in reader]
            assert records == sorted(producer.found.items())
            assert not (await setup.children(LOCK)).names
            nursery.cancel_scope.cancel()


@settings(max_examples=examples(60), phases=UNSHRUNK)
@given(seed=SEEDS, failure_rate=rates, lost_reply_rate=rates, schedule=st.random_module())
def test_a_repeated_append_is_stored_once_at_the_position_that_the_first_call_returned(
    seed: int, failure_rate: float, lost_reply_rate: float, schedule: object
) -> None:
    clock = trio.testing.MockClock(autojump_threshold=0)
    trio.run(produce, seed, failure_rate, lost_reply_rate, clock=clock)
