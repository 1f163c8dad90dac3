"""Watching a bookie's disks: a full disk makes the bookie read-only, a bad disk stops it.

Inside: measuring and checking the directories; setting, announcing and storing the rights that follow; the
operator's read-only switch. Not inside: the rule (``fullness``), the nodes (``registration``), the format of
the file (``bookie_status``).
Always: a bookie that a full disk made read-only becomes writable when there is space again; one that an
operator made read-only stays so until an operator changes it. A directory that cannot be read or written
raises an error that stops the bookie, before an add or a flush meets the same failure. Space that a reserve
has given is not space for clients: without it the bookie could not be started again.

Source: LedgerDirsMonitor.java, DiskChecker.java, BookieStateManager.java; docs/storage-format.md 10.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import attrs
import trio

from bookie.bookie_status import STATUS_NAME, BookieStatus, decode_status, encode_status, newest_status
from bookie.cluster.registration import Registration
from bookie.disk.disk import Disk
from bookie.disk.fullness import Fullness, FullnessConfig, evaluate_fullness
from bookie.disk.reserve import Reserve
from bookie.errors import DirectoryError, FormatError, SpaceAgainError, StateError
from bookie.requests.session import Rights
from ledger.metadata_store.errors import MetadataError
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tasks.failure_domain import report_contained

T = TypeVar("T")
log = get_logger(__name__)

_CURRENT = "current"
_FILL_PAUSE_S = 0.02


@attrs.frozen
class WatchedDisks:
    """The directories of one bookie, and the space that it keeps back on them."""

    disk: Disk
    ledger_directories: Sequence[Path] = attrs.field(validator=attrs.validators.min_len(1))
    journal_directories: Sequence[Path] = ()
    reserves: Sequence[Reserve] = attrs.field(default=(), kw_only=True)
    """Filled while there is enough space; the flush that needs one frees it."""
    other_reserves: Sequence[Reserve] = attrs.field(default=(), kw_only=True)
    """Filled elsewhere."""

    def usage(self, directory: Path) -> tuple[int, int]:
        """The total bytes of the directory's disk, and the bytes that clients may still use."""
        usage, here = self.disk.usage(directory), directory / _CURRENT
        given_bytes = sum(
            reserve.given_bytes()
            for reserve in (*self.reserves, *self.other_reserves)
            if reserve.directory == here
        )
        return usage.total_bytes, max(0, usage.free_bytes - given_bytes)


@attrs.frozen
class DiskWatchConfig:
    """When a bookie is read-only, besides what an operator asks for."""

    fullness: FullnessConfig
    is_forced: bool = attrs.field(default=False, kw_only=True)  # until the next start, whatever the disks
    persists: bool = attrs.field(default=False, kw_only=True)  # over restarts (``BOOKIE_STATUS``)


class DiskWatch:
    """Keeps ``Rights`` up to date. On the loop; call ``load``, then ``check``, then ``run``."""

    def __init__(
        self,
        rights: Rights,
        registration: Registration,
        disks: WatchedDisks,
        config: DiskWatchConfig,
        *,
        wall_ms: Callable[[], int],
        backlog_bytes: Callable[[], int | None] = lambda: None,
        on_fullness: Callable[[Fullness], None] = lambda fullness: None,
    ) -> None:
        """The constructor reads nothing.

        Args:
            backlog_bytes: What a storage that was opened on a full disk has to flush when it is opened again;
                None for another one.
            on_fullness: Called with the result of each check.
        """
        self._rights = rights
        self._registration = registration
        self._disks = disks
        self._disk = disks.disk
        self._config = config.fullness
        self._is_forced = config.is_forced
        self._persists = config.persists
        self._backlog_bytes = backlog_bytes
        self._free_bytes = 0  # of the fullest disk, for clients
        self._wall_ms = wall_ms
        self._on_judged = on_fullness
        self._has_space = True
        self._is_by_hand = False  # an operator made the bookie read-only
        self._stored: tuple[bool, bool] | None = None  # (read-only, by hand) in the files
        self._is_nearly_full = False
        self._changed = trio.Event()

    def __repr__(self) -> str:
        why = [
            reason
            for reason, holds in (
                ("forced", self._is_forced),
                ("by hand", self._is_by_hand),
                ("full", not self._has_space),
            )
            if holds
        ]
        return f"<DiskWatch, {'read-only: ' + ', '.join(why) if why else 'writable'}>"

    @property
    def is_by_hand(self) -> bool:
        return self._is_by_hand

    @property
    def full_share(self) -> float:
        """The used share at which a ledger disk counts as full now."""
        return self._config.full if self._has_space else self._config.low

    async def load(self) -> None:
        """Read the state that was stored before the last stop, if ``persists``."""
        if not self._persists:
            return
        found: list[BookieStatus] = []
        for directory in self._disks.ledger_directories:
            path = directory / _CURRENT / STATUS_NAME
            try:
                found.append(decode_status(await self._disk.run(self._disk.read_file, path)))
            except FileNotFoundError:
                continue
            except (OSError, FormatError) as exc:
                log.warning("%s is ignored: %s", path, exc)
        status = newest_status(found)
        if status is not None:
            self._stored = status.read_only, status.by_hand
            self._is_by_hand = status.read_only and status.by_hand
            self._has_space = not status.read_only or status.by_hand
            if self._is_by_hand:
                log.warning("read-only, because an operator set it before the last stop")

    async def check(self) -> None:
        """Measure the disks and set the rights.

        Raises:
            DirectoryError: A directory is bad; or it is full and ``readOnlyModeEnabled`` is false.
        """
        fullness = await self._measure()
        self._on_judged(fullness)
        if not fullness.writable and not self._config.may_be_read_only:
            raise DirectoryError(
                f"{self._usage_text(fullness)}: the disk is full (diskUsageThreshold {self._config.full:g}),"
                " and readOnlyModeEnabled=false. Free some space"
            )
        if fullness.writable != self._has_space:
            self._has_space = fullness.writable
            if fullness.writable:
                log.info("%s: there is space again", self._usage_text(fullness))
            else:
                log.warning(
                    "%s: the disk is full (diskUsageThreshold %g): read-only until it is below %g",
                    self._usage_text(fullness),
                    self._config.full,
                    self._config.low,
                )
        if fullness.is_near and not self._is_nearly_full:
            log.warning("%s: the disk is nearly full", self._usage_text(fullness))
        self._is_nearly_full = fullness.is_near
        self._rights.high_priority_writable = fullness.high_priority_writable and self._rights.takes_records
        self._set_rights()

    async def run(self) -> None:
        """Check at each interval; announce and store each change of the rights; never returns.

        A change that cannot be announced or stored now is tried again after the next check.

        Raises:
            DirectoryError: As ``check``.
            SpaceAgainError: The storage must be opened again to take adds.
        """
        announced = self._rights.writable
        while True:
            with trio.move_on_after(self._config.check_interval_s):
                await self._changed.wait()
            self._changed = trio.Event()
            try:
                await self.check()
                backlog_bytes = self._backlog_bytes()
                if backlog_bytes is not None and self._has_space and self._free_bytes >= backlog_bytes:
                    raise SpaceAgainError("there is space again")
                writable = self._rights.writable
                await self._store_status()
                if writable != announced and await self._announce(writable):
                    announced = writable
                # Last, and interrupted by a change: it may take seconds, and clients wait for the
                # announcement.
                if self._has_space and not self._is_nearly_full:
                    await self._fill_reserves()
            except (DirectoryError, SpaceAgainError):
                raise
            except Exception as exc:
                report_contained("watch of the disks", exc)

    async def _announce(self, writable: bool) -> bool:
        """Tell the cluster of a change; False if the metadata store cannot be reached now."""
        try:
            if writable:
                await self._registration.become_writable()
            else:
                await self._registration.become_read_only()
        except MetadataError as exc:
            state = "writable" if writable else "read-only"
            log.warning("the change to %s cannot be announced now: %s", state, exc)
            return False
        return True

    def set_read_only(self, read_only: bool) -> None:
        """Set the operator's switch: read-only until the next call, or writable as far as the disks allow.

        In force on return; ``run`` announces and stores it soon.

        Raises:
            StateError: The configuration forbids it.
        """
        if read_only and not self._config.may_be_read_only:
            raise StateError("readOnlyModeEnabled=false: this bookie may not become read-only")
        if not read_only and self._is_forced:
            raise StateError("forceReadOnlyBookie=true: start the bookie without it to take writes again")
        self._is_by_hand = read_only
        self._set_rights()
        self._changed.set()

    def _set_rights(self) -> None:
        is_held = self._backlog_bytes() is not None
        self._rights.writable = not (is_held or self._is_forced or self._is_by_hand) and self._has_space

    async def _measure(self) -> Fullness:
        usages = []
        for directory in self._disks.ledger_directories:
            usages.append(await self._in_thread(self._disks.usage, directory))
            await self._in_thread(self._disk.check_directory, directory / _CURRENT)
        for directory in self._disks.journal_directories:
            await self._in_thread(self._disk.check_directory, directory / _CURRENT)
        self._free_bytes = min(free_bytes for _, free_bytes in usages)
        return evaluate_fullness(
            usages,
            was_writable=self._has_space,
            config=self._config,
        )

    async def _in_thread(self, job: Callable[[Path], T], directory: Path) -> T:
        try:
            return await self._disk.run(job, directory)
        except OSError as exc:
            raise DirectoryError(
                f"directory {directory} cannot be used: {exc}. The bookie stops. Make it readable and"
                " writable again, or replace the disk and let recovery copy the entries from other replicas"
            ) from exc

    async def _store_status(self) -> None:
        """Store the state if it has changed, without the effect of ``forceReadOnlyBookie``."""
        state = (not self._has_space or self._is_by_hand, self._is_by_hand)
        if not self._persists or state == self._stored or (self._stored is None and not state[0]):
            return
        data = encode_status(BookieStatus(state[0], self._wall_ms(), state[1]))
        stored = 0
        for directory in self._disks.ledger_directories:
            path = directory / _CURRENT / STATUS_NAME
            try:
                await self._disk.run(self._disk.replace_file, path, data)
                stored += 1
            except OSError as exc:  # expected on a full disk
                log.warning("%s cannot be written: %s", path, exc)
        if stored:
            self._stored = state

    async def _fill_reserves(self) -> None:
        """Fill them, until there is a change to announce; the next check continues."""
        for reserve in self._disks.reserves:
            is_growing = True
            while is_growing and not self._changed.is_set():
                is_growing = await self._disk.run(reserve.fill)
                await trio.sleep(_FILL_PAUSE_S)  # leave the disk to other work

    def _usage_text(self, fullness: Fullness) -> str:
        return ", ".join(
            f"{directory} {share:.1%} used"
            for directory, share in zip(self._disks.ledger_directories, fullness.used, strict=True)
        )
