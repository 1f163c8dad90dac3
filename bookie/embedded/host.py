"""Hosting the bookie of an embedded directory in this process.

Inside: the bookie, its garbage collection, the socket for other processes. Not inside: which process hosts
(``embedded``), rounds of garbage collection (``garbage``).
Always: the socket's name goes first, then requests that came by it are answered, then the bookie closes; the
caller gives the lock back only after that.

Only a process that hosts imports this module, and with it the bookie.

Source: our own; the parts are those of ``bookie.bookie``.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NoReturn

import attrs
import trio

from bookie.bookie import Bookie, open_bookie
from bookie.disk.disk import no_space
from bookie.disk.real_disk import RealDisk
from bookie.embedded.garbage import EmbeddedGarbage, compaction_for, entry_log_bytes_for, open_garbage
from bookie.embedded.space import Space
from bookie.embedded.unusable import unusable
from bookie.errors import BookieServerError, MetadataLostError
from bookie.ledger_metadata.cluster_nodes import ClusterNodes
from bookie.ledger_metadata.digest_types import DigestTypes
from bookie.storage.config import CURRENT, StorageConfig
from bookie.storage.entry_places import EntryPlace
from ledger.catalog.paths import Layout
from ledger.causes import cause_of
from ledger.deploy.directory import BOOKIE, METADATA, METADATA_RESERVE, Directory, not_for_children
from ledger.digest import DigestType
from ledger.errors import DirectoryUnusableError
from ledger.metadata_store.sqlite_store.reserve import SpaceReserve
from ledger.metadata_store.store import MetadataStore
from ledger.runtime.events import event
from ledger.runtime.held_directories import CHECK_S, DirectoryLostError
from ledger.runtime.log_lines import get_logger

CLOSE_S = 5.0  # the time for the last requests of other processes when the host closes
REMOVAL_S = 2.0  # a removal that has taken a file gets this time to take the directory

logger = get_logger(__name__)


@attrs.frozen
class HostedBookie:
    """The bookie that runs here."""

    bookie: Bookie
    streams: trio.Nursery  # of the tasks that serve connections
    garbage: EmbeddedGarbage | None  # None: metadata and bookie do not belong together
    space: Space

    @property
    def is_full(self) -> bool:
        """True if the bookie has no space for more entries."""
        return self.bookie.storage.full is not None

    def serve(self, stream: trio.abc.Stream) -> None:
        """Serve a connection in a task."""
        self.streams.start_soon(self.bookie.serve_stream, stream)

    def ledger_deleted(self) -> None:
        """Collect garbage soon: this process deleted a ledger."""
        if self.garbage is not None:
            self.garbage.ledger_deleted()


@asynccontextmanager
async def open_hosted_bookie(
    directory: Directory,
    store: MetadataStore,
    root: str,
    layout: Layout,
    identity: tuple[int, int] | None,
    *,
    more_than_bytes: int = 0,
) -> AsyncIterator[HostedBookie]:
    """Start the directory's bookie and serve it at the socket; leaving the block closes it in order.

    Args:
        identity: Device and inode of the metadata file. Garbage is collected only while the file is the same.
        more_than_bytes: See ``Space.run``.

    Raises:
        DirectoryFullError: A write found no space, or there is none to open the bookie.
        DirectoryMovedError: The directory is not at its path any more. Nothing more is acknowledged.
        DirectoryUnusableError: The bookie cannot run, or failed; the message has the reason.
    """
    path, disk = directory.path, RealDisk()
    log_bytes = entry_log_bytes_for((await disk.run(disk.usage, path)).total_bytes)
    directories: Any = (path / BOOKIE,)  # mypy takes the converter's type variable literally
    config = StorageConfig(
        journal_directories=directories,
        ledger_directories=directories,
        entry_log_bytes_max=log_bytes,
        compaction=compaction_for(log_bytes),
        reserve_is_for_starts=True,
    )
    digest_types = DigestTypes(ClusterNodes(lambda: store, root, layout))
    garbage: EmbeddedGarbage | None = None

    def is_in_place() -> bool:
        return identity == directory.identity_of(METADATA) is not None

    async def digest_type_of(ledger_id: int) -> DigestType | None:
        # With another directory's metadata, sound entries would look damaged.
        return await digest_types(ledger_id) if garbage is not None and is_in_place() else None

    def identify_log(place: EntryPlace) -> tuple[int, int]:
        # Every client of this bookie is a process of this user on this machine.
        return directory.identity_of_entry_log(place.log_id)

    release = disk.hold(path, directory.fd)
    space: Space | None = None
    try:
        async with open_bookie(config, disk=disk, digest_type_of=digest_type_of) as bookie:
            bookie.storage.identify_log = identify_log
            garbage = await open_garbage(
                bookie,
                store,
                root,
                layout,
                disk,
                path / BOOKIE,
                is_in_place,
            )
            metadata_reserve = SpaceReserve(directory.fd, METADATA_RESERVE)
            space = Space(bookie, disk, path / BOOKIE / CURRENT, metadata_reserve, config.compaction)
            await space.check()
            run_space = partial(space.run, more_than_bytes=more_than_bytes)
            async with _serving(directory, bookie, garbage, run_space) as streams:
                yield HostedBookie(bookie, streams, garbage, space)
    except (BookieServerError, OSError) as exc:
        await _raise_unusable(directory, exc)
    finally:
        if space is not None:
            space.take_back()
        release()


@asynccontextmanager
async def _serving(
    directory: Directory,
    bookie: Bookie,
    garbage: EmbeddedGarbage | None,
    run_space: Callable[[], Awaitable[None]],
) -> AsyncIterator[trio.Nursery]:
    """Serve the bookie at the socket; yield the nursery of its connections, and close all in order."""
    listener = directory.listen()
    try:
        async with trio.open_nursery() as streams:
            await streams.start(bookie.serve_listeners, [listener])
            logger.info(
                "%s: this process (%d) hosts the bookie",
                directory.path,
                os.getpid(),
                extra=event("directory.hosted", directory=str(directory.path)),
            )
            async with trio.open_nursery() as rounds:
                if garbage is not None:
                    rounds.start_soon(garbage.run)
                rounds.start_soon(run_space)
                yield streams
                rounds.cancel_scope.cancel()
            if garbage is not None:
                await garbage.finish()
            directory.remove_socket()
            with trio.move_on_after(CLOSE_S):
                await bookie.drain()
            streams.cancel_scope.cancel()
    finally:
        not_for_children.pop(listener, None)
        listener.socket.close()


async def _wait_for_removal(directory: Directory, error: BookieServerError | OSError) -> None:
    """If a file vanished, wait a moment for the end of a removal: that takes the files first, one by one.

    Raises:
        DirectoryMovedError: The directory is gone.
        DirectoryUnusableError: Its path cannot be followed.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, FileNotFoundError):
        cause = cause_of(cause)
    if cause is not None:
        with trio.move_on_after(REMOVAL_S, shield=True):
            while True:
                directory.check()
                await trio.sleep(CHECK_S)


async def _raise_unusable(directory: Directory, error: BookieServerError | OSError) -> NoReturn:
    """Raise what an error of the bookie means for the program that opened the directory."""
    await _wait_for_removal(directory, error)
    if (lost := _loss(error)) is not None:
        raise directory.moved(lost) from error
    if (full := no_space(error)) is not None:
        raise directory.full(full) from full
    if isinstance(error, MetadataLostError):
        raise DirectoryUnusableError(f"directory {directory.path}: {error}") from error
    raise unusable(directory.path, "its bookie cannot run", error) from error


def _loss(error: BaseException | None) -> DirectoryLostError | None:
    """The loss of a directory that an error comes from."""
    while error is not None and not isinstance(error, DirectoryLostError):
        error = cause_of(error)
    return error
