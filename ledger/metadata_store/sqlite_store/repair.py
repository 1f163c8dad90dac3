"""Making a metadata store again from its second copy.

Inside: the new database in the place of a damaged, older or missing one. Not inside: the format of the
copy (``copy_format``), other processes (``ledger.deploy``).
Always: a database that the copy does not prove wrong stays; the files that were there are renamed, none is
deleted; a crash leaves no database or the new one.

Source: our own; docs/storage-format.md 7.9.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from ledger.metadata_store.errors import MetadataError
from ledger.metadata_store.sqlite_store.copy_format import CopyVerdict, read_changes, state_at
from ledger.metadata_store.sqlite_store.database import NEW_STORE, lost_store
from ledger.metadata_store.sqlite_store.image import DatabaseFiles
from ledger.metadata_store.sqlite_store.second_copy import LOST, copy_name
from ledger.metadata_store.sqlite_store.tree import compare_image
from ledger.metadata_store.store import parent_of
from ledger.runtime.private_files import create_private, sync_directory


def find_loss(database: Path) -> str | None:
    """What is wrong with the database by its second copy; None if nothing is. ``OSError``"""
    if not (database.exists() and database.stat().st_size):
        return "the file is missing or empty"
    try:
        verdict, evidence = compare_image(DatabaseFiles(database).read_if_changed() or b"", database)
    except MetadataError as exc:
        return str(exc)
    return evidence if verdict is CopyVerdict.LOST else None


def repair_store(database: Path) -> int:
    """Make the database again; return the number of the last change in it. No process may have it open.

    The ephemeral nodes belong to sessions that are over: the first process that opens it removes them.

    Raises:
        StoreLostError: The copy is missing, or its beginning is damaged. Nothing was changed.
        OSError, sqlite3.Error: It cannot be written.
    """
    changes = read_changes(_read(database.with_name(copy_name(database))))
    if not changes:
        raise lost_store(database, f"{copy_name(database)} is missing or damaged, too", is_copied=False)
    last = changes[-1]
    rows = state_at(changes, last.number)
    new = database.with_name(f"{database.name}.new")
    new.unlink(missing_ok=True)
    create_private(new)
    with closing(sqlite3.connect(new, isolation_level=None)) as opened:
        opened.executescript(NEW_STORE)
        opened.execute("PRAGMA synchronous = FULL")
        opened.execute("BEGIN")
        opened.execute("DELETE FROM node")
        opened.executemany(
            "INSERT INTO node VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [(path, "" if path == "/" else parent_of(path), *row) for path, row in rows.items()],
        )
        owners = {row[5] for row in rows.values()} - {0}
        opened.executemany("INSERT INTO session VALUES (?, 0, 0)", [(owner,) for owner in sorted(owners)])
        opened.execute("UPDATE change SET number = ?", (last.number,))
        opened.execute("INSERT INTO copied VALUES (?, ?)", (last.number, last.digest))
        opened.execute("COMMIT")
    for ending in ("-wal", "-shm", ""):
        here = database.with_name(database.name + ending)
        if here.exists():
            here.rename(here.with_name(here.name + LOST))
    new.rename(database)
    sync_directory(database.parent)
    return last.number


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
