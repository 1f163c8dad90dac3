"""One bookie on its directories, without cookies and without a cluster.

Inside: ``open_bookie``, for programs that embed it and for ``main``. Not inside: a bookie of a cluster
(``main``), the storage (``storage``), requests (``requests``).
Always: after a failure of the storage the bookie serves nothing more.

A program that opens a directory imports this module at its first append. So it imports nothing of clusters.

Source: BookieImpl.java.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio

from bookie.digest_checker import DigestTypeOf
from bookie.disk.descriptors import Descriptors
from bookie.disk.disk import Disk
from bookie.disk.real_disk import RealDisk
from bookie.errors import StorageFailedError
from bookie.requests.permissions import Permissions
from bookie.requests.session import BookieService
from bookie.server.config import ServerConfig
from bookie.server.server import Server
from bookie.storage.config import StorageConfig
from bookie.storage.opening import open_storage
from bookie.storage.storage import Storage

DRAIN_S = 3.0  # for the replies still to be sent when a bookie stops
SWITCH_INTERVAL_S = 0.0002  # a journal thread needs the interpreter after each sync; the default is 5 ms


class Bookie:
    """A bookie that serves the streams given to it. Made by ``open_bookie``."""

    def __init__(self, storage: Storage, service: BookieService, server: Server) -> None:
        self.storage = storage
        self.service = service
        self.server = server

    def __repr__(self) -> str:
        return f"<Bookie on {self.storage!r}>"

    async def serve_stream(self, stream: trio.abc.Stream) -> None:
        """Serve one peer until it disconnects; then close the stream. An error of the peer raises nothing."""
        await self.server.serve_stream(stream)

    async def serve_listeners(
        self,
        listeners: Sequence[trio.abc.Listener[trio.abc.Stream]],
        *,
        task_status: trio.TaskStatus[list[trio.abc.Listener[trio.abc.Stream]]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve all connections of these listeners until cancelled."""
        await self.server.serve(listeners, task_status=task_status)

    async def drain(self) -> None:
        """Take no more requests; return when all taken requests have replies, or after ``DRAIN_S``."""
        await self.server.drain(timeout_s=DRAIN_S)


@asynccontextmanager
async def open_bookie(
    storage_config: StorageConfig,
    *,
    server_config: ServerConfig | None = None,
    sync_adds: bool = True,
    digest_type_of: DigestTypeOf | None = None,
    disk: Disk | None = None,
    permissions: Permissions | None = None,
) -> AsyncIterator[Bookie]:
    """A bookie on its directories, without cookies and cluster; leaving the block flushes and closes it.

    A failure of the storage cancels the block and is raised instead of its result.

    Args:
        sync_adds: False acknowledges adds before they are synced.
        digest_type_of: As the metadata say. None: no entry that can be read counts as damaged.
        disk: None: the disks of this machine.
        permissions: None: peers that may connect may do everything.

    Raises:
        StorageFailedError: A write or a sync failed; nothing was acknowledged after it.
        DirectoryInUseError, StartError: As ``open_storage``.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    raised: BaseException | None = None
    failure: BaseException | None = None

    async def watch(storage: Storage, scope: trio.CancelScope) -> None:
        nonlocal failure
        failure = await storage.wait_failed()
        scope.cancel()

    disk = disk or RealDisk()
    async with open_storage(disk, storage_config, digest_type_of=digest_type_of) as storage:
        service = BookieService(
            storage, sync_adds=sync_adds, digest_type_of=digest_type_of, permissions=permissions
        )
        if storage.full is not None:
            service.rights.hold(takes_records=storage.takes_records)
        server = Server(service, server_config)
        bookie = Bookie(storage, service, server)
        descriptors = disk.descriptors or Descriptors()
        descriptors.connect(server.shed_connections)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, storage, nursery.cancel_scope)
            nursery.start_soon(server.sweep, descriptors.refill)
            try:
                yield bookie
            except BaseException as exc:  # raised below: the nursery would wrap it into a group
                raised = exc
            nursery.cancel_scope.cancel()
            descriptors.close()  # before the end of the nursery: a read may wait for a descriptor
        if failure is not None:
            raise StorageFailedError(f"the bookie's storage failed: {failure}") from failure
        if raised is not None:
            raise raised
