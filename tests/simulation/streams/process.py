"""A process that uses a namespace: opening it, judging the errors of its calls.

Inside: ``StreamProcess``. Not inside: what it does (``writers``, ``readers``, ``operators``).
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from dlog.context import FixedLocation, LogLocation, NamespaceContext
from dlog.errors import CorruptLogError, DLogError, LogMetadataError
from dlog.forwarding.shared_shell import Meeting
from dlog.namespace_handle import Namespace
from dlog.promotion.location import promotable
from dlog.testing.history import LogHistory
from ledger.client import LedgerClient
from ledger.ledger_spec import LedgerSpec
from ledger.metadata_store.errors import StoreUnreachableError
from ledger.metadata_store.sessions.renewing_store import RenewingStore
from ledger.metadata_store.store import MetadataStore, SessionState
from ledger.runtime.tasks.background import open_background
from ledger.write.handle import WriteHandle
from namespace.log_nodes import LogNodes
from tests.simulation.clients import ClientProcess, OperationEndedError
from tests.simulation.history import Submitted
from tests.simulation.network import Node
from tests.simulation.streams.sharing import SimulatedMeeting

if TYPE_CHECKING:
    from tests.simulation.streams.world import StreamWorld

STREAMS, TARGET_URI = "/streams", "distributedlog://simulation/streams"
SOURCE, SOURCE_URI = "/directory", "file:///simulation"  # where logs are before they are promoted


class StreamProcess(ClientProcess):
    """A program that uses a log; it is killed and started again."""

    announced: tuple[type[Exception], ...] = (DLogError,)  # the public API raises no other

    world: StreamWorld

    def __init__(self, world: StreamWorld, name: str, rng: random.Random, log: str) -> None:
        super().__init__(world, name, rng)
        self.log = log

    @property
    def life(self) -> LogHistory:
        """The present life of the log."""
        return self.world.life(self.log)

    @asynccontextmanager
    async def open_store(self, node: Node) -> AsyncIterator[MetadataStore]:
        """With ``reopens``: a store that outlives its sessions, as that of ``open_namespace``."""
        world = self.world
        async with super().open_store(node) as first:
            if not world.shape.reopens:
                yield first
                return

            @asynccontextmanager
            async def open_session() -> AsyncIterator[MetadataStore]:
                await trio.lowlevel.checkpoint()
                if not node.is_up:
                    raise StoreUnreachableError("this process is dead")
                self.store = session = world.new_session(node)
                world.counts["session renewed"] += 1
                try:
                    yield session
                finally:
                    session.abandon()

            async with open_background() as tasks:
                store = RenewingStore(first, open_session)
                tasks.start_soon(store.keep)
                yield store

    async def behave(self, client: LedgerClient, store: MetadataStore) -> None:
        world = self.world
        watch_ledgers(world, self.name, client)
        namespace = namespace_of(
            world,
            store,
            client,
            client_id=f"{self.name}/{self.lives}",
            wall_ms=lambda: world.wall_ms() + self.wall_offset_ms,
            meet=self.meet(),
        )
        while not self.is_done() and store.state is not SessionState.EXPIRED:
            try:
                await self.work(namespace)
            except OperationEndedError:
                pass

    def meet(self) -> Callable[[LogNodes], Meeting] | None:
        """Where it meets the programs that share a writer with it; None: nowhere."""
        world = self.world
        if not world.shape.shares:
            return None
        return partial(SimulatedMeeting, world.network, world.network.nodes[self.name], self.rng)

    def is_done(self) -> bool:
        """True if the process has nothing to do any more."""
        return self.world.is_ending

    async def work(self, namespace: Namespace) -> None:
        """One round of the process; called again and again."""
        raise AssertionError("a subclass defines this")

    def failed(self, what: str, problem: Exception) -> None:
        has_been_deleted = self.world.life_number(self.log) > 1 or self.life.is_deleted
        requests = self.world.requests_of(self.life)
        if isinstance(problem, CorruptLogError):
            self.world.violate("no_client_finds_a_corrupt_log", f"{self.name}: {what}: {problem}")
        elif isinstance(problem, LogMetadataError) and not (has_been_deleted or requests.deletes):
            self.world.violate("no_client_finds_wrong_metadata", f"{self.name}: {what}: {problem}")


def namespace_of(
    world: StreamWorld,
    store: MetadataStore,
    client: LedgerClient,
    *,
    client_id: str,
    wall_ms: Callable[[], int],
    meet: Callable[[LogNodes], Meeting] | None = None,
) -> Namespace:
    """The namespace of a process; with ``promotes`` the one whose logs are promoted to it."""

    def opened(
        uri: str, path: str, locate: Callable[[NamespaceContext, str], LogLocation]
    ) -> NamespaceContext:
        return NamespaceContext(
            uri,
            store,
            client,
            path,
            world.stream_config,
            client_id=client_id,
            wall_ms=wall_ms,
            locate=locate,
            meet=meet,
        )

    target = opened(TARGET_URI, STREAMS, FixedLocation)
    if not world.shape.promotes:
        return Namespace(target)

    async def open_context(uri: str) -> NamespaceContext:
        assert uri == TARGET_URI
        return target

    return Namespace(opened(SOURCE_URI, SOURCE, promotable(open_context)))


def watch_ledgers(world: StreamWorld, name: str, client: LedgerClient) -> None:
    """Record the entries of every ledger that this client creates, for the rules of ledgers."""
    create = client.create_from

    async def watched(spec: LedgerSpec, **arguments: Any) -> WriteHandle:
        handle = await create(spec, **arguments)
        submit = handle.submit

        def noted(payload: bytes, *, hold: bool = False) -> int:
            entry_id = submit(payload, hold=hold)
            world.observe(Submitted(world.now(), name, (handle.ledger_id, entry_id), payload))
            return entry_id

        patched: Any = handle
        patched.submit = noted
        world.watch_writer(name, handle)
        return handle

    patched: Any = client
    patched.create_from = watched
