"""Ledgers in a directory: the metadata store, and the way to the bookie wherever it runs.

Inside: reaching the bookie that another process hosts, hosting it here if no process does, taking over.
Not inside: the bookie in this process (``bookie.embedded``), the lock and the socket (``directory``).
Always: a record that was acknowledged is on the disk before any process takes over; a process that attaches
to a host does not import the bookie.

The first process that needs the bookie becomes the host. When the host dies, the connections of the other
processes break. They dial again, as they would any bookie, and one of them gets the lock, replays the journal
and serves. The bookie keeps its id, so the ledger client sends to the new host what was not acknowledged: no
entry is lost or repeated.

Source: our own.
"""

from __future__ import annotations

import errno
import math
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import attrs
import trio

from ledger.catalog.catalog import open_catalog
from ledger.catalog.paths import READONLY, Layout, available_path
from ledger.client import LedgerClient, open_ledger_client
from ledger.config import ClientConfig
from ledger.context import ClientSeams
from ledger.deploy.bookie_lookup import HostedBookie, HostedGarbage, embedded_bookie
from ledger.deploy.directory import BOOKIE_RESERVE, METADATA, METADATA_RESERVE, Directory, HostLock
from ledger.deploy.links import settle_links
from ledger.errors import DirectoryFullError, DirectoryMovedError, DirectoryUnusableError
from ledger.metadata_store.errors import MetadataError, NodeExistsError, StoreFullError, StoreReplacedError
from ledger.metadata_store.sessions.renewing_store import RenewingStore
from ledger.metadata_store.sqlite_store.failures import is_refused_write
from ledger.metadata_store.sqlite_store.reserve import SpaceReserve
from ledger.metadata_store.sqlite_store.store import SqliteStore, open_sqlite_store
from ledger.metadata_store.store import MetadataStore
from ledger.runtime.tasks.background import open_background
from ledger.runtime.tasks.service_tasks import ServiceTasks, open_service_tasks
from ledger.transport.dial import Address
from ledger.transport.pipe import stream_pair

BOOKIE_ID = "embedded:1"  # never changes: the metadata of every ledger names it
LEDGERS_ROOT = "/ledgers"
LOCK_TIMEOUT_S = 30.0
FULL_PAUSE_S = 1.0  # before the bookie is opened again on a disk that had no space for that
MORE_BYTES = 64 << 10  # must be freed until a start that was in vain is repeated
DIAL_PAUSE_S = 0.02  # between a host that is gone and one that serves


@attrs.frozen
class EmbeddedStack:
    """The parts of an open directory."""

    store: MetadataStore
    client: LedgerClient
    hosting: Hosting
    directory: Directory


class Hosting:
    """Reaches the directory's bookie, wherever it runs, and hosts it here if it runs nowhere."""

    def __init__(
        self,
        directory: Directory,
        tasks: ServiceTasks,
        store: DirectoryMetadataStore,
        layout: Layout,
        lock_timeout_s: float,
    ) -> None:
        self._directory, self._tasks = directory, tasks
        self._store, self._layout, self._lock_timeout_s = store, layout, lock_timeout_s
        self._metadata_identity = directory.identity_of(METADATA)
        self._hosted: HostedBookie | None = None
        self._is_hosting = self._has_failed = False
        self._full: DirectoryFullError | None = None  # there is no space to host the bookie
        self._moved: DirectoryMovedError | None = None
        self._on_lost: Callable[[Callable[[], DirectoryMovedError]], None] | None = None
        self._changed = trio.Event()  # from starting to serving, from serving to gone
        self._stop = trio.Event()

    @property
    def garbage(self) -> HostedGarbage | None:
        """The garbage collection; None while another process hosts, or if bookie and metadata do not
        match."""
        return None if self._hosted is None else self._hosted.garbage

    @property
    def is_hosting(self) -> bool:
        """True if the bookie runs, or starts, in this process."""
        return self._is_hosting

    async def dial(self, _address: Address) -> trio.abc.Stream:
        """Return a stream to the bookie; the transport calls this for every connection.

        Raises:
            OSError: The present host cannot be reached.
            DirectoryFullError: There is no space to open the bookie, not even for reads.
            DirectoryMovedError: The directory is not at its path any more.
            DirectoryUnusableError: The bookie cannot be started here either, or another process has the lock
                and has not served for ``lock_timeout_s``.
        """
        give_up_s = math.inf
        while True:
            self._check_in_place()
            if self._has_failed:
                await trio.sleep_forever()  # the error of the task cancels this call
            if self._hosted is not None:
                ours, theirs = stream_pair()
                self._hosted.serve(theirs)
                return ours
            if self._is_hosting:
                if self._full is not None:
                    raise self._full
                await self._changed.wait()
                continue
            stream = await self._directory.connect()
            if stream is not None:
                return stream
            if self._stop.is_set():
                raise ConnectionRefusedError(errno.ECONNREFUSED, "the namespace is being closed")
            if not self._is_hosting and (lock := self._directory.try_lock()) is not None:
                # In a task of its own: a cancelled dial must not stop a replay half way.
                self._is_hosting = True
                self._tasks.start_soon(self._host, lock)
                continue
            # Another process has the lock and does not serve yet.
            give_up_s = min(give_up_s, trio.current_time() + self._lock_timeout_s)
            if trio.current_time() >= give_up_s:
                raise self._directory.unserved(self._lock_timeout_s)
            await trio.sleep(DIAL_PAUSE_S)

    def _check_in_place(self) -> None:
        """Raise ``DirectoryMovedError`` if the directory is not at its path; end the session then, too."""
        try:
            if self._moved is not None:
                raise self._moved
            self._directory.check()
        except DirectoryMovedError as exc:
            self._lose(exc)
            raise

    def _lose(self, moved: DirectoryMovedError) -> None:
        self._moved = moved
        self._store.lose(str(moved))
        self._stop.set()
        if self._on_lost is not None:
            self._on_lost(lambda: DirectoryMovedError(str(moved)))

    def when_lost(self, call: Callable[[Callable[[], DirectoryMovedError]], None]) -> None:
        """Call this with a maker of the error as soon as the directory is seen not to be at its path."""
        self._on_lost = call
        if (moved := self._moved) is not None:
            call(lambda: DirectoryMovedError(str(moved)))

    async def _host(self, lock: HostLock) -> None:
        free_bytes = 0  # when the bookie was opened on a full disk
        try:
            while not self._stop.is_set():
                free_bytes = await self._host_once(free_bytes)
        except DirectoryMovedError as exc:
            self._lose(exc)  # no failure of this task: each call gets the error
        except BaseException:
            self._has_failed = True
            raise
        finally:
            self._hosted = None
            self._directory.unlock(lock)
            self._is_hosting = False
            self._change()

    async def _host_once(self, free_before: int) -> int:
        """Host until the namespace is closed, or until the bookie must be opened again.

        It must if its disk is full: opened on a full disk it serves reads and deletions. And if there is
        space again. Returns the bytes that were free when it was opened on a full disk; then more are needed.
        """
        was_open, free_bytes = False, 0
        try:
            async with embedded_bookie().open_hosted_bookie(
                self._directory,
                self._store,
                LEDGERS_ROOT,
                self._layout,
                self._metadata_identity,
                more_than_bytes=free_before + MORE_BYTES if free_before else 0,
            ) as self._hosted:
                was_open, self._full = True, None
                space = self._hosted.space
                if self._hosted.is_full:
                    free_bytes = await trio.to_thread.run_sync(space.free_bytes)
                self._change()
                async with trio.open_nursery() as nursery:
                    for event in (self._stop, space.is_enough):
                        nursery.start_soon(_cancel_after, event, nursery.cancel_scope)
                self._hosted = None
        except DirectoryFullError as exc:
            self._hosted = None
            if not was_open:
                # A process was killed after it had given the bookie's reserve, and another program took that.
                if SpaceReserve(self._directory.fd, METADATA_RESERVE).lend():
                    return free_bytes
                self._full = exc
                self._change()
                with trio.move_on_after(FULL_PAUSE_S):
                    await self._stop.wait()
        return free_bytes

    def full(self) -> DirectoryFullError:
        """The error of a write that the bookie refused: it does so only while its disk is full."""
        return self._full or self._directory.full()

    def _change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def ledger_deleted(self, _ledger_id: int) -> None:
        """Note that this process deleted a ledger; its space is freed if the bookie runs here."""
        if self._hosted is not None:
            self._hosted.ledger_deleted()

    def seams(self) -> ClientSeams:
        """What a client of this directory takes from it."""
        return ClientSeams(
            on_deleted=self.ledger_deleted,
            open_entry_log=self._directory.open_entry_log,
            why_read_only=self.full,
        )

    async def stop(self) -> None:
        """Close the bookie if it runs here. The clients of this process are closed already."""
        self._stop.set()
        while self._is_hosting:
            await self._changed.wait()


@asynccontextmanager
async def open_embedded_stack(
    path: Path, config: ClientConfig | None = None, *, lock_timeout_s: float = LOCK_TIMEOUT_S
) -> AsyncIterator[EmbeddedStack]:
    """Open the directory's metadata, reach its bookie, and open a client for it.

    Args:
        lock_timeout_s: How long to wait for a process that holds the lock and does not serve.

    Raises:
        DirectoryUnusableError: The directory, or what is in it, cannot be used.
        ledger.metadata_store.errors.MetadataError, ledger.errors.LedgerError: The metadata cannot be used.
    """
    is_open = False
    try:
        directory = Directory(path)
        try:
            was_used = directory.check_metadata()
            await trio.to_thread.run_sync(settle_links, directory)
            async with (
                open_directory_store(path / METADATA, must_exist=was_used) as store,
                open_service_tasks() as tasks,
            ):
                directory.check()  # the store was opened by the path
                hosting = Hosting(directory, tasks, store, await _prepare(store), lock_timeout_s)
                try:
                    # Dial now, not at the first write: the caller learns at once whether it can work.
                    stream = await hosting.dial(Address("", 0))
                    await stream.aclose()
                    async with open_ledger_client(
                        store,
                        hosting.dial,
                        config,
                        root=LEDGERS_ROOT,
                        seams=hosting.seams(),
                    ) as client:
                        hosting.when_lost(client.lose)
                        is_open = True
                        yield EmbeddedStack(store, client, hosting, directory)
                finally:
                    with trio.CancelScope(shield=True):
                        await hosting.stop()
        finally:
            # What the metadata store gave back when it was closed; before, its own reserve came first.
            SpaceReserve(directory.fd, BOOKIE_RESERVE).fill(makes=False)
            directory.close()
    except (DirectoryUnusableError, MetadataError) as exc:
        if is_open or not is_refused_write(exc):
            raise
        if isinstance(exc, DirectoryFullError | StoreFullError):
            raise DirectoryFullError(
                f"directory {path} cannot be opened, because its disk is full: {exc}. To read what it holds,"
                " open it with read_only=True, or --read-only on the command line"
            ) from None
        raise DirectoryUnusableError(
            f"directory {path} cannot be written, and opening it writes: {exc}. To read what it holds, open"
            " it with read_only=True, or --read-only on the command line"
        ) from None


async def _cancel_after(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


async def _prepare(store: MetadataStore) -> Layout:
    """Make the nodes that an administrator makes in a cluster; return the layout of the ledgers."""
    layout = (await open_catalog(store, LEDGERS_ROOT)).layout
    # The bookie's node is not ephemeral: a process that needs the bookie and finds no host becomes the host.
    for node in (f"{LEDGERS_ROOT}/{READONLY}", available_path(LEDGERS_ROOT, BOOKIE_ID)):
        try:
            await store.create(node, b"", parents=True)
        except NodeExistsError:
            pass
    return layout


class DirectoryMetadataStore(RenewingStore):
    """The store of a directory: a session with its file that is replaced when it expires.

    The session of a living process expires only if its lock file is removed
    (``ledger.metadata_store.sqlite_store.session``): by a program that cleans up, or by an operator. A
    process that stands still, however long, keeps its session. The next session is one with the same file.
    Another file of the same name, as after the directory was deleted and made again or restored from a copy,
    holds other logs: positions and locks mean nothing there. The store ends when the directory is lost.
    """

    def lose(self, reason: str) -> None:
        """End the session, and open no other one: the directory is not at its path any more."""
        replaced = StoreReplacedError(reason)
        self.end(replaced)
        if isinstance(self._session, SqliteStore):
            self._session.expire(replaced)


@asynccontextmanager
async def open_directory_store(
    database: Path, *, must_exist: bool = False
) -> AsyncIterator[DirectoryMetadataStore]:
    """Open a store that outlives its sessions. Leaving the block ends the session that is open then.

    Errors are those of ``open_sqlite_store``.
    """
    async with open_sqlite_store(database, must_exist=must_exist) as first, open_background() as tasks:

        def open_session() -> AbstractAsyncContextManager[MetadataStore]:
            return open_sqlite_store(database, identity=first.identity)

        store = DirectoryMetadataStore(first, open_session)
        tasks.start_soon(store.keep)
        yield store
