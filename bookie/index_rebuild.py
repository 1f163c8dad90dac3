"""`dlog bookie rebuild-index`: an index derived anew while the bookie does not run, put in place at the end.

Inside: which directories, the locks, what of an old index still counts, building beside it, the exchange.
Not inside: reading entry logs (``rebuild``); the journal, which the bookie replays at its next start.
Always: until the new index is complete and synced nothing of the old one is touched; a crash in the exchange
leaves a directory without a complete index, which no bookie starts on, and the next call finishes it.

Below ``current`` of an index directory:

index.rebuilding   the new index, as it will be below ``current``
index.ready        the same, once the old one is out of the way
index.replaced     what the last rebuild took away; the next one deletes it

If the old index can still tell the data of all ledgers, they are kept, keys and fences too, and entries of
other ledgers stay away: they were deleted. That is how an index is exchanged for one of the other kind.
Otherwise every ledger found is fenced and its key is unknown.

Source: LocationsIndexRebuildOp.java, LedgersIndexRebuildOp.java, InterleavedStorageRegenerateIndexOp.java.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs

from bookie.directory_set import DirectorySet
from bookie.disk import Disk
from bookie.doubt import raise_doubt
from bookie.entry_log_format import entry_log_name
from bookie.errors import BookieServerError, LogDamagedError, StartError
from bookie.index_kinds import INDEX_DIRECTORY, IndexConfig, open_index, stored_ledger_data
from bookie.ledgers import LedgerData
from bookie.rebuild import Derived, Progress, derive, logs_with_entries
from bookie.storage_config import CURRENT, LOCK, StorageConfig

log = logging.getLogger(__name__)

REBUILDING, READY, REPLACED = "index.rebuilding", "index.ready", "index.replaced"
_PAGE_DIRECTORY = re.compile(r"[0-9a-f]{1,2}")  # the first two of an index file's path


@attrs.frozen(kw_only=True)
class RebuiltDirectory:
    """What was done in one ledger directory."""

    directory: Path
    derived: Derived
    kept_ledger_data: bool  # of the old index: nothing had to be fenced
    was_finished: bool = False  # an exchange that was interrupted; nothing was read


def rebuild_indexes(
    disk: Disk,
    config: StorageConfig,
    *,
    accept_damage: bool = False,
    progress: Progress = lambda done: None,
) -> list[RebuiltDirectory]:
    """Derive the indexes of all ledger directories from their entry logs. Blocks.

    Args:
        accept_damage: Go on where a log is damaged; all ledgers of that directory are put in limbo then.
        progress: Told the bytes read so far, of ``entry_log_bytes``.

    Raises:
        DirectoryInUseError: The bookie runs. Nothing was changed.
        StartError: The directories do not fit each other. No index was exchanged.
        LogDamagedError: A log cannot be read to its end. No index was exchanged.
        OSError: A disk fails, or is full. The indexes are as they were; missing, if it was in the exchange.
    """
    with locked(disk, config):
        pairs = directories_of(config)
        DirectorySet(disk, [directory for directory, _ in pairs]).check()
        known = [_old_ledger_data(disk, index_directory) for _, index_directory in pairs]
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
            done += one.derived.bytes
            built.append(one)
        if any(not one.kept_ledger_data or one.derived.damage for one in built):
            # Fences of ledgers without entries are gone with it: only the metadata store knows of those.
            paths = [path / CURRENT for path in config.ledger_directories]
            raise_doubt(disk, paths, "an index was derived from entry logs, which know of no fence")
        # Not before all of them are there: what stops one build leaves all indexes as they were.
        for _, index_directory in pairs:
            _exchange(disk, index_directory)
        return built


def entry_log_bytes(disk: Disk, config: StorageConfig) -> int:
    """How much there is to read."""
    total = 0
    for directory, _ in directories_of(config):
        for log_id in logs_with_entries(disk, directory):
            file = disk.open(directory / entry_log_name(log_id))
            total += file.size()
            file.close()
    return total


def directories_of(config: StorageConfig) -> list[tuple[Path, Path]]:
    """Each ledger directory with the one of its index."""
    ledgers = [path / CURRENT for path in config.ledger_directories]
    return list(zip(ledgers, [path / CURRENT for path in config.index_directories] or ledgers, strict=True))


@contextlib.contextmanager
def locked(disk: Disk, config: StorageConfig) -> Iterator[None]:
    """Hold the locks a bookie would hold. ``DirectoryInUseError`` if one does; ``FileNotFoundError``."""
    unlocks: list[Callable[[], None]] = []
    try:
        for path in dict.fromkeys(
            (*config.journal_directories, *config.ledger_directories, *config.index_directories)
        ):
            disk.list_directory(path / CURRENT)  # a directory that is not there is a wrong configuration
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
        # The last exchange was interrupted. No bookie has run since: it would have refused.
        return RebuiltDirectory(
            directory=directory, derived=Derived(), kept_ledger_data=False, was_finished=True
        )
    disk.remove_tree(index_directory / READY)
    disk.remove_tree(staging)
    disk.make_directory(staging)
    index = open_index(disk, staging, config)
    try:
        log_ids = logs_with_entries(disk, directory)
        derived = derive(
            disk, directory, index, log_ids, known=known, accept_damage=accept_damage, progress=progress
        )
        found = derived.skipped_ledgers.union(ledger_id for ledger_id, _ in index.ledgers())
        for ledger_id in sorted(found):
            if homes.setdefault(ledger_id, directory) != directory:
                raise StartError(
                    f"ledger {ledger_id} has entries in {directory} and belongs to {homes[ledger_id]}: one of"
                    " them is an old copy, or an index directory is configured for another ledger directory"
                    " than before. No index was exchanged"
                )
        if derived.damage and not accept_damage:
            raise LogDamagedError(directory, derived.damage)
        index.mark_complete()
        index.sync()
    finally:
        index.close()
    disk.sync_directory(index_directory)
    return RebuiltDirectory(directory=directory, derived=derived, kept_ledger_data=known is not None)


def _old_ledger_data(disk: Disk, index_directory: Path) -> dict[int, LedgerData] | None:
    """The data of all ledgers, if there is a complete index, of either kind, that can tell them."""
    if INDEX_DIRECTORY not in disk.list_directory(index_directory):
        return None
    try:
        return stored_ledger_data(disk, index_directory)
    except (BookieServerError, OSError) as exc:
        log.warning("%s: the old index cannot be read: %s", index_directory, exc)
        return None


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
    """Put the new index in place of the old. The map, by which one is complete, leaves first, comes last."""
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
        # From here on whatever lies beside it is new.
        disk.rename(staging, ready)
        disk.sync_directory(index_directory)
    new = disk.list_directory(ready)
    for name in filter(_PAGE_DIRECTORY.fullmatch, new):
        disk.rename(ready / name, index_directory / name)
    disk.sync_directory(index_directory)
    disk.sync_directory(ready)
    # A bookie that was refused has left an empty one.
    disk.remove_tree(index_directory / INDEX_DIRECTORY)
    disk.rename(ready / INDEX_DIRECTORY, index_directory / INDEX_DIRECTORY)
    disk.sync_directory(index_directory)
    disk.remove_tree(ready)
