"""Finding and mending damage in the files of a directory.

Inside: the lock that keeps other processes away, and the order: metadata, then bookie. Not inside: the
metadata (``ledger.metadata_store.sqlite_store.repair``), the bookie's files (``bookie.embedded``), which
records are lost (``dlog.cli.operators.directory_report``).
Always: finding changes no record. A damaged file is kept under another name.

Source: our own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import trio

from ledger.deploy.bookie_lookup import bookie_repair
from ledger.deploy.directory import BOOKIE, METADATA, Directory
from ledger.deploy.links import settle_links
from ledger.errors import DirectoryUnusableError
from ledger.metadata_store.errors import MetadataError
from ledger.metadata_store.sqlite_store.failures import FAILURES
from ledger.metadata_store.sqlite_store.repair import find_loss, repair_store


@attrs.frozen
class MendedDirectory:
    """The result of a repair."""

    metadata_change: int | None  # the last change that the metadata have now; None: they were sound
    mended: tuple[str, ...]  # the evidence of what was damaged in the bookie's files
    lost: tuple[str, ...]  # the evidence of damage that could only be left out


async def find_damage(path: Path, *, metadata_only: bool = False) -> tuple[str, ...]:
    """The evidence of all damage that refuses an opening; empty if there is none. Changes nothing.

    Raises:
        DirectoryUnusableError: It is no directory of a namespace, is in use, or cannot be read.
    """
    with locked_directory(path):
        lost = await trio.to_thread.run_sync(_metadata_loss, path)
        found = () if lost is None else (lost,)
        if metadata_only:
            return found
        return (*found, *(await bookie_repair().find_bookie_damage(path)).evidence)


async def mend_directory(path: Path) -> MendedDirectory:
    """Make a damaged directory usable again: metadata from their second copy, index, journal.

    A cancelled or interrupted call is repeated.

    Raises:
        DirectoryUnusableError: As ``find_damage``; or it cannot be repaired.
    """
    with locked_directory(path):
        change = await trio.to_thread.run_sync(_mend_metadata, path)
        bookie = bookie_repair()
        damage = await bookie.find_bookie_damage(path)
        lost = await bookie.mend_bookie(path, damage) if damage.evidence else ()
        return MendedDirectory(change, damage.evidence, lost)


def _metadata_loss(path: Path) -> str | None:
    try:
        return find_loss(path / METADATA)
    except (MetadataError, *FAILURES) as exc:
        raise DirectoryUnusableError(f"directory {path}: its metadata cannot be checked: {exc}") from None


def _mend_metadata(path: Path) -> int | None:
    if _metadata_loss(path) is None:
        return None
    try:
        return repair_store(path / METADATA)
    except (MetadataError, *FAILURES) as exc:
        raise DirectoryUnusableError(f"directory {path}: it cannot be repaired: {exc}") from None


@contextmanager
def locked_directory(path: Path) -> Iterator[None]:
    """Keep other processes away from a directory.

    Raises:
        DirectoryUnusableError: It is no directory of a namespace, or another process has it open.
    """
    if not (path / BOOKIE).is_dir():
        raise DirectoryUnusableError(f"directory {path}: no namespace is there ({BOOKIE} is missing)")
    directory = Directory(path)
    try:
        settle_links(directory)
        lock = directory.try_lock()
        if lock is None:
            raise DirectoryUnusableError(f"directory {path}: {directory.holder()} has it open; end it first")
        try:
            yield
        finally:
            directory.unlock(lock)
    finally:
        directory.close()
