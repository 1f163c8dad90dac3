"""May this bookie serve, and what must be done first? From its directories to the moment it may answer.

The danger is a bookie that has lost what it acknowledged and does not know it: it would deny entries, and a
recovery would believe it and cut them off; or take adds of a writer whose fence it has lost. So before it
serves, a bookie that may have lost something puts every ledger that names it in limbo (``limbo``). It may
have, if

- it is new: another one may have borne its name, on disks that are gone (apache/bookkeeper#2612, #4812);
- an empty directory takes the place of a lost one (``dataIntegrityStampMissingCookies``);
- its disks are an old copy (``incarnation``);
- its last life acknowledged adds that were not synced, and did not end in an orderly way (``DIRTY``);
- a damaged journal is to be read as far as it goes, or a lost index to be derived from the entry logs;
- an earlier start saw one of these and did not come to the end (``DOUBT``).

    begin      whose disks? what may be missing? ──▶ DOUBT written ──▶ VERSION
               (the storage opens and replays)
    complete   ledgers in limbo, durably ──▶ cookie ──▶ INCARNATION raised ──▶ DOUBT removed ──▶ DIRTY
               (the port opens, the bookie is announced)
    stopped    (after the storage has been closed) DIRTY removed

Inside: that order. Not inside: each step.
Always: a crash anywhere leads to a start that does at least what this one had to do; the evidence of a loss
goes only after the ledgers concerned are in limbo.

Source: EmbeddedServer.java, DataIntegrityCookieValidation.java; reference on bookie storage 6.3 and 6.6.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from bookie import doubt
from bookie.cookie import Cookie, encode_cookie
from bookie.cookie_check import CURRENT, Examined, Verdict, examine, register, stamp
from bookie.errors import DirectoryError
from bookie.incarnation import Incarnation, Number, doubt_of
from bookie.limbo import put_in_limbo
from bookie.storage import Storage
from bookie.storage_config import StorageConfig
from ledger.paths import Layout
from namespace.store import MetadataStore

if TYPE_CHECKING:
    from bookie.disk import Disk

log = logging.getLogger(__name__)

NEW = "the bookie is new: another one may have borne its name"


@attrs.frozen(kw_only=True)
class AdmissionConfig:
    """What decides about a start, besides the disks themselves."""

    allow_expansion: bool = False  # added directories may be empty
    replace_lost_directories: bool = False  # so may lost ones
    limbo: bool = True  # False: answers are given as if nothing could ever be lost
    sync_adds: bool = True
    raise_interval_s: float = attrs.field(default=10.0, validator=attrs.validators.gt(0))


class Admission:
    """One start of one bookie. Made by ``begin_admission``."""

    def __init__(
        self,
        store: MetadataStore,
        root: str,
        layout: Layout,
        disk: Disk,
        examined: Examined,
        config: AdmissionConfig,
        reason: str | None,
    ) -> None:
        self._store, self._root, self._layout, self._disk = store, root, layout, disk
        self._examined, self._config = examined, config
        self._reason = reason
        self._ledger_directories = [Path(name) / CURRENT for name in examined.cookie.ledger_directories]
        self._incarnation = _incarnation(disk, examined)

    @property
    def doubt(self) -> str | None:
        """Why something may be missing from the disks; None if nothing is."""
        return self._reason

    @property
    def accepts_losses(self) -> bool:
        """Whether the storage may find directories empty that were not: then every ledger is in limbo."""
        return self._reason is not None and self._config.limbo and self._config.replace_lost_directories

    async def complete(self, storage: Storage) -> int:
        """Do what must be done before anybody is served; how many ledgers are in limbo now by this start.

        If cancelled, or stopped by a crash, the next start does it again.

        Raises:
            LedgerListingError: The metadata store did not answer to the end.
            CookieError: Somebody else registered the bookie meanwhile.
            DirectoryError, StorageFailedError, NamespaceError: Disks or metadata store failed.
        """
        disk, examined = self._disk, self._examined
        bookie_id = examined.cookie.bookie_id
        count = 0
        if self._reason is not None and self._config.limbo:
            count = await put_in_limbo(storage, self._store, self._root, self._layout, bookie_id)
            if count:
                log.warning(
                    "bookie %s: %d ledgers are in limbo (%s): their missing entries are denied to nobody, and"
                    " copied from the other bookies",
                    bookie_id,
                    count,
                    self._reason,
                )
        try:
            if examined.verdict is Verdict.NEW:
                await register(self._store, self._root, examined)
            if examined.verdict is not Verdict.START:
                log.info("cookie of bookie %s: %s", bookie_id, examined.verdict.value)
            await self._incarnation.raise_number(self._store)
            if self._reason is not None:
                await disk.run(doubt.clear_doubt, disk, examined.paths)
        except OSError as exc:
            raise _directory_error(bookie_id, exc) from exc
        await self._mark_running()
        return count

    async def _mark_running(self) -> None:
        sync_adds = self._config.sync_adds
        running = partial(doubt.mark_running, sync_adds=sync_adds)
        try:
            await self._disk.run(running, self._disk, self._ledger_directories)
        except OSError as exc:
            if exc.errno != errno.ENOSPC or not sync_adds:
                raise _directory_error(self._examined.cookie.bookie_id, exc) from exc
            log.warning("the disk is full: %s is not written", doubt.DIRTY)

    async def keep(self, store: Callable[[], MetadataStore], progress: Callable[[], object]) -> None:
        """While serving: let older copies of the disks be recognised later; never returns.

        Args:
            store: The session that lives now.
            progress: Differs from what it was when something was written since.
        """
        await self._incarnation.keep(store, progress, self._config.raise_interval_s)

    async def stopped(self) -> None:
        """The storage has been closed with everything on disk."""
        try:
            await self._disk.run(doubt.mark_stopped, self._disk, self._ledger_directories)
        except OSError as exc:
            log.warning("this stop will look like a crash to the next start: %s", exc)


async def begin_admission(
    store: MetadataStore,
    root: str,
    layout: Layout,
    disk: Disk,
    cookie: Cookie,
    storage_config: StorageConfig,
    *,
    possible_ids: Sequence[str] = (),
    config: AdmissionConfig | None = None,
) -> Admission:
    """Find out whose disks these are and what may be missing; afterwards the storage may be opened.

    If cancelled, or stopped by a crash, some directories may be stamped or marked; the next start goes on.

    Args:
        cookie: What the configuration says, with the cluster's instance id.
        possible_ids: All names under which this bookie may have been registered.

    Raises:
        CookieError: The disks, the configuration and the metadata store do not agree. Nothing was changed.
        DirectoryError: A directory cannot be made, read or written.
        NamespaceError: The metadata store failed.
    """
    config = config or AdmissionConfig()
    examined = await examine(
        store,
        root,
        disk,
        cookie,
        possible_ids=possible_ids,
        allow_expansion=config.allow_expansion,
        may_restamp=config.replace_lost_directories and config.limbo,
    )
    try:
        reason = await disk.run(_reason, disk, examined, storage_config)
        if reason is not None:
            await disk.run(doubt.raise_doubt, disk, examined.paths, reason)
        if examined.verdict is Verdict.EXPAND:
            # Before an added directory is stamped: one that is stamped has the number.
            assert examined.registered is not None
            before = examined.registered
            ahead = Number(before.created_ms, before.version + 1)
            await disk.run(_incarnation(disk, examined).write, ahead)
    except OSError as exc:
        raise _directory_error(cookie.bookie_id, exc) from exc
    await stamp(disk, examined)
    return Admission(store, root, layout, disk, examined, config, reason)


def _directory_error(bookie_id: str, exc: OSError) -> DirectoryError:
    return DirectoryError(
        f"the directories of bookie {bookie_id} cannot be written: {exc.strerror or exc} ({exc.filename})."
        " Let this user write there"
    )


def _reason(disk: Disk, examined: Examined, storage_config: StorageConfig) -> str | None:
    """Why something may be missing from the disks. Blocks."""
    noted = doubt.read_doubt(disk, examined.paths)
    if noted is not None:
        return noted
    if examined.verdict is Verdict.NEW:
        return NEW
    if examined.verdict is Verdict.RESTAMP:
        return f"{', '.join(examined.missing)}: empty, in the place of a lost directory"
    assert examined.registered is not None
    registered = Number(examined.registered.created_ms, examined.registered.version)
    known = [str(Path(name) / CURRENT) for name, found in examined.directories.items() if found.cookie]
    found = _incarnation(disk, examined).read()
    reason = doubt_of({name: found[name] for name in known}, registered)
    if reason is not None:
        return reason
    ledger_directories = [Path(name) / CURRENT for name in examined.cookie.ledger_directories]
    if doubt.has_lost_unsynced(disk, ledger_directories):
        return "the last life acknowledged adds that were not synced, and did not end in an orderly way"
    if storage_config.skip_damaged_journal:
        return "what is damaged in the journal is skipped"
    if storage_config.rebuild_index:
        return "a lost index is derived from the entry logs, which know of no fence"
    return None


def _incarnation(disk: Disk, examined: Examined) -> Incarnation:
    return Incarnation(disk, examined.paths, examined.node_path, encode_cookie(examined.cookie))
