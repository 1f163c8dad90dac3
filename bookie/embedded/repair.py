"""The files of a directory's bookie while nobody has them open: finding damage, mending it, cutting them.

Inside: finding damage without a change; building the index again; taking over what is sound in the journal;
cutting off what a journal does not need.
Not inside: the metadata, the lock and the question (``ledger.deploy.repair``), which records are lost
(``dlog.cli.operators.directory_report``).
Always: the caller holds the directory's lock. Finding writes nothing. Files that were damaged are kept below
``damaged/`` with the bytes they had; nothing stored is deleted.

Source: our own; the parts are those of a bookie's start and of `dlog bookie rebuild-index`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import trio

from bookie.bookie import open_bookie
from bookie.disk.disk import Disk
from bookie.disk.overlay import OverlayDisk
from bookie.disk.real_disk import RealDisk
from bookie.embedded.garbage import ENTRY_LOG_BYTES_MAX
from bookie.entrylog.ids import entry_log_ids
from bookie.errors import BookieServerError, LogDamagedError, StartError
from bookie.index.index_factory import open_existing_index
from bookie.journal.checkpoint import Marks
from bookie.journal.files import is_spare_name
from bookie.journal.format import journal_id_of, journal_name
from bookie.journal.journals import Journals
from bookie.journal.last_mark import LastMarks, greatest_marks
from bookie.offline.index_rebuild import rebuild_indexes
from bookie.storage.config import CURRENT, StorageConfig
from ledger.deploy.directory import BOOKIE
from ledger.errors import DirectoryUnusableError
from ledger.runtime.private_files import make_private_directories, sync_directory

DAMAGED = "damaged"


@attrs.frozen
class BookieDamage:
    """The damage that a start of the bookie would refuse."""

    index: str | None  # the evidence; None: the index is sound
    journal: tuple[str, ...]  # the evidence of each damage
    journal_files: tuple[Path, ...]  # those that a start reads

    @property
    def evidence(self) -> tuple[str, ...]:
        """All evidence; empty if nothing is damaged."""
        return self.journal if self.index is None else (self.index, *self.journal)


async def find_bookie_damage(path: Path) -> BookieDamage:
    """Look for damage of index and journal in a directory. Nothing is written.

    Raises:
        DirectoryUnusableError: The files cannot be read, or have a fault of another kind.
    """
    disk = await trio.to_thread.run_sync(OverlayDisk, path / BOOKIE, lambda: None)
    current = path / BOOKIE / CURRENT
    try:
        index = await trio.to_thread.run_sync(_index_damage, disk, current)
        return await _with_journal(disk, current, index)
    except (BookieServerError, OSError) as exc:
        raise DirectoryUnusableError(f"directory {path}: its bookie cannot be checked: {exc}") from None


async def mend_bookie(path: Path, damage: BookieDamage) -> tuple[str, ...]:
    """Make the bookie of a directory usable again; the evidence of what is lost besides.

    Call it again if it was interrupted.

    Raises:
        DirectoryUnusableError: The files cannot be written, or have a fault of another kind.
    """
    disk, lost = RealDisk(), tuple[str, ...]()
    try:
        if damage.journal:
            await trio.to_thread.run_sync(_keep, path, damage.journal_files)
        if damage.index is not None:
            lost = await trio.to_thread.run_sync(_rebuild_index, disk, _config(path))
        if damage.journal:
            # Closed in order, it needs no journal any more.
            async with open_bookie(attrs.evolve(_config(path), skip_damaged_journal=True), disk=disk):
                pass
    except (BookieServerError, OSError) as exc:
        raise DirectoryUnusableError(f"directory {path}: its bookie cannot be repaired: {exc}") from None
    return lost


async def trim_journal(path: Path) -> None:
    """Give back the space that a journal has taken in advance, if it was closed in order.

    Raises:
        DirectoryUnusableError: The files cannot be read or written.
    """
    try:
        await trio.to_thread.run_sync(_trim_journal, RealDisk(), path / BOOKIE / CURRENT)
    except (BookieServerError, OSError) as exc:
        raise DirectoryUnusableError(f"directory {path}: its journal cannot be cut: {exc}") from None


def _trim_journal(disk: Disk, current: Path) -> None:
    marks = LastMarks(disk, [current], 1)
    found = greatest_marks(marks.read())
    if not all(marks.closed(found)):
        return  # what comes after the mark is needed
    for name in disk.list_directory(current):
        if is_spare_name(name):
            disk.unlink(current / name)
        elif journal_id_of(name) == found[0].journal_id:
            file = disk.open(current / name, write=True)
            try:
                if file.size() > found[0].offset:
                    file.truncate(found[0].offset)
                    file.sync()
            finally:
                file.close()
    disk.sync_directory(current)


def _config(path: Path) -> StorageConfig:
    directories: Any = (path / BOOKIE,)  # mypy takes the converter's type variable literally
    return StorageConfig(
        journal_directories=directories,
        ledger_directories=directories,
        entry_log_bytes_max=ENTRY_LOG_BYTES_MAX,
    )


def _index_damage(disk: Disk, current: Path) -> str | None:
    """The evidence that the index cannot be read; None if it can. Blocks."""
    try:
        index = open_existing_index(disk, current)
        if index is None:
            return f"{current}: the index is missing" if entry_log_ids(disk, current) else None
        try:
            for ledger_id, _ in index.ledgers():
                for _ in index.ranges(ledger_id):
                    pass
        finally:
            index.close()
    except StartError as exc:
        return exc.evidence
    except BookieServerError as exc:
        return str(exc)
    return None


async def _with_journal(disk: Disk, current: Path, index: str | None) -> BookieDamage:
    journals = Journals(disk, [current], _config(current).journal)
    marks = LastMarks(disk, [current], 1)
    found = greatest_marks(await trio.to_thread.run_sync(marks.read))
    ids = await trio.to_thread.run_sync(journals.scan)
    evidence: list[str] = []
    await journals.replay(
        ids, found, _ignore, closed=marks.closed(found), wall_ms=lambda: 0, skip_damaged=evidence.append
    )
    files = [current / journal_name(each) for each in ids[0] if each >= found[0].journal_id]
    return BookieDamage(index, tuple(evidence), tuple(files))


async def _ignore(records: Sequence[bytes], marks: Marks) -> None:
    await trio.lowlevel.checkpoint()


def _keep(path: Path, files: Sequence[Path]) -> None:
    """Copy files below ``damaged/``, each once. Blocks."""
    kept = path / DAMAGED
    make_private_directories(kept)
    for file in files:
        copy = kept / file.name
        if not copy.exists():
            new = copy.with_name(f"{copy.name}.new")
            shutil.copyfile(file, new)
            new.chmod(0o600)
            with new.open("rb") as written:
                os.fsync(written.fileno())
            new.rename(copy)
    sync_directory(kept)


def _rebuild_index(disk: Disk, config: StorageConfig) -> tuple[str, ...]:
    """Build the index again from the entry logs; the evidence of damage in them. Blocks."""
    try:
        rebuild_indexes(disk, config)
    except LogDamagedError as exc:
        rebuild_indexes(disk, config, accept_damage=True)
        return exc.damage
    return ()
