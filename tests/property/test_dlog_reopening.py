"""Two writers whose sessions expire again and again and that reopen in place, beside a follower."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import dlog
from dlog.context import NamespaceContext
from dlog.namespace_handle import Namespace
from ledger.metadata_store.sessions.renewing_store import RenewingStore
from ledger.metadata_store.store import MetadataStore
from tests.effort import examples
from tests.fakes.failing_ledgers import FlakyStore, World, namespace_in
from tests.property.test_dlog_writer import KnownOutcome, appender, check

ROUNDS = 3


class ReopeningWorld(World):
    reopened = 0  # writers, so often


class Program:
    """A namespace that outlives its sessions."""

    def __init__(self, world: ReopeningWorld, name: str) -> None:
        self.world = world
        self.session: FlakyStore
        _, template = namespace_in(world, name)
        self.store = RenewingStore(self._new_session(), self._open_session)
        client: Any = world
        self.namespace = Namespace(
            NamespaceContext(
                f"test:{name}",
                self.store,
                client,
                "/ns",
                template.config,
                client_id=name,
                wall_ms=world.wall_ms,
            )
        )

    def _new_session(self) -> FlakyStore:
        self.session = FlakyStore(self.world.tree)
        self.session.world = self.world
        return self.session

    @asynccontextmanager
    async def _open_session(self) -> AsyncIterator[MetadataStore]:
        await trio.sleep(self.world.rng.random() * 0.5)
        yield self._new_session()

    async def lose_sessions(self) -> None:
        """Let sessions expire, or fall silent for a while, until cancelled."""
        rng = self.world.rng
        while True:
            await trio.sleep(rng.random() * 0.4)
            if rng.random() < 0.6:
                self.session.expire()
            else:
                session = self.session
                session.suspend()
                try:
                    await trio.sleep(rng.random() * 0.2)
                finally:
                    session.resume()


async def write(program: Program, name: str, outcomes: list[KnownOutcome], looking: Namespace) -> None:
    """Write with several tasks; reopen the writer whenever it has stopped."""
    async with program.namespace.open_writer("log", lock_timeout_s=60) as writer:
        for number in range(ROUNDS):
            async with trio.open_nursery() as appenders:
                for index in range(3):
                    appenders.start_soon(
                        appender, program.world, writer, f"{name}{number}.{index}", outcomes, looking
                    )
            while "stopped" in repr(writer):
                try:
                    await writer.reopen()
                    program.world.reopened += 1
                except (dlog.LogLockedError, dlog.LogUnavailableError, dlog.WriteError):
                    await trio.sleep(0.05)


async def run_world(seed: int) -> int:
    """Write, lose sessions, reopen; check the log. Return how often a writer was reopened."""
    world, outcomes = ReopeningWorld(seed, 0.05, 0.05), list[KnownOutcome]()
    live: list[dlog.Record] = []
    with trio.fail_after(2000):
        async with trio.open_nursery() as nursery:
            world.begin(nursery)
            programs = [Program(world, name) for name in ("one", "two", "reader")]
            rates = world.failure_rate, world.lost_reply_rate
            world.calm()
            await programs[0].store.create("/ns")
            await programs[0].namespace.create_log("log")
            for program in programs:
                nursery.start_soon(program.store.keep)
            reader = programs[2].namespace

            async def follow() -> None:
                async with reader.open_reader("log") as following:
                    async for record in following:
                        live.append(record)

            nursery.start_soon(follow)
            world.failure_rate, world.lost_reply_rate = rates
            async with trio.open_nursery() as disturbing:
                for program in programs:
                    disturbing.start_soon(program.lose_sessions)
                async with trio.open_nursery() as writers:
                    for program, name in zip(programs, "ab", strict=False):

                        async def run(program: Program = program, name: str = name) -> None:
                            try:
                                await write(program, name, outcomes, reader)
                            except (dlog.WriteError, dlog.LogUnavailableError):
                                pass  # of closing; each record has its outcome

                        writers.start_soon(run)
                disturbing.cancel_scope.cancel()
            world.calm()
            async with programs[0].namespace.open_writer("log") as writer:
                await writer.append(b"last")
            async with reader.open_reader("log", follow=False) as ended:
                log = [record async for record in ended]
            while len(live) < len(log):  # noqa: ASYNC110
                await trio.sleep(0.1)
            nursery.cancel_scope.cancel()
    check(log, live, outcomes)
    return world.reopened


@pytest.mark.slow
async def test_reopened_writers_lose_repeat_and_reorder_nothing(autojump_clock: MockClock) -> None:
    seeds = range(examples(15))
    assert sum([await run_world(seed) for seed in seeds]) > len(seeds)
