"""`dlog bookie rebuild-index`: rebuild the indexes of a stopped bookie and put them in place at the end.

Inside: which directories, the locks, what is kept of an old index, building beside it, the exchange.
Not inside: reading entry logs (``rebuild``); the journal, which the bookie replays at its next start.
Always: the old index stays untouched until the new one is complete and synced. A crash during the exchange
leaves a directory without a complete index. No bookie starts on it, and the next call finishes the exchange.

Below ``current`` of an index directory:

index.rebuilding   the new index, as it will be below ``current``
index.ready        the same, after the old index has been moved away
index.replaced     the index that the last rebuild replaced; the next one deletes it

If the data of all ledgers can be read from the old index, they are kept, with keys and fences. Entries of
other ledgers are left out: those ledgers were deleted. In this way an index of one kind is exchanged for one
of the other kind. Otherwise every ledger found is fenced and its key is unknown.

Source: LocationsIndexRebuildOp.java, LedgersIndexRebuildOp.java, InterleavedStorageRegenerateIndexOp.java.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs

from bookie.damage.rebuild import (
    Progress,
    RebuildStats,
    foreign_marks,
    logs_with_entries,
    rebuild_from_logs,
)
from bookie.disk.disk import Disk
from bookie.entrylog.format import entry_log_name
from bookie.errors import BookieServerError, LogDamagedError, StartError
from bookie.index.apache_refusal import refuse_apache, stops_page_files
from bookie.index.index_factory import (
    INDEX_DIRECTORY,
    IndexConfig,
    IndexKind,
    open_index,
    read_ledger_data,
)
from bookie.index.index_view import PageFilesView
from bookie.journal.format import RECORD_IDS, decode_mark, encode_mark
from bookie.ledger_record import LedgerData
from bookie.storage.config import CURRENT, LOCK, StorageConfig
from bookie.storage.directory_set import DirectorySet
from bookie.storage.dirty_marks import write_loss_mark

log = logging.getLogger(__name__)

REBUILDING, READY, REPLACED = "index.rebuilding", "index.ready", "index.replaced"
_PAGE_DIRECTORY = re.compile(r"[0-9a-f]{1,2}")  # the first two of an index file's path


@attrs.frozen(kw_only=True)
class RebuiltDirectory:
    """The result for one ledger directory."""

    directory: Path
    stats: RebuildStats
    kept_ledger_data: bool  # the data of the old index were kept, and no ledger was fenced
    was_finished: bool = False  # only an interrupted exchange was finished; no log was read


def rebuild_indexes(
    disk: Disk,
    config: StorageConfig,
    *,
    accept_damage: bool = False,
    progress: Progress = lambda done: None,
) -> list[RebuiltDirectory]:
    """Rebuild the indexes of all ledger directories from their entry logs. Blocks.

    Args:
        accept_damage: Continue if a log is damaged. All ledgers of that directory are put in limbo then.
        progress: Called with the number of bytes read so far, of ``entry_log_bytes``.

    Raises:
        DirectoryInUseError: The bookie runs. Nothing was changed.
        StartError: The directories do not belong together. No index was exchanged.
        LogDamagedError: A log cannot be read to its end. No index was exchanged.
        OSError: A disk fails or is full. The old indexes are unchanged. During the exchange, an index may be
            missing instead; call this function again.
    """
    with locked(disk, config):
        pairs = directories_of(config)
        DirectorySet(disk, [directory for directory, _ in pairs]).check()
        is_foreign = any(foreign_marks(disk, directory) for directory, _ in pairs)
        known = [
            _old_ledger_data(disk, index_directory, is_foreign=is_foreign) for _, index_directory in pairs
        ]
        homes: dict[int, Path] = {}
        for (directory, _), ledgers in zip(pairs, known, strict=True):
            homes.update(dict.fromkeys(ledgers or (), directory))
        built: list[RebuiltDirectory] = []
        done = 0
        for (directory, index_directory), ledgers in zip(pairs, known, strict=True):
            one = _build(
                disk,
                directory,
                index_directory,
                config.index,
                known=ledgers,
                homes=homes,
                accept_damage=accept_damage,
                progress=lambda at, done=done: progress(done + at),  # type: ignore[misc]
            )
            done += one.stats.bytes
            built.append(one)
        if any(not one.kept_ledger_data or one.stats.damage for one in built):
            # The fences of ledgers without entries are lost: only the metadata store lists these ledgers.
            paths = [path / CURRENT for path in config.ledger_directories]
            write_loss_mark(disk, paths, "an index was rebuilt from entry logs, which contain no fences")
        # Only after all builds: an error in one build leaves all old indexes in place.
        for _, index_directory in pairs:
            refuse_apache(disk, index_directory, has_page_files=False)  # none may start in the middle
            _exchange(disk, index_directory)
            refuse_apache(disk, index_directory, has_page_files=config.index.kind is IndexKind.PAGES)
        # The last step: until then a bookie refuses to start with an index that lacks Apache's entries.
        for directory, _ in pairs:
            for path in foreign_marks(disk, directory):
                disk.replace_file(path, encode_mark(decode_mark(disk.read_file(path))))
        return built


def entry_log_bytes(disk: Disk, config: StorageConfig) -> int:
    """The size of all entry logs, which a rebuild reads."""
    total = 0
    for directory, _ in directories_of(config):
        for log_id in logs_with_entries(disk, directory):
            file = disk.open(directory / entry_log_name(log_id))
            total += file.size()
            file.close()
    return total


def directories_of(config: StorageConfig) -> list[tuple[Path, Path]]:
    """Each ledger directory, with the directory of its index."""
    ledgers = [path / CURRENT for path in config.ledger_directories]
    return list(zip(ledgers, [path / CURRENT for path in config.index_directories] or ledgers, strict=True))


@contextlib.contextmanager
def locked(disk: Disk, config: StorageConfig) -> Iterator[None]:
    """Lock the directories as a running bookie does.

    Raises:
        DirectoryInUseError: Another process has locked one.
        FileNotFoundError: A directory is missing.
    """
    unlocks: list[Callable[[], None]] = []
    try:
        for path in dict.fromkeys(
            (*config.journal_directories, *config.ledger_directories, *config.index_directories)
        ):
            disk.list_directory(path / CURRENT)  # a missing directory is an error of the configuration
            unlocks.append(disk.lock(path / CURRENT / LOCK))
        yield
    finally:
        for unlock in unlocks:
            unlock()


def _build(
    disk: Disk,
    directory: Path,
    index_directory: Path,
    config: IndexConfig,
    *,
    known: dict[int, LedgerData] | None,
    homes: dict[int, Path],
    accept_damage: bool,
    progress: Progress,
) -> RebuiltDirectory:
    staging = index_directory / REBUILDING
    names = disk.list_directory(index_directory)
    if known is None and any(
        name in names and _is_complete(disk, index_directory / name, config) for name in (READY, REBUILDING)
    ):
        # The last exchange was interrupted. No bookie has run since then: it would have refused to start.
        return RebuiltDirectory(
            directory=directory, stats=RebuildStats(), kept_ledger_data=False, was_finished=True
        )
    disk.remove_tree(index_directory / READY)
    disk.remove_tree(staging)
    disk.make_directory(staging)
    index = open_index(disk, staging, config)
    try:
        log_ids = logs_with_entries(disk, directory)
        stats = rebuild_from_logs(
            disk, directory, index, log_ids, known=known, accept_damage=accept_damage, progress=progress
        )
        found = stats.skipped_ledgers.union(ledger_id for ledger_id, _ in index.ledgers())
        for ledger_id in sorted(found):
            if homes.setdefault(ledger_id, directory) != directory:
                raise StartError(
                    f"ledger {ledger_id} has entries in {directory} and belongs to {homes[ledger_id]}: one of"
                    " them is an old copy, or an index directory is configured for another ledger directory"
                    " than before. No index was exchanged"
                )
        if stats.damage and not accept_damage:
            raise LogDamagedError(directory, stats.damage)
        index.mark_complete()
        index.sync()
    finally:
        index.close()
    disk.sync_directory(index_directory)
    return RebuiltDirectory(directory=directory, stats=stats, kept_ledger_data=known is not None)


def _old_ledger_data(disk: Disk, index_directory: Path, *, is_foreign: bool) -> dict[int, LedgerData] | None:
    """The data of all ledgers from a complete index of either kind; None if no such index can be read.

    ``is_foreign``: Apache's bookie has run last. Then its index files count, too. An old index is not enough:
    it lacks the ledgers that are in Apache's files only, and they would be taken for deleted ones.
    """
    ours: dict[int, LedgerData] | None = None
    names = disk.list_directory(index_directory)
    try:
        if INDEX_DIRECTORY in names:
            ours = read_ledger_data(disk, index_directory)
        has_begun = READY in names or (
            ours is None and REBUILDING in names and stops_page_files(disk, index_directory)
        )
        if not is_foreign or has_begun:  # an exchange that has begun has moved a part of the page files
            return ours
        theirs = dict(PageFilesView(disk, index_directory).ledgers())
    except (BookieServerError, OSError) as exc:
        log.warning("%s: the old index cannot be read: %s", index_directory, exc)
        return None
    return _merged(ours or {}, theirs) if theirs else None


def _merged(ours: dict[int, LedgerData], theirs: dict[int, LedgerData]) -> dict[int, LedgerData]:
    """The data from both indexes: a fence counts if either has it."""
    merged = dict(ours)
    for ledger_id, data in theirs.items():
        known = ours.get(ledger_id, data)
        lac = -1  # Apache's bookie may have added entries since; the last one has it
        if data.explicit_lac is not None:
            lac = RECORD_IDS.unpack_from(data.explicit_lac)[1]
        merged[ledger_id] = attrs.evolve(
            known,
            master_key=data.master_key or known.master_key,
            fenced=data.fenced or known.fenced,
            explicit_lac=data.explicit_lac or known.explicit_lac,
            lac=max(known.lac, lac),
        )
    return merged


def _is_complete(disk: Disk, directory: Path, config: IndexConfig) -> bool:
    try:
        index = open_index(disk, directory, config)
    except (BookieServerError, OSError):
        return False
    try:
        return index.is_complete
    except (BookieServerError, OSError):
        return False
    finally:
        index.close()


def _exchange(disk: Disk, index_directory: Path) -> None:
    """Put the new index in place of the old one.

    The key-value map makes an index complete: the old map is moved away first, the new one is put there last.
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
    disk.rename(ready / INDEX_DIRECTORY, index_directory / INDEX_DIRECTORY)
    disk.sync_directory(index_directory)
    disk.remove_tree(ready)
