"""The names that an index under construction has below ``current`` of an index directory.

Inside: the names, and putting a finished index in place of the old one. Not inside: building it
(``index_rebuild``).
Always: no bookie starts on a directory between the first step of an exchange and the last. The next call
finishes an exchange that was interrupted.

index.rebuilding   the new index, as it will be below ``current``
index.ready        the same, after the old index has been moved away
index.replaced     the index that the last rebuild replaced; the next one deletes it

Databases of Apache's are hidden before they are moved (``apache_refusal``), and shown when all directories
have theirs. ``index.ready`` stays until then, with the file ``databases.complete``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from bookie.disk.disk import Disk
from bookie.index.apache_refusal import DATABASES, hide_databases, show_databases
from bookie.index.index_factory import INDEX_DIRECTORY

REBUILDING, READY, REPLACED = "index.rebuilding", "index.ready", "index.replaced"
_PAGE_DIRECTORY = re.compile(r"[0-9a-f]{1,2}")  # the first two of an index file's path
_SEALED = "databases.complete"


def exchange_index(disk: Disk, index_directory: Path) -> None:
    """Put the new index in place of the old one.

    The key-value map makes an index complete: the old map is moved away first, the new one is put there last.
    New databases stay hidden until ``finish_databases``.
    """
    staging, ready, replaced = (index_directory / name for name in (REBUILDING, READY, REPLACED))
    names = disk.list_directory(index_directory)
    if READY not in names:
        disk.remove_tree(replaced)
        disk.make_directory(replaced)
        if INDEX_DIRECTORY in names:
            disk.rename(index_directory / INDEX_DIRECTORY, replaced / INDEX_DIRECTORY)
            disk.sync_directory(index_directory)
        for name in filter(_PAGE_DIRECTORY.fullmatch, names):
            disk.rename(index_directory / name, replaced / name)
        disk.sync_directory(index_directory)
        # From here on all files beside it belong to the new index.
        disk.rename(staging, ready)
        disk.sync_directory(index_directory)
    new = disk.list_directory(ready)
    for name in filter(_PAGE_DIRECTORY.fullmatch, new):
        disk.rename(ready / name, index_directory / name)
    disk.sync_directory(index_directory)
    disk.sync_directory(ready)
    # A bookie that tried to start meanwhile has left an empty map.
    disk.remove_tree(index_directory / INDEX_DIRECTORY)
    if INDEX_DIRECTORY in new:
        disk.rename(ready / INDEX_DIRECTORY, index_directory / INDEX_DIRECTORY)
        disk.sync_directory(index_directory)
        disk.remove_tree(ready)
    # At each moment at least one of the databases is hidden, so Apache's bookie does not start.
    for name in reversed(DATABASES):
        if name in new:
            disk.remove_tree(index_directory / name)
            disk.rename(ready / name, index_directory / name)
            disk.sync_directory(index_directory)
            disk.sync_directory(ready)


def seal_databases(disk: Disk, index_directory: Path) -> None:
    """Begin an exchange with new databases: hide them, then note that they are complete.

    Not earlier: databases that were built and not used become out of date, and must never be taken.
    """
    if not has_sealed_databases(disk, index_directory):
        hide_databases(disk, index_directory / REBUILDING)
        disk.replace_file(index_directory / REBUILDING / _SEALED, b"")
        disk.sync_directory(index_directory)


def has_sealed_databases(disk: Disk, index_directory: Path) -> bool:
    """True if an exchange with new databases has begun, and has not come to its end."""
    names = disk.list_directory(index_directory)
    return any(
        name in names and _SEALED in disk.list_directory(index_directory / name)
        for name in (READY, REBUILDING)
    )


def finish_databases(disk: Disk, index_directories: Sequence[Path]) -> None:
    """End the exchange: Apache's bookie may open the databases of all directories."""
    for index_directory in index_directories:
        show_databases(disk, index_directory)
    for index_directory in index_directories:
        disk.remove_tree(index_directory / READY)
        disk.sync_directory(index_directory)
