"""Auto-recovery in a world: processes of its own, or beside each bookie in its process.

Inside: ``HealerSession``, the session of such a process, which reports the steps of its worker; running
``AutoRecovery`` with it. Not inside: what faults do at a step (``injector``), the rules (``rules``).
Always: the program is the product's (``AutoRecovery``, ``keep_running``), with its own session and client.

The steps of a worker: "locked" (it has just taken a ledger), "copied" (it is about to change the metadata),
"changed" (the store has changed them), "unmarked" (the store has deleted the mark; the lock is still there),
"unlocking" (it is about to delete the lock).
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from bookie.cluster.autorecovery import keep_running
from ledger.catalog.paths import UNDERREPLICATION_LEDGERS, UNDERREPLICATION_LOCKS
from ledger.client import LedgerClient, open_ledger_client
from ledger.context import ClientSeams
from ledger.metadata_store.errors import StoreUnreachableError
from ledger.metadata_store.sessions.renewing_store import RenewingStore
from ledger.metadata_store.store import ANY_VERSION, Check, MetadataStore, Operation
from ledger.replication import AutoRecovery
from ledger.runtime.tasks.background import open_background
from tests.simulation.bookies import ROOT, BookieMachine
from tests.simulation.clients import ClientProcess, client_config
from tests.simulation.metadata import SimStore, T
from tests.simulation.network import Node

if TYPE_CHECKING:
    from tests.simulation.healing.world import HealWorld

MARKS, LOCKS = f"{ROOT}/{UNDERREPLICATION_LEDGERS}/", f"{ROOT}/{UNDERREPLICATION_LOCKS}/"


class HealerSession(SimStore):
    """A session of auto-recovery: the world knows of each write who makes it."""

    world: HealWorld

    async def create(
        self,
        path: str,
        value: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        parents: bool = False,
    ) -> str:
        return await self._step(
            path,
            lambda: self.inner.create(
                path, value, ephemeral=ephemeral, sequential=sequential, parents=parents
            ),
            "locked" if path.startswith(LOCKS) else "",
        )

    async def put(self, path: str, value: bytes, *, expected: int = ANY_VERSION) -> object:  # type: ignore[override]
        return await self._step(path, lambda: self.inner.put(path, value, expected))

    async def delete(self, path: str, *, expected: int = ANY_VERSION) -> None:
        is_mark = path.startswith(MARKS) and "/urL" in path
        if path.startswith(LOCKS):
            self.world.reached(self._process.name, "unlocking")
        await self._step(path, lambda: self.inner.delete(path, expected), "unmarked" if is_mark else "")

    async def commit(self, operations: Sequence[Operation]) -> None:
        is_change = any(isinstance(each, Check) and each.path.startswith(LOCKS) for each in operations)
        if is_change:
            self.world.reached(self._process.name, "copied")
        await self._step(
            operations[0].path, lambda: self.inner.commit(operations), "changed" if is_change else ""
        )

    async def _step(self, path: str, apply: Callable[[], T], step: str = "") -> T:
        world = self.world

        def carry_out() -> T:
            world.acting = self
            try:
                result = apply()
            finally:
                world.acting = None
            if step:
                world.timeline.after(0, world.reached, self._process.name, step)
            return result

        return await self._ask(path, carry_out, write=True)


def new_session(world: HealWorld, node: Node) -> HealerSession:
    """A session of the auto-recovery in the process of this node."""
    session = world.new_session(node, HealerSession)
    assert isinstance(session, HealerSession)
    session.world = world
    return session


@asynccontextmanager
async def open_store(world: HealWorld, node: Node) -> AsyncIterator[MetadataStore]:
    """A store that outlives its sessions, as the commands and the bookies open it."""
    sessions = [new_session(world, node)]

    @asynccontextmanager
    async def open_session() -> AsyncIterator[MetadataStore]:
        await trio.lowlevel.checkpoint()
        if not node.is_up:
            raise StoreUnreachableError("this process is dead")
        sessions.append(session := new_session(world, node))
        world.counts["session of auto-recovery renewed"] += 1
        yield session

    try:
        async with open_background() as tasks:
            store = RenewingStore(sessions[0], open_session)
            tasks.start_soon(store.keep)
            yield store
    finally:
        for session in sessions:
            session.abandon()


class HealerProcess(ClientProcess):
    """``dlog autorecovery``: a process of its own, which a supervisor starts again."""

    world: HealWorld

    def __init__(self, world: HealWorld, name: str, rng: random.Random) -> None:
        super().__init__(world, name, rng)
        self.program: AutoRecovery | None = None

    def is_over(self) -> bool:
        return False  # a repair goes on after the clients have ended

    @asynccontextmanager
    async def open_store(self, node: Node) -> AsyncIterator[MetadataStore]:
        async with open_store(self.world, node) as store:
            yield store

    async def behave(self, client: LedgerClient, store: MetadataStore) -> None:
        world = self.world
        self.program = AutoRecovery(
            client.context,
            store,
            self.name,
            world.shape.replication_config(),
            self.name,
            wall_ms=lambda: world.wall_ms() + self.wall_offset_ms,
        )
        try:
            await self.program.run()
        finally:
            self.program = None


async def heal_beside(
    world: HealWorld, machine: BookieMachine, node: Node, note: Callable[[AutoRecovery], None]
) -> None:
    """Auto-recovery in the process of a bookie, until cancelled; ``note`` gets each program."""
    rng = random.Random(f"healing {machine.name} {machine.lives} {world.shape.seed}")

    async def run_once() -> None:
        async with (
            open_store(world, node) as store,
            open_ledger_client(
                store,
                lambda address: world.network.dial(node, address),
                client_config(2),
                root=ROOT,
                seams=ClientSeams(rng=rng, wall_ms=machine.wall_ms),
            ) as client,
        ):
            config = world.shape.replication_config()
            program = AutoRecovery(
                client.context, store, machine.name, config, machine.name, wall_ms=machine.wall_ms
            )
            note(program)
            await program.run()

    await keep_running(run_once)
