"""A namespace in a directory: metadata, bookie and all inside the application's own process.

Inside: who hosts the directory's bookie, how the others reach it, taking over when the host is gone.
Not inside: the bookie, the metadata store and the ledger client, which are the same as in a cluster.
Always: at most one process hosts the bookie, the one that holds the lock on ``host.lock``, which the system
takes away with the process however it ends; everything that was acknowledged is on the disk before; a process
that only reads or writes never needs to know who hosts.

    metadata.sqlite   the metadata store, shared by all processes
    bookie/           the bookie's journal and ledgers, as Apache's, and ``METADATA`` (``bound_metadata``)
    bookie.sock       where the host serves the other processes
    host.lock         locked (flock) by the host

The first process that wants to talk to the bookie becomes the host. When it dies, the connections of the
others break; they dial again, as they would any bookie, and one of them gets the lock, replays the journal
and serves. Since the bookie keeps its name, the ledger client sends what was not acknowledged to the new
host: nothing is lost and nothing is repeated.

Source: our own; the roles are those of ledger.transport's ``Dial`` and of bookie.run's ``open_bookie``.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import trio

from bookie.cluster_root import prepare_cluster_root
from bookie.disk import RealDisk
from bookie.errors import BookieServerError
from bookie.run import Bookie, open_bookie
from bookie.storage_config import StorageConfig
from dlog.embedded_garbage import (
    COMPACTION,
    ENTRY_LOG_BYTES_MAX,
    EmbeddedGarbage,
    identity_of,
    open_garbage,
)
from dlog.errors import EmbeddedStoreError
from dlog.nursery import ServiceTasks, open_service_tasks
from ledger.client import LedgerClient, open_ledger_client
from ledger.config import ClientConfig
from ledger.dial import Address
from ledger.paths import Layout, available_path
from ledger.pipe import stream_pair
from namespace.errors import NodeExistsError
from namespace.sqlite import SqliteStore, open_sqlite_store

BOOKIE_ID = "embedded:1"  # for ever the same: it is written in every ledger's metadata
LEDGERS_ROOT = "/ledgers"
NAMESPACE_PATH = "/dlog"
METADATA, BOOKIE, SOCKET, LOCK = "metadata.sqlite", "bookie", "bookie.sock", "host.lock"

DIAL_PAUSE_S = 0.02  # between a host that is gone and one that serves
SOCKET_BACKLOG = 128
CLOSE_S = 5.0  # what a host grants the others' last requests, and itself, when it goes

logger = logging.getLogger(__name__)


@attrs.frozen
class EmbeddedStack:
    """What a namespace is made of."""

    store: SqliteStore
    client: LedgerClient
    hosting: Hosting


@attrs.frozen(eq=False)
class _HostLock:
    """``host.lock``, locked. ``_not_for_children`` knows it by itself, not by its descriptor's number."""

    fd: int


class _Directory:
    """The directory, held open, so that its files are reached however long its path is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as exc:
            raise EmbeddedStoreError(
                f"directory {path}: {exc.strerror}; a file:// namespace needs one it may create and write"
            ) from exc

    def close(self) -> None:
        os.close(self._fd)

    @property
    def socket_address(self) -> str:
        """An address of the socket that fits into the 108 bytes which the system allows."""
        direct = str(self.path / SOCKET)
        return direct if len(os.fsencode(direct)) < 100 else f"/proc/self/fd/{self._fd}/{SOCKET}"

    def try_lock(self) -> _HostLock | None:
        """The lock, None if another process, or this one elsewhere, has it."""
        try:
            fd = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666, dir_fd=self._fd)
        except OSError as exc:
            raise EmbeddedStoreError(
                f"directory {self.path}: {LOCK} cannot be opened ({exc.strerror}); is the directory writable?"
            ) from exc
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except OSError as exc:
            os.close(fd)
            raise EmbeddedStoreError(
                f"directory {self.path}: its file system has no locks ({exc.strerror}); use a local one"
            ) from exc
        # For people who wonder who it is; nobody reads it otherwise.
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d\n" % os.getpid(), 0)
        lock = _HostLock(fd)
        _not_for_children[lock] = lambda: os.close(fd)
        return lock

    def unlock(self, lock: _HostLock) -> None:
        # Missing only in a forked child, which has closed it: the number may be another file's there.
        if _not_for_children.pop(lock, None) is not None:
            os.close(lock.fd)

    def remove_socket(self) -> None:
        try:
            os.unlink(SOCKET, dir_fd=self._fd)
        except FileNotFoundError:
            pass  # what was wanted


class Hosting:
    """Reaches the directory's bookie, wherever it runs, and runs it here if it runs nowhere."""

    def __init__(
        self, directory: _Directory, tasks: ServiceTasks, store: SqliteStore, layout: Layout
    ) -> None:
        self.garbage: EmbeddedGarbage | None = None  # while the bookie runs here and fits the metadata
        self._directory, self._tasks = directory, tasks
        self._store, self._layout = store, layout
        self._metadata_file = identity_of(directory.path / METADATA)
        self._bookie: Bookie | None = None
        self._streams: trio.Nursery | None = None
        self._is_hosting = False
        self._changed = trio.Event()  # from starting to serving, from serving to gone
        self._stop = trio.Event()

    async def dial(self, _address: Address) -> trio.abc.Stream:
        """A stream to the bookie; ``ledger.transport`` calls this for every connection.

        Raises:
            OSError: The host of the moment cannot be reached.
            EmbeddedStoreError: The bookie cannot be started here either.
        """
        while True:
            if self._bookie is not None and self._streams is not None:
                ours, theirs = stream_pair()
                self._streams.start_soon(self._bookie.serve_stream, theirs)
                return ours
            if self._is_hosting:
                await self._changed.wait()
                continue
            stream = await self._connect()
            if stream is not None:
                return stream
            if self._stop.is_set():
                raise ConnectionRefusedError(errno.ECONNREFUSED, "the namespace is being closed")
            if not self._is_hosting and (lock := self._directory.try_lock()) is not None:
                # In a task of its own: a dial that is given up does not stop a replay half way.
                self._is_hosting = True
                self._tasks.start_soon(self._host, lock)
                continue
            # Somebody has the lock and does not serve yet.
            await trio.sleep(DIAL_PAUSE_S)

    async def _connect(self) -> trio.abc.Stream | None:
        sock = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            await sock.connect(self._directory.socket_address)
        except (ConnectionRefusedError, FileNotFoundError):
            sock.close()
            return None
        except BaseException:
            sock.close()
            raise
        return trio.SocketStream(sock)

    async def _host(self, lock: _HostLock) -> None:
        path = self._directory.path
        directories: Any = (path / BOOKIE,)  # mypy takes the converter's type variable literally
        config = StorageConfig(
            journal_directories=directories,
            ledger_directories=directories,
            entry_log_bytes_max=ENTRY_LOG_BYTES_MAX,
            compaction=COMPACTION,
        )
        disk = RealDisk()
        try:
            async with open_bookie(config, disk=disk) as bookie:
                garbage = await open_garbage(
                    bookie,
                    self._store,
                    LEDGERS_ROOT,
                    self._layout,
                    disk,
                    path / BOOKIE,
                    lambda: self._metadata_file == identity_of(path / METADATA) is not None,
                )
                listener = self._listen()
                try:
                    async with trio.open_nursery() as streams:
                        await streams.start(bookie.serve_listeners, [listener])
                        self._bookie, self._streams, self.garbage = bookie, streams, garbage
                        self._change()
                        logger.info("%s: this process (%d) hosts the bookie", path, os.getpid())
                        async with trio.open_nursery() as rounds:
                            if garbage is not None:
                                rounds.start_soon(garbage.run)
                            await self._stop.wait()
                            rounds.cancel_scope.cancel()
                        if garbage is not None:
                            await garbage.finish()
                        # First nobody finds it any more, then those who did are answered, then it closes, and
                        # only then may another process have the lock.
                        self._bookie = None
                        self._directory.remove_socket()
                        with trio.move_on_after(CLOSE_S):
                            await bookie.drain()
                        streams.cancel_scope.cancel()
                finally:
                    self._bookie = self._streams = self.garbage = None
                    _not_for_children.pop(listener, None)
                    listener.socket.close()
        except (BookieServerError, OSError) as exc:
            raise EmbeddedStoreError(f"directory {path}: its bookie cannot run: {exc}") from exc
        finally:
            self._directory.unlock(lock)
            self._is_hosting = False
            self._change()

    def _change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _listen(self) -> trio.SocketListener:
        self._directory.remove_socket()  # of a host that was killed
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.bind(self._directory.socket_address)
            sock.listen(SOCKET_BACKLOG)
        except OSError as exc:
            sock.close()
            raise EmbeddedStoreError(
                f"directory {self._directory.path}: no socket can be made there ({exc.strerror})"
            ) from exc
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(sock))
        _not_for_children[listener] = sock.close
        return listener

    def ledger_deleted(self, _ledger_id: int) -> None:
        """This process has deleted a ledger; its space is given back if the bookie runs here."""
        if self.garbage is not None:
            self.garbage.ledger_deleted()

    async def stop(self) -> None:
        """Close the bookie if it runs here; the clients of this process are gone already."""
        self._stop.set()
        while self._is_hosting:
            await self._changed.wait()


@asynccontextmanager
async def open_embedded_stack(path: Path, config: ClientConfig | None = None) -> AsyncIterator[EmbeddedStack]:
    """Open the directory's metadata, reach its bookie, and a client for it.

    Raises:
        EmbeddedStoreError: The directory, or what is in it, cannot be used.
        namespace.errors.NamespaceError, ledger.errors.LedgerError: The metadata cannot be used.
    """
    directory = _Directory(path)
    try:
        async with open_sqlite_store(path / METADATA) as store, open_service_tasks() as tasks:
            hosting = Hosting(directory, tasks, store, await _prepare(store))
            try:
                # Now rather than at the first write: a directory that cannot work is told at once.
                stream = await hosting.dial(Address("", 0))
                await stream.aclose()
                async with open_ledger_client(
                    store, hosting.dial, config, root=LEDGERS_ROOT, on_deleted=hosting.ledger_deleted
                ) as client:
                    yield EmbeddedStack(store, client, hosting)
            finally:
                with trio.CancelScope(shield=True):
                    await hosting.stop()
    finally:
        directory.close()


async def _prepare(store: SqliteStore) -> Layout:
    """The nodes that administrators make in a cluster; how it lays out ledgers."""
    layout = await prepare_cluster_root(store, LEDGERS_ROOT, None)
    for node in (NAMESPACE_PATH, available_path(LEDGERS_ROOT, BOOKIE_ID)):
        try:
            # The bookie's node is no ephemeral one: whoever wants the bookie and finds it gone becomes it.
            await store.create(node, b"", parents=True)
        except NodeExistsError:
            pass
    return layout


# What a forked child must not keep open: with the lock and the listening socket of a host that was killed, it
# would keep everybody else from taking over, and answer nobody itself. By object: a descriptor's number is
# another's as soon as it is closed, and namespaces of other threads open and close theirs at any time.
_not_for_children: dict[object, Callable[[], None]] = {}


def _close_in_child() -> None:
    while _not_for_children:
        _, close = _not_for_children.popitem()
        close()


os.register_at_fork(after_in_child=_close_in_child)
