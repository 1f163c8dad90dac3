"""`dlog bookie rebuild-index`: rebuild the indexes of a stopped bookie and put them in place at the end.

Inside: which directories, the locks, building beside the old index. Not inside: reading the old index
(``index_source``) and entry logs (``rebuild``); names and the exchange (``index_places``); the journal, which
the bookie replays at its next start.
Always: the old index stays untouched until the new one is complete and synced. A crash during the exchange
leaves a directory without a complete index. No bookie starts on it, and the next call finishes the exchange.

If the data of all ledgers can be read from the old index, they are kept, with keys and fences. Entries of
other ledgers are left out: those ledgers were deleted. In this way an index of one kind is exchanged for one
of the other kind. Otherwise every ledger found is fenced and its key is unknown.

Apache's databases, old or new, are compared entry by entry with the entry logs. They are only written if
everything that they must contain is known.

Source: LocationsIndexRebuildOp.java, LedgersIndexRebuildOp.java, InterleavedStorageRegenerateIndexOp.java.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import attrs

from bookie.damage.conversion_check import check_conversion
from bookie.damage.rebuild import (
    Progress,
    RebuildStats,
    foreign_marks,
    logs_with_entries,
    put_in_limbo,
    rebuild_from_logs,
)
from bookie.disk.disk import Disk
from bookie.entrylog.format import entry_log_name
from bookie.errors import BookieServerError, LogDamagedError, StartError
from bookie.index.apache_databases import ApacheDatabases
from bookie.index.apache_refusal import DATABASES, refuse_apache, shows_databases
from bookie.index.entry_index import EntryIndex
from bookie.index.index_factory import IndexConfig, IndexKind, open_index
from bookie.index.index_view import IndexBuild
from bookie.journal.format import decode_mark, encode_mark
from bookie.offline.index_places import (
    READY,
    REBUILDING,
    exchange_index,
    finish_databases,
    has_sealed_databases,
    seal_databases,
)
from bookie.offline.index_source import IndexSource, open_source, read_source
from bookie.storage.config import CURRENT, LOCK, StorageConfig
from bookie.storage.directory_set import DirectorySet
from bookie.storage.dirty_marks import has_lost_unsynced, read_loss_mark, write_loss_mark
from ledger.runtime.log_lines import get_logger

log = get_logger(__name__)


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
    to_databases: bool = False,
    fences_unreadable: bool = True,
    accept_damage: bool = False,
    progress: Progress = lambda done: None,
) -> list[RebuiltDirectory]:
    """Rebuild the indexes of all ledger directories from their entry logs. Blocks.

    Args:
        to_databases: Build the databases of Apache's DbLedgerStorage, not an index of the configured kind.
        fences_unreadable: If databases of Apache's are there and cannot be read, fence every ledger.
            Otherwise ``StartError``.
        accept_damage: Continue if a log is damaged. All ledgers of that directory are put in limbo then.
            Not with ``to_databases``.
        progress: Called with the number of bytes read so far, of ``entry_log_bytes``.

    Raises:
        DirectoryInUseError: The bookie runs. Nothing was changed.
        StartError: The directories do not belong together, or databases of Apache's, old or new, do not agree
            with the entry logs. No index was exchanged.
        LogDamagedError: A log cannot be read to its end. No index was exchanged.
        OSError: A disk fails or is full. The old indexes are unchanged. During the exchange, an index may be
            missing instead; call this function again.
    """
    with locked(disk, config):
        pairs = directories_of(config)
        DirectorySet(disk, [directory for directory, _ in pairs]).check()
        is_foreign = any(foreign_marks(disk, directory) for directory, _ in pairs)
        sources = [
            read_source(disk, index_directory, is_foreign=is_foreign, fences_unreadable=fences_unreadable)
            for _, index_directory in pairs
        ]
        is_finishing = to_databases and any(has_sealed_databases(disk, one) for _, one in pairs)
        _check_target(disk, config, sources, to_databases=to_databases, is_finishing=is_finishing)
        rebuild = _Rebuild(
            disk=disk,
            config=None if to_databases else config.index,
            is_foreign=is_foreign,
            is_finishing=is_finishing,
            accept_damage=accept_damage and not to_databases,
        )
        for (directory, _), source in zip(pairs, sources, strict=True):
            rebuild.homes.update(dict.fromkeys(source.ledgers or (), directory))
        built: list[RebuiltDirectory] = []
        done = 0
        for (directory, index_directory), source in zip(pairs, sources, strict=True):
            so_far = partial(_after, progress, done)
            one = rebuild.build(directory, index_directory, source, so_far)
            done += one.stats.bytes
            built.append(one)
        if any(not one.kept_ledger_data or one.stats.damage for one in built):
            # The fences of ledgers without entries are lost: only the metadata store lists these ledgers.
            _note_loss(disk, config, "an index was rebuilt from entry logs, which contain no fences")
        if any(source.is_uncertain for source in sources):
            _note_loss(disk, config, "Apache's bookie has not finished its check for missing entries")
        # Only after all builds: an error in one build leaves all old indexes in place.
        for _, index_directory in pairs:
            rebuild.exchange(index_directory)
        # The last step: until then no bookie starts on a part of the directories.
        if to_databases:
            finish_databases(disk, [index_directory for _, index_directory in pairs])
            return built
        for directory, _ in pairs:
            for path in foreign_marks(disk, directory):
                disk.replace_file(path, encode_mark(decode_mark(disk.read_file(path))))
        return built


def take_over_page_files(disk: Disk, config: StorageConfig) -> list[RebuiltDirectory]:
    """If Apache's bookie has run on our page files, make the index again from all that it wrote. Blocks.

    Keys and fences come from its page files and ours, locations from the entry logs. The journal, which it
    may have left behind, is replayed afterwards, as at any start. A directory that it has not used stays as
    it is. If this is interrupted, the next call finishes it.

    Returns:
        The new indexes; empty if Apache's bookie has not run.

    Raises:
        StartError: Its page files cannot be read. Nothing was changed.
        DirectoryInUseError, LogDamagedError, OSError: As ``rebuild_indexes``.
    """
    pairs = directories_of(config)
    if config.index.kind is not IndexKind.PAGES or not any(
        foreign_marks(disk, directory) for directory, _ in pairs
    ):
        return []
    empty = 0
    with locked(disk, config):
        for directory, index_directory in pairs:
            names = disk.list_directory(index_directory)
            source = read_source(disk, index_directory, is_foreign=True, fences_unreadable=False)
            if source.ledgers is None and READY not in names and REBUILDING not in names:
                if not logs_with_entries(disk, directory):
                    empty += 1  # nothing was stored, and ``check_index`` makes sure of it
                    continue
                raise StartError(
                    f"{index_directory}: Apache's bookie has written here, and its page files, which have"
                    " keys and fences, cannot be read. Let `dlog bookie rebuild-index` take entries from the"
                    " entry logs; that fences every ledger"
                )
    if empty == len(pairs):
        return []
    log.warning("Apache's bookie has used these directories: the index is made again from the entry logs")
    began_s = time.monotonic()
    built = rebuild_indexes(disk, config, fences_unreadable=False)
    log.info("%d indexes made again in %.1f s", len(built), time.monotonic() - began_s)
    return built


def _check_target(
    disk: Disk,
    config: StorageConfig,
    sources: list[IndexSource],
    *,
    to_databases: bool,
    is_finishing: bool,
) -> None:
    """Refuse a conversion that would lose something. Changes nothing."""
    pairs = directories_of(config)
    for number, ((_, index_directory), source) in enumerate(zip(pairs, sources, strict=True)):
        has_begun = has_sealed_databases(disk, index_directory)
        if not to_databases:
            if has_begun and source.ledgers is None:
                raise StartError(
                    f"{index_directory}: a conversion to Apache's databases was interrupted. Let `dlog bookie"
                    " convert-index --to databases` finish it, and convert again afterwards"
                )
            continue
        if is_finishing and (source.has_databases or (has_begun and source.ledgers is None)):
            continue
        if source.has_databases:
            raise StartError(
                f"{index_directory} has the databases of Apache's DbLedgerStorage already: start Apache's"
                " bookie"
            )
        if source.ledgers is None:
            raise StartError(
                f"{index_directory}: keys and fences of ledgers cannot be read from the old index, and"
                " Apache's databases must contain them. Nothing was changed. If a conversion with another"
                " --to was interrupted, finish it first; otherwise `dlog bookie rebuild-index` makes a new"
                " index"
            )
        for ledger_id in source.ledgers:
            if ledger_id % len(pairs) != number:
                raise StartError(
                    f"{index_directory} has ledger {ledger_id}, and Apache's DbLedgerStorage looks for it"
                    f" in {pairs[ledger_id % len(pairs)][1]}: the remainder of the id selects one of"
                    f" {len(pairs)} directories. Nothing was changed. Use `--to pages` and"
                    " SortedLedgerStorage"
                )
    if not to_databases:
        return
    paths = [path / CURRENT for path in config.ledger_directories]
    reason = read_loss_mark(disk, paths)
    if reason is None and has_lost_unsynced(disk, paths):
        reason = "it acknowledged adds before they were synced, and was not stopped cleanly"
    if reason is not None:
        raise StartError(
            f"{paths[0]}: acknowledged entries may be missing ({reason}). Apache's bookie would deny them."
            " Nothing was changed. Start this bookie once, which puts its ledgers in limbo, and stop it"
        )


def _note_loss(disk: Disk, config: StorageConfig, reason: str) -> None:
    write_loss_mark(disk, [path / CURRENT for path in config.ledger_directories], reason)


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
        for _, index_directory in directories_of(config):
            for name in DATABASES:
                unlocks.append(disk.lock_apache_database(index_directory / name))
        yield
    finally:
        for unlock in unlocks:
            unlock()


def _after(progress: Progress, done: int, at: int) -> None:
    progress(done + at)


@attrs.frozen(kw_only=True)
class _Rebuild:
    """One pass over the directories: the new indexes, and then their exchange."""

    disk: Disk
    config: IndexConfig | None  # None: Apache's databases
    is_foreign: bool
    is_finishing: bool
    accept_damage: bool
    homes: dict[int, Path] = attrs.field(factory=dict)  # the directory of each ledger found so far

    def build(
        self, directory: Path, index_directory: Path, source: IndexSource, progress: Progress
    ) -> RebuiltDirectory:
        """Build the new index in its staging directory."""
        disk, config = self.disk, self.config
        staging, known = index_directory / REBUILDING, source.ledgers
        names = disk.list_directory(index_directory)
        if config is None:
            has_begun = self.is_finishing and (source.has_databases or known is None)
        else:
            has_begun = known is None and any(
                name in names and _is_complete(disk, index_directory / name, config)
                for name in (READY, REBUILDING)
            )
        if has_begun:
            # The last exchange was interrupted. No bookie has run since then: it would have refused to start.
            return RebuiltDirectory(
                directory=directory,
                stats=RebuildStats(),
                kept_ledger_data=config is None,
                was_finished=True,
            )
        disk.remove_tree(index_directory / READY)
        disk.remove_tree(staging)
        disk.make_directory(staging)
        index = (
            ApacheDatabases(disk, staging, create=True)
            if config is None
            else open_index(disk, staging, config)
        )
        try:
            log_ids = logs_with_entries(disk, directory)
            stats = rebuild_from_logs(
                disk,
                directory,
                index,
                log_ids,
                known=known,
                accept_damage=self.accept_damage,
                progress=progress,
            )
            stats.fenced += len(source.unlisted)
            found = stats.skipped_ledgers.union(ledger_id for ledger_id, _ in index.ledgers())
            for ledger_id in sorted(found):
                if self.homes.setdefault(ledger_id, directory) != directory:
                    raise StartError(
                        f"ledger {ledger_id} has entries in {directory} and belongs to"
                        f" {self.homes[ledger_id]}: one of them is an old copy, or an index directory is"
                        " configured for another ledger directory than before. No index was exchanged"
                    )
            if stats.damage and not self.accept_damage:
                raise LogDamagedError(directory, stats.damage)
            is_compared = config is None or source.has_databases or self.accept_damage
            if is_compared and known is not None and not stats.damage:
                self._compare(directory, index_directory, source, index, stats)
            if isinstance(index, EntryIndex):
                index.mark_complete()
            index.sync()
        finally:
            index.close()
        disk.sync_directory(index_directory)
        return RebuiltDirectory(directory=directory, stats=stats, kept_ledger_data=known is not None)

    def _compare(
        self,
        directory: Path,
        index_directory: Path,
        source: IndexSource,
        index: IndexBuild,
        stats: RebuildStats,
    ) -> None:
        """Compare the new index with the old one, ledger by ledger."""
        try:
            with open_source(self.disk, index_directory, source, is_foreign=self.is_foreign) as (
                old,
                ledgers,
            ):
                stats.entries = check_conversion(self.disk, directory, old, index, ledgers)
        except StartError as exc:
            if not self.accept_damage:
                raise
            stats.damage.append(str(exc))
            put_in_limbo(index)

    def exchange(self, index_directory: Path) -> None:
        """Put the new index in the place of the old one."""
        disk = self.disk
        if self.is_finishing and shows_databases(disk, index_directory):
            return  # the last call was interrupted just before its end
        refuse_apache(disk, index_directory, has_page_files=False)  # none may start in the middle
        if self.config is None:
            seal_databases(disk, index_directory)
        exchange_index(disk, index_directory)
        has_page_files = self.config is not None and self.config.kind is IndexKind.PAGES
        refuse_apache(disk, index_directory, has_page_files=has_page_files)


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
