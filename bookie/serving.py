"""What clients and operators see of a bookie of a cluster: its port, its announcement, its HTTP server.

Inside: the order in which they begin and end. Not inside: the parts themselves, the storage (``main``).
Always: clients cannot see or reach a bookie before it can serve. On a stop the registration goes first, then
the port, then the last replies go out.

Source: EmbeddedServer.java; docs/metadata.md 7.1.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

import trio

from bookie.bookie import DRAIN_S
from bookie.cluster.autorecovery import run_auto_recovery
from bookie.cluster.registration import Registration
from bookie.disk.reserve import FLUSH_RESERVE, RESERVE, START_RESERVE, START_RESERVE_BYTES, Reserve
from bookie.disk_watch import DiskWatch, DiskWatchConfig, WatchedDisks
from bookie.http import Admin, serve_admin
from bookie.listening import listen
from bookie.membership import BookieSetup, Membership
from bookie.server.server import Server
from bookie.storage.config import CURRENT
from bookie.upkeep import Upkeep
from ledger.replication import AutoRecoveryStats
from ledger.runtime.clock import wall_ms
from ledger.runtime.log_lines import get_logger
from ledger.runtime.readiness import READY, STOPPING, notify

WITHDRAW_S = 2.0

log = get_logger(__name__)


class PublicSide:
    """The servers of one bookie for clients and operators. Call ``run`` once."""

    def __init__(self, server: Server, member: Membership, upkeep: Upkeep, setup: BookieSetup) -> None:
        config = setup.config
        self._server, self._member, self._setup, self._config = server, member, setup, config
        self._service = server.service
        self._watch = _disk_watch(server, member, upkeep, setup)
        self._admin = Admin(
            member.identity.bookie_id,
            self._service,
            upkeep.garbage,
            self._watch,
            wall_ms,
            disk=setup.disk,
            config=config,
            server=server,
            cluster=member.cluster,
            cookie=member.cookie,
            auto_recovery=None if config.auto_recovery is None else AutoRecoveryStats(),
            healing=upkeep.healing.stats,
            integrity=upkeep.integrity.stats,
        )

    async def run(
        self, sockets: Sequence[trio.socket.SocketType], note_started: Callable[[int], None]
    ) -> None:
        """Serve at the bound sockets until the bookie has to stop, then until the last replies are sent.

        Raises:
            ListenError, DirectoryError, RegistrationError: It cannot serve, or not any longer.
            SpaceAgainError: The storage must be opened again to take adds.
        """
        await self._watch.load()
        await self._watch.check()
        for bound in sockets:
            listen(bound, keepalive=self._config.server.tcp_keepalive)
        async with trio.open_nursery() as connections:
            await self._serve_operators(connections)
            async with self._accepting(sockets, connections):
                # False: a stop was asked for while this waited for the end of an earlier process's session.
                if await _announce(
                    self._member.registration, self._setup.stop, read_only=not self._service.rights.writable
                ):
                    self._ready(sockets[0].getsockname()[1], note_started)
                    await self._run_announced()
            await self._server.drain(timeout_s=DRAIN_S)
            connections.cancel_scope.cancel()

    async def _serve_operators(self, nursery: trio.Nursery) -> None:
        config = self._config.admin
        if config is not None:
            serve = partial(
                serve_admin, self._admin, config, self._setup.secrets, open_routes=self._setup.open_routes
            )
            log.info("the HTTP server for operators listens at %s", await nursery.start(serve))

    @asynccontextmanager
    async def _accepting(
        self, sockets: Sequence[trio.socket.SocketType], connections: trio.Nursery
    ) -> AsyncIterator[None]:
        """Clients may connect in the block. When it is left, the announcement ends before the port does."""
        listeners = [trio.SocketListener(bound) for bound in sockets]
        scope = trio.CancelScope()

        async def accept(*, task_status: trio.TaskStatus[list[trio.abc.Listener[trio.abc.Stream]]]) -> None:
            with scope:
                await self._server.serve(listeners, connections=connections, task_status=task_status)

        await connections.start(accept)
        try:
            yield
        finally:
            self._admin.is_stopping = True
            notify(STOPPING)
            # First clients stop choosing this bookie, then none connects.
            with trio.move_on_after(WITHDRAW_S, shield=True):
                await self._member.registration.withdraw()
            scope.cancel()
            for listener in listeners:
                listener.socket.close()

    def _ready(self, port: int, note_started: Callable[[int], None]) -> None:
        identity = self._member.identity
        log.info(
            "bookie %s is ready, %s, at %s port %d",
            identity.bookie_id,
            "writable" if self._service.rights.writable else "read-only",
            identity.listen_host or "all addresses",
            port,
        )
        self._admin.is_ready = True
        notify(READY)
        note_started(port)

    async def _run_announced(self) -> None:
        """Keep the announcement true until the bookie has to stop."""
        member, config = self._member, self._config.auto_recovery
        async with trio.open_nursery() as nursery:
            nursery.start_soon(member.registration.keep, self._setup.open_store)
            nursery.start_soon(self._watch.run)
            if config is not None:
                stats = self._admin.auto_recovery
                nursery.start_soon(
                    run_auto_recovery, member.cluster, member.identity.bookie_id, config, stats
                )
            await self._setup.stop.wait()
            nursery.cancel_scope.cancel()


def _disk_watch(server: Server, member: Membership, upkeep: Upkeep, setup: BookieSetup) -> DiskWatch:
    config, storage = setup.config, server.service.storage
    directories = config.storage.ledger_directories

    def reserves(size_bytes: int, name: str) -> list[Reserve]:
        return [Reserve(setup.disk, path / CURRENT, size_bytes, name=name) for path in directories]

    return DiskWatch(
        server.service.rights,
        member.registration,
        WatchedDisks(
            setup.disk,
            directories,
            config.storage.journal_directories,
            reserves=[
                *reserves(min(START_RESERVE_BYTES, config.fullness.reserve_bytes), START_RESERVE),
                *reserves(config.fullness.reserve_bytes, FLUSH_RESERVE),
            ],
            other_reserves=reserves(config.storage.compaction.reserve_bytes, RESERVE),
        ),
        DiskWatchConfig(config.fullness, is_forced=config.read_only, persists=config.persist_status),
        wall_ms=wall_ms,
        backlog_bytes=lambda: None if storage.full is None else storage.backlog_bytes,
        on_fullness=upkeep.garbage.on_fullness,
    )


async def _announce(registration: Registration, stop: trio.Event, *, read_only: bool) -> bool:
    """Announce the bookie; False if ``stop`` was set first."""
    is_announced = False
    async with trio.open_nursery() as nursery:

        async def give_up() -> None:
            await stop.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(give_up)
        await registration.announce(read_only=read_only)
        is_announced = True
        nursery.cancel_scope.cancel()
    return is_announced
