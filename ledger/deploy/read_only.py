"""Ledgers in a directory that is only read: through the process that hosts it, else from its files.

Inside: which of both, and the check that the files stay the same while they are opened. Not inside: the
bookie above the files (``bookie.embedded``), the metadata without a session
(``ledger.metadata_store.sqlite_store``), hosting (``embedded``).
Always: nothing below the directory is created, written or deleted, and no lock is kept. Metadata and entries
belong to one moment: they were taken while no process hosted the directory and no file changed.

Source: our own.
"""

from __future__ import annotations

import errno
import math
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import trio

from ledger.catalog.catalog import open_catalog
from ledger.catalog.paths import LAYOUT
from ledger.client import LedgerClient, open_ledger_client
from ledger.config import ClientConfig
from ledger.deploy.bookie_lookup import embedded_bookie
from ledger.deploy.directory import BOOKIE, METADATA, Directory
from ledger.deploy.embedded import DIAL_PAUSE_S, LEDGERS_ROOT, LOCK_TIMEOUT_S
from ledger.errors import DirectoryUnusableError
from ledger.metadata_store.errors import MetadataError
from ledger.metadata_store.sqlite_store.reader import SqliteReader, open_sqlite_reader
from ledger.runtime.tasks.service_tasks import ServiceTasks, open_service_tasks
from ledger.transport.dial import Address

ATTEMPTS = 5  # to open files that another process changes meanwhile


@attrs.frozen
class ReadOnlyStack:
    """The parts of an open directory."""

    store: SqliteReader
    client: LedgerClient
    is_snapshot: bool  # no process hosts the directory, so nothing newer will be seen


@asynccontextmanager
async def open_read_only_stack(
    path: Path, config: ClientConfig | None = None, *, lock_timeout_s: float = LOCK_TIMEOUT_S
) -> AsyncIterator[ReadOnlyStack]:
    """Open the directory's metadata and its ledgers for reading.

    If a process hosts the directory, its bookie is used, and what is written later is seen. Otherwise it is a
    snapshot: what is written later is not seen.

    Args:
        lock_timeout_s: How long to wait for a process that holds the lock and does not serve.

    Raises:
        DirectoryUnusableError: The directory, or what is in it, cannot be read; or, while it is open, a file
            that is needed was changed by another process.
        ledger.metadata_store.errors.MetadataError, ledger.errors.LedgerError: The metadata cannot be used.
    """
    directory = Directory(path, read_only=True)
    try:
        for _ in range(ATTEMPTS):
            is_hosted = await _is_hosted(directory, lock_timeout_s)
            async with AsyncExitStack() as stack:
                if is_hosted:
                    opened: ReadOnlyStack | None = await _open_hosted(stack, directory, config)
                else:
                    opened = await _open_snapshot(stack, directory, config)
                if opened is not None:
                    yield opened
                    return
        raise DirectoryUnusableError(
            f"directory {path}: other processes changed its files each of the {ATTEMPTS} times it was opened"
            " with read_only=True; open it again"
        )
    finally:
        directory.close()


async def _is_hosted(directory: Directory, lock_timeout_s: float) -> bool:
    """True if a process serves the directory. Waits for one that starts or ends."""
    give_up_s = math.inf
    while True:
        stream = await _connect(directory)
        if stream is not None:
            await stream.aclose()
            return True
        if not directory.is_locked():
            return False
        give_up_s = min(give_up_s, trio.current_time() + lock_timeout_s)
        if trio.current_time() >= give_up_s:
            raise directory.unserved(lock_timeout_s)
        await trio.sleep(DIAL_PAUSE_S)


async def _connect(directory: Directory) -> trio.SocketStream | None:
    try:
        return await directory.connect()
    except PermissionError:
        return None  # the mode of the socket forbids it, also if the socket is left of a killed process


async def _open_hosted(
    stack: AsyncExitStack, directory: Directory, config: ClientConfig | None
) -> ReadOnlyStack:
    async def dial(_address: Address) -> trio.abc.Stream:
        stream = await _connect(directory)
        if stream is None:
            raise ConnectionRefusedError(
                errno.ECONNREFUSED,
                f"the process that hosted {directory.path} has ended; if no other one follows, open it again",
            )
        return stream

    store = await stack.enter_async_context(open_sqlite_reader(directory.path / METADATA, is_fixed=False))
    tasks: ServiceTasks = await stack.enter_async_context(open_service_tasks())
    tasks.start_soon(store.keep_fresh)
    await _check_prepared(store, directory)
    client = await stack.enter_async_context(
        open_ledger_client(store, dial, config, root=LEDGERS_ROOT, read_only=True)
    )
    return ReadOnlyStack(store, client, is_snapshot=False)


async def _open_snapshot(
    stack: AsyncExitStack, directory: Directory, config: ClientConfig | None
) -> ReadOnlyStack | None:
    """None if the files changed meanwhile."""
    for name in (METADATA, BOOKIE):
        if directory.identity_of(name) is None:
            directory.check_metadata()
            raise DirectoryUnusableError(
                f"directory {directory.path}: there is nothing to read ({name} is missing); check the path,"
                " or open it once for writing, which creates what is missing"
            )
    directory.check_metadata()
    try:
        snapshot = await embedded_bookie().take_snapshot(directory.path)
    except FileNotFoundError:
        return None  # a file was deleted while the files were listed
    except OSError as exc:
        raise DirectoryUnusableError(f"directory {directory.path}: {exc.filename}: {exc.strerror}") from None

    async def is_unchanged() -> bool:
        # A process that began to host after the check holds the lock, or has changed files by now.
        return not directory.is_locked() and await snapshot.is_current()

    try:
        store = await stack.enter_async_context(open_sqlite_reader(directory.path / METADATA, is_fixed=True))
        await _check_prepared(store, directory)
        tasks: ServiceTasks = await stack.enter_async_context(open_service_tasks())
        layout = (await open_catalog(store, LEDGERS_ROOT)).layout
        await tasks.start(partial(snapshot.run, store, LEDGERS_ROOT, layout))
    except (DirectoryUnusableError, MetadataError):
        if await is_unchanged():
            raise
        return None
    if not await is_unchanged():
        return None
    client = await stack.enter_async_context(
        open_ledger_client(store, snapshot.dial, config, root=LEDGERS_ROOT, read_only=True)
    )
    return ReadOnlyStack(store, client, is_snapshot=True)


async def _check_prepared(store: SqliteReader, directory: Directory) -> None:
    if await store.exists(f"{LEDGERS_ROOT}/{LAYOUT}") is None:
        raise DirectoryUnusableError(
            f"directory {directory.path}: no process has ever completed opening it; open it once for writing"
        )
