"""The check before a start: may the disks lack entries, and which steps come before serving?

A bookie that has lost acknowledged entries and does not know it is dangerous. It denies the entries, so a
recovery closes the ledger without them; or it has lost a fence and takes adds of the fenced writer. Therefore
a bookie that may have lost entries puts every ledger that names it in limbo before it serves (``limbo``). It
may have lost entries if

- it is new: another bookie may have had its id, on disks that are gone (apache/bookkeeper#2612, #4812);
- an empty directory replaces a lost one (``dataIntegrityStampMissingCookies``);
- its disks are an old copy (``incarnation``);
- the last process acknowledged adds before they were synced, and did not stop cleanly (``DIRTY``);
- the replay skips damage in a journal, or a lost index is rebuilt from the entry logs;
- an earlier start found one of these and did not complete (``DOUBT``).

    begin_startup_check   compare cookies, look for a loss ──▶ write DOUBT ──▶ write VERSION
                          (the storage opens and replays the journal)
    complete              ledgers in limbo, durably ──▶ cookie ──▶ INCARNATION ──▶ remove DOUBT ──▶ DIRTY
                          (the port opens, the bookie is announced)
    mark_clean_stop       (after the storage was closed) remove DIRTY

Inside: the order of these steps. Not inside: the steps themselves.
Always: after a crash at any point, the next start does at least all that this start had to do. The evidence
of a loss is removed only after the ledgers concerned are in limbo.

Source: EmbeddedServer.java, DataIntegrityCookieValidation.java; docs/storage-format.md 11.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from bookie.errors import DirectoryError
from bookie.healing.limbo import put_in_limbo
from bookie.identity.cookie import Cookie, encode_cookie
from bookie.identity.cookie_check import (
    CURRENT,
    CookieCheck,
    DirectoryVerdict,
    check_cookies,
    create_cookie,
    write_version_files,
)
from bookie.identity.incarnation import Incarnation, IncarnationNumber, incarnation_mismatch
from bookie.ledger_metadata.cluster_nodes import ClusterNodes
from bookie.storage import dirty_marks
from bookie.storage.config import StorageConfig
from bookie.storage.storage import Storage
from ledger.catalog.connection_retry import retry_lost_connection
from ledger.metadata_store.store import MetadataStore
from ledger.runtime.log_lines import get_logger

if TYPE_CHECKING:
    from bookie.disk.disk import Disk

log = get_logger(__name__)

START_RETRY_S = 30.0  # a lost connection must not end a start; as long as the listing for limbo
NEW = "the bookie is new: another one may have had its id"


@attrs.frozen(kw_only=True)
class StartupCheckConfig:
    """The settings of the check."""

    allow_expansion: bool = False  # added directories may be empty
    replace_lost_directories: bool = False  # empty directories may replace lost ones
    limbo: bool = True  # False: the bookie serves as if it could never lose anything
    sync_adds: bool = True
    raise_interval_s: float = attrs.field(default=10.0, validator=attrs.validators.gt(0))


class StartupCheck:
    """One start of one bookie. Made by ``begin_startup_check``."""

    def __init__(
        self,
        nodes: ClusterNodes,
        disk: Disk,
        check: CookieCheck,
        config: StartupCheckConfig,
        loss_reason: str | None,
    ) -> None:
        self._store, self._nodes, self._disk = nodes.session(), nodes, disk
        self._check, self._config = check, config
        self.loss_reason = loss_reason  # why entries may be missing from the disks; None: none are
        self._ledger_directories = [Path(name) / CURRENT for name in check.cookie.ledger_directories]
        self._incarnation = _incarnation(disk, check)

    @property
    def accepts_losses(self) -> bool:
        """Whether the storage may start on directories that lost their data; all ledgers will be in limbo."""
        return self.loss_reason is not None and self._config.limbo and self._config.replace_lost_directories

    async def complete(self, storage: Storage) -> int:
        """Do all that must precede serving; return how many ledgers this start put in limbo.

        If cancelled, or stopped by a crash, the next start does it again.

        Raises:
            LedgerListingError: The metadata store failed before all ledgers were listed.
            CookieError: Another process registered the bookie meanwhile.
            DirectoryError, StorageFailedError, MetadataError: The disks or the metadata store failed.
        """
        disk, check = self._disk, self._check
        bookie_id = check.cookie.bookie_id
        count = 0
        if self.loss_reason is not None and self._config.limbo:
            count = await put_in_limbo(storage, self._store, self._nodes.root, self._nodes.layout, bookie_id)
            if count:
                log.warning(
                    "bookie %s: %d ledgers are in limbo (%s): the bookie denies none of their entries, and"
                    " copies the missing ones from the other bookies",
                    bookie_id,
                    count,
                    self.loss_reason,
                )
        try:
            if check.verdict is DirectoryVerdict.NEW:
                await create_cookie(self._store, self._nodes.root, check, timeout_s=START_RETRY_S)
            if check.verdict is not DirectoryVerdict.START:
                log.info("cookie of bookie %s: %s", bookie_id, check.verdict.value)
            await retry_lost_connection(
                lambda: self._incarnation.raise_number(self._store), timeout_s=START_RETRY_S
            )
            if self.loss_reason is not None:
                await disk.run(dirty_marks.remove_loss_mark, disk, check.paths)
        except OSError as exc:
            raise _directory_error(bookie_id, exc) from exc
        await self._mark_running()
        return count

    async def _mark_running(self) -> None:
        sync_adds = self._config.sync_adds
        running = partial(dirty_marks.mark_running, sync_adds=sync_adds)
        try:
            await self._disk.run(running, self._disk, self._ledger_directories)
        except OSError as exc:
            if exc.errno != errno.ENOSPC or not sync_adds:
                raise _directory_error(self._check.cookie.bookie_id, exc) from exc
            log.warning("the disk is full: %s is not written", dirty_marks.DIRTY)

    async def keep_raising_incarnation(
        self, store: Callable[[], MetadataStore], progress: Callable[[], object]
    ) -> None:
        """While serving, raise the incarnation so that later starts recognise old copies; never returns.

        Args:
            store: Returns the current session.
            progress: Returns a value that changes with each write.
        """
        await self._incarnation.keep_raising(store, progress, self._config.raise_interval_s)

    async def mark_clean_stop(self) -> None:
        """Record that the storage was closed with all its data on disk."""
        try:
            await self._disk.run(dirty_marks.mark_stopped, self._disk, self._ledger_directories)
        except OSError as exc:
            log.warning("the next start will take this stop for a crash: %s", exc)


async def begin_startup_check(
    nodes: ClusterNodes,
    disk: Disk,
    cookie: Cookie,
    storage_config: StorageConfig,
    *,
    possible_ids: Sequence[str] = (),
    config: StartupCheckConfig | None = None,
) -> StartupCheck:
    """Check whether the disks belong to the bookie and may lack entries. Open the storage after it.

    If cancelled, or stopped by a crash, some directories may have VERSION or DOUBT; the next start continues.

    Args:
        cookie: The cookie of the configuration, with the cluster's instance id.
        possible_ids: All ids under which this bookie may have been registered.

    Raises:
        CookieError: The disks, the configuration and the metadata store disagree. Nothing was changed.
        DirectoryError: A directory cannot be created, read or written.
        MetadataError: The metadata store failed. A lost connection was tried again for ``START_RETRY_S``.
    """
    config, store = config or StartupCheckConfig(), nodes.session()
    check = await retry_lost_connection(
        lambda: check_cookies(
            store,
            nodes.root,
            disk,
            cookie,
            possible_ids=possible_ids,
            allow_expansion=config.allow_expansion,
            replace_lost=config.replace_lost_directories and config.limbo,
        ),
        timeout_s=START_RETRY_S,
    )
    try:
        loss_reason = await disk.run(_possible_loss, disk, check, storage_config)
        if loss_reason is not None:
            await disk.run(dirty_marks.write_loss_mark, disk, check.paths, loss_reason)
        if check.verdict is DirectoryVerdict.EXPAND:
            # Before VERSION is written: a directory with VERSION always has the number.
            assert check.registered is not None  # ``decide`` says NEW without it
            before = check.registered
            ahead = IncarnationNumber(before.created_ms, before.version + 1)
            await disk.run(_incarnation(disk, check).write, ahead)
    except OSError as exc:
        raise _directory_error(cookie.bookie_id, exc) from exc
    await write_version_files(disk, check)
    return StartupCheck(nodes, disk, check, config, loss_reason)


def _directory_error(bookie_id: str, exc: OSError) -> DirectoryError:
    return DirectoryError(
        f"the directories of bookie {bookie_id} cannot be written: {exc.strerror or exc} ({exc.filename})."
        " Make them writable for this user"
    )


def _possible_loss(disk: Disk, check: CookieCheck, storage_config: StorageConfig) -> str | None:
    """Why entries may be missing from the disks; None if none are. Blocks."""
    noted = dirty_marks.read_loss_mark(disk, check.paths)
    if noted is not None:
        return noted
    if check.verdict is DirectoryVerdict.NEW:
        return NEW
    if check.verdict is DirectoryVerdict.REPLACE_LOST:
        return f"{', '.join(check.missing)}: empty, replacing a lost directory"
    assert check.registered is not None  # ``decide`` says NEW without it
    registered = IncarnationNumber(check.registered.created_ms, check.registered.version)
    known = [str(Path(name) / CURRENT) for name, found in check.directories.items() if found.cookie]
    found = _incarnation(disk, check).read()
    loss_reason = incarnation_mismatch({name: found[name] for name in known}, registered)
    if loss_reason is not None:
        return loss_reason
    ledger_directories = [Path(name) / CURRENT for name in check.cookie.ledger_directories]
    if dirty_marks.has_lost_unsynced(disk, ledger_directories):
        return "the last process acknowledged adds that were not synced, and did not stop cleanly"
    if storage_config.skip_damaged_journal:
        return "the replay skips damage in the journal"
    if storage_config.rebuild_index:
        return "a lost index is rebuilt from the entry logs, which have no fences"
    return None


def _incarnation(disk: Disk, check: CookieCheck) -> Incarnation:
    return Incarnation(disk, check.paths, check.node_path, encode_cookie(check.cookie))
