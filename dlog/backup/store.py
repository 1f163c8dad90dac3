"""The backups at a destination: which there are, reading and adding one, deleting old ones.

Inside: manifests and chunks as objects, the order in which they are written and deleted, a lock for writers.
Not inside: their bytes (``format``), where entries come from (``rounds``).
Always: a manifest is written after all that it names is durable, and deleted before; so each manifest that is
listed can be restored. Chunks are deleted only by a process that keeps other writers away, and only if no
manifest that is left names them.

Source: our own; docs/backup.md.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

import attrs
import trio

from dlog.backup.destination import Destination, open_destination
from dlog.backup.errors import (
    BackupDamagedError,
    BackupError,
    BackupNotFoundError,
    BackupUnreachableError,
)
from dlog.backup.format import (
    DESTINATION_NAME,
    LEDGERS,
    MANIFESTS,
    BackupManifest,
    EntryChunk,
    ManifestName,
    decode_chunk,
    decode_destination,
    decode_manifest,
    encode_chunk,
    encode_destination,
    encode_manifest,
)

T = TypeVar("T")
CHANGES_BYTES_MAX = (
    64 * 1024
)  # a manifest that differs by more, and by half of the whole one, is whole itself
THREADS = 4  # that write or read objects at the same time


@attrs.frozen
class Pruned:
    """The number of objects that were deleted."""

    manifests: int
    chunks: int


class BackupStore:
    """Reads backups; with ``writing``, adds and deletes them."""

    def __init__(self, destination: Destination) -> None:
        self.where = destination.where
        self._destination = destination
        self._threads = trio.CapacityLimiter(THREADS)
        self._whole: BackupManifest | None = None  # the whole manifest that was read or written last
        self._whole_bytes = 0
        self._owner: tuple[str, str] | None = None  # whose backups this object has added

    async def names(self) -> list[ManifestName]:
        """The manifests, the oldest first.

        Raises:
            BackupNotFoundError: There are no backups at the destination.
        """
        await self.owner()
        found = await self._call(lambda: self._destination.names(MANIFESTS))
        return sorted(name for each in found if (name := ManifestName.of(each)) is not None)

    async def owner(self) -> tuple[str, str]:
        """The instance id and the path of the namespace whose backups these are.

        Raises:
            BackupNotFoundError: There are none.
        """
        try:
            data = await self._call(lambda: self._destination.get(DESTINATION_NAME))
        except BackupDamagedError:
            raise BackupNotFoundError(
                f"{self.where}: no backup is there ({DESTINATION_NAME} is missing). Check the path"
            ) from None
        return decode_destination(data)

    async def read(self, name: ManifestName) -> BackupManifest:
        """A manifest, and the whole one that it refers to.

        Raises:
            BackupDamagedError
        """
        base = None
        if name.base_ms is not None:
            base = self._whole
            if base is None or base.cut_ms != name.base_ms:
                base = await self.read(ManifestName(name.base_ms))
        data = await self._call(lambda: self._destination.get(name.text))
        manifest = await trio.to_thread.run_sync(decode_manifest, name, data, base)
        if base is None:
            self._whole, self._whole_bytes = manifest, len(data)
        return manifest

    async def read_chunk(self, ledger_id: int, chunk: EntryChunk) -> list[bytes]:
        """The stored bytes of a chunk's entries.

        Raises:
            BackupDamagedError
        """
        return await self._call(
            lambda: decode_chunk(ledger_id, chunk, self._destination.get(chunk.name(ledger_id)))
        )

    async def check_there(self) -> None:
        """Raise BackupUnreachableError if all backups are gone, as of an unmounted disk."""
        try:
            await self.owner()
        except BackupNotFoundError:
            raise self._gone() from None

    async def chunk_names(self) -> set[str]:
        """The objects of all chunks that are there, also of those that no manifest names."""
        return set(await self._call(lambda: self._destination.names(LEDGERS)))

    # For a writer.

    @asynccontextmanager
    async def writing(self, instance_id: str, path: str) -> AsyncIterator[None]:
        """Write backups of a namespace for the duration of the block; other writers are kept away.

        Raises:
            BackupInUseError: Another process writes there.
            BackupError: The backups there are those of another namespace.
        """
        await self._call(lambda: self._destination.begin(create=True))
        try:
            try:
                owner = await self.owner()
            except BackupNotFoundError:
                if self._owner is not None:
                    raise self._gone() from None
                if await self._call(lambda: self._destination.names(MANIFESTS)):
                    raise BackupDamagedError(DESTINATION_NAME, f"it is missing in {self.where}") from None
                data = encode_destination(instance_id, path)
                await self._call(lambda: self._destination.put(DESTINATION_NAME, data))
                await self._call(self._destination.settle)
                owner = instance_id, path
            if owner != (instance_id, path):
                raise BackupError(
                    f"{self.where} has backups of another namespace (instance {owner[0]}, path {owner[1]}),"
                    f" and this one is instance {instance_id}, path {path}. Nothing was changed; name another"
                    " destination"
                )
            self._owner = owner
            yield
        finally:
            with trio.CancelScope(shield=True):
                await self._call(self._destination.end)

    def _gone(self) -> BackupUnreachableError:
        return BackupUnreachableError(
            f"{self.where}: it had backups, and has none now ({DESTINATION_NAME} is missing);"
            " is its disk mounted?"
        )

    @asynccontextmanager
    async def pruning(self) -> AsyncIterator[None]:
        """Delete backups for the duration of the block; other writers are kept away. As ``writing``."""
        owner = await self.owner()
        async with self.writing(*owner):
            yield

    async def write_chunk(self, ledger_id: int, first: int, last: int, bodies: list[bytes]) -> EntryChunk:
        """Write a chunk. It is durable when ``write`` has written a manifest. Errors of the destination."""

        def write() -> EntryChunk:
            data, chunk = encode_chunk(ledger_id, first, last, bodies)
            self._destination.put(chunk.name(ledger_id), data)
            return chunk

        return await self._call(write)

    async def write(self, manifest: BackupManifest, *, whole: bool) -> int:
        """Add a manifest whose chunks are written; return its size. Durable on return.

        If cancelled, it is there or not.

        Args:
            whole: False: refer to the last whole one, if that is worth it.
        """
        base = None if whole else self._whole
        try:
            await self.owner()
        except BackupNotFoundError:
            raise self._gone() from None  # an empty directory, where a disk was mounted

        def write() -> tuple[bool, int]:
            self._destination.settle()  # what the manifest names
            name, data = encode_manifest(manifest, base)
            if base is not None and len(data) > max(CHANGES_BYTES_MAX, self._whole_bytes // 2):
                name, data = encode_manifest(manifest)
            self._destination.put(name.text, data)
            self._destination.settle()
            return name.base_ms is None, len(data)

        is_whole, size_bytes = await self._call(write)
        if is_whole:
            self._whole, self._whole_bytes = manifest, size_bytes
        return size_bytes

    async def prune(self, kept: Iterable[ManifestName]) -> Pruned:
        """Delete all manifests but these and those that they refer to, then the chunks that none names.

        If cancelled or killed, it is repeated: chunks that no manifest names are deleted then.

        Raises:
            BackupDamagedError: A manifest that is kept cannot be read, so what it needs is not known. No
                chunk was deleted.
        """
        names = await self.names()
        wanted = set(kept)
        wanted |= {ManifestName(each.base_ms) for each in wanted if each.base_ms is not None}
        gone = [each for each in names if each not in wanted]
        # One that refers to another one goes first: a whole one may go only when none refers to it.
        for each in sorted(gone, key=lambda name: name.base_ms is None):
            await self._call(partial(self._destination.delete, each.text))
        await self._call(self._destination.settle)
        needed: set[str] = set()
        for each in sorted(set(names) & wanted, key=lambda name: (name.base_ms or name.cut_ms, name.cut_ms)):
            needed |= (await self.read(each)).chunk_names()
        dead = [each for each in await self.chunk_names() if each not in needed]
        for chunk in dead:
            await self._call(partial(self._destination.delete, chunk))
        return Pruned(len(gone), len(dead))

    async def _call(self, work: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(work, limiter=self._threads)


def open_store(where: str | os.PathLike[str]) -> BackupStore:
    """The backups at a destination. Nothing is made or read yet."""
    return BackupStore(open_destination(where))
