"""Auto-recovery of two programs in virtual time, while bookies stop and start and sessions expire.

Whatever happens, every acknowledged entry stays readable, unchanged and in order, and once all is quiet each
ledger has all its replicas.
"""

from __future__ import annotations

import random
from contextlib import AsyncExitStack

import pytest
import trio
from trio.testing import MockClock

from ledger.errors import LedgerError
from ledger.metadata_store.memory import MemoryStore
from ledger.metadata_store.sessions.renewing_store import RenewingStore
from ledger.replication import AutoRecovery, ReplicationConfig
from ledger.write.handle import WriteHandle
from tests.effort import sampled
from tests.fakes.replication_world import ReplicationWorld, open_world, renewing, until

CONFIG = ReplicationConfig(retry_pause_s=1, open_ledger_grace_s=5, failed_ledger_pause_s=32, batch_entries=3)
BOOKIES = 6
RUNNING_MIN = 4
EVENTS = 25


class Play:
    """One run: writers, faults, and what was acknowledged."""

    def __init__(self, world: ReplicationWorld, stores: list[RenewingStore], rng: random.Random) -> None:
        self.world, self.stores, self.rng = world, stores, rng
        self.acknowledged: dict[int, list[bytes]] = {}
        self.stopped: set[str] = set()
        self.is_over = False

    async def write(self) -> None:
        """Write ledgers one after another; leave some of them open."""
        while not self.is_over:
            try:
                writer = await self.world.client.create(
                    ensemble_size=self.rng.choice([3, 4]), write_quorum=3, ack_quorum=2
                )
                await self.fill(writer)
                if self.rng.random() < 0.3:
                    writer.abandon()  # as a writer that dies
                else:
                    await writer.close()
            except LedgerError:
                await trio.sleep(1)

    async def fill(self, writer: WriteHandle) -> None:
        """Append until the writer fails, or a few entries are acknowledged."""
        entries = self.acknowledged.setdefault(writer.ledger_id, [])
        for number in range(self.rng.randrange(1, 30)):
            payload = b"%d of %d" % (number, writer.ledger_id)
            await writer.append(payload)
            entries.append(payload)
            await trio.sleep(self.rng.random())
            if self.is_over:
                return

    async def disturb(self) -> None:
        """One fault, or the end of one."""
        cluster, rng = self.world.cluster, self.rng
        running = sorted(set(cluster.bookies) - self.stopped)
        match rng.choice(["stop", "stop", "start", "start", "expire", "suspend", "switch"]):
            case "stop" if len(running) > RUNNING_MIN:
                name = rng.choice(running)
                self.stopped.add(name)
                await cluster.stop(name)
            case "start" if self.stopped:
                name = rng.choice(sorted(self.stopped))
                self.stopped.remove(name)
                await cluster.start(name)
            case "expire":
                self.session().expire()
            case "suspend":
                session = self.session()
                session.suspend()
                await trio.sleep(rng.random() * 5)
                session.resume()
            case "switch":
                await self.world.marks.switch(on=False)
                await trio.sleep(rng.random() * 10)
                await self.world.marks.switch(on=True)
        await trio.sleep(rng.expovariate(0.2))

    def session(self) -> MemoryStore:
        store = self.rng.choice(self.stores)
        session = store._session
        assert isinstance(session, MemoryStore)
        return session

    async def is_whole(self) -> bool:
        """True if no ledger is open or marked."""
        states = [(await self.world.client.metadata(one)).is_closed for one in self.acknowledged]
        return all(states) and not await self.world.marks.marked()

    async def check(self) -> None:
        """Each ledger begins with its acknowledged entries, and each replica is in its place."""
        for ledger_id, expected in self.acknowledged.items():
            metadata = await self.world.client.metadata(ledger_id)
            found = await self.world.payloads(ledger_id)
            assert found[: len(expected)] == expected
            assert len(found) == metadata.last_entry_id + 1
            self.world.check_replicas(ledger_id, metadata, metadata.last_entry_id)


@pytest.mark.slow
@pytest.mark.parametrize("seed", sampled(range(8), 1))
async def test_nothing_acknowledged_is_lost_and_all_replicas_return(
    seed: int, autojump_clock: MockClock
) -> None:
    rng = random.Random(seed)
    async with open_world(BOOKIES, seed=seed) as world, AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(renewing(world.cluster.tree)) for _ in range(2)]
        programs = [
            AutoRecovery(world.client.context, store, f"program:{number}", CONFIG)
            for number, store in enumerate(stores)
        ]
        play = Play(world, stores, rng)
        async with trio.open_nursery() as nursery:
            for program in programs:
                nursery.start_soon(program.run)
            async with trio.open_nursery() as writing:
                for _ in range(2):
                    writing.start_soon(play.write)
                for _ in range(EVENTS):
                    await play.disturb()
                play.is_over = True
            for name in sorted(play.stopped):
                await world.cluster.start(name)
            for ledger_id in play.acknowledged:  # as their next readers would
                await world.client.recover(ledger_id)
                await world.marks.mark(ledger_id, [])
            await until(play.is_whole)
            nursery.cancel_scope.cancel()
        assert play.acknowledged
        await play.check()
