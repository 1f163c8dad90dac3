"""The disks of a bookie: read-only when they are full, writable when they have room, an end when one is bad.

Inside: measuring and checking the directories, the rights that follow, announcing and remembering them, what
an operator demands. Not inside: the rule (``fullness``), the nodes (``registration``), the file's format
(``bookie_status``).
Always: what a full disk did is undone when it has room, what an operator did only by an operator; a directory
that can no longer be read or written is an error that ends the bookie, since it would fail in the middle of
something else.

Source: LedgerDirsMonitor.java, DiskChecker.java, BookieStateManager.java; reference on bookie storage 6.5.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import trio

from bookie.bookie_status import STATUS_NAME, BookieStatus, decode_status, encode_status, newest_status
from bookie.disk import Disk
from bookie.errors import DirectoryError, FormatError, StateError
from bookie.fullness import Fullness, FullnessConfig, judge
from bookie.registration import Registration
from bookie.reserve import Reserve
from bookie.service import Rights
from namespace.errors import NamespaceError

T = TypeVar("T")
log = logging.getLogger(__name__)

_CURRENT = "current"
_FILL_PAUSE_S = 0.02


class DiskWatch:
    """Keeps ``Rights`` true to the disks. On the loop; ``load``, then ``look``, then ``run``."""

    def __init__(
        self,
        rights: Rights,
        registration: Registration,
        disk: Disk,
        config: FullnessConfig,
        *,
        ledger_directories: Sequence[Path],
        journal_directories: Sequence[Path] = (),
        is_forced: bool = False,
        persists: bool = False,
        reserves: Sequence[Reserve] = (),
        wall_ms: Callable[[], int],
        on_judged: Callable[[Fullness], None] = lambda judged: None,
    ) -> None:
        """Nothing is looked at yet.

        Args:
            on_judged: Told how full the disks are, at each look.
            is_forced: Read-only until the next start, whatever the disks say.
            persists: Remember the state over restarts (``BOOKIE_STATUS``).
            reserves: Made while there is room; whoever needs them gives them up.
        """
        assert ledger_directories
        self._rights = rights
        self._registration = registration
        self._disk = disk
        self._config = config
        self._ledger_directories = tuple(ledger_directories)
        self._journal_directories = tuple(journal_directories)
        self._is_forced = is_forced
        self._persists = persists
        self._reserves = reserves
        self._wall_ms = wall_ms
        self._on_judged = on_judged
        self._has_room = True
        self._is_by_hand = False  # an operator made it read-only
        self._stored: tuple[bool, bool] | None = None  # read-only, by hand; as the files have it
        self._is_near = False
        self._changed = trio.Event()

    def __repr__(self) -> str:
        why = [
            reason
            for reason, holds in (
                ("forced", self._is_forced),
                ("by hand", self._is_by_hand),
                ("full", not self._has_room),
            )
            if holds
        ]
        return f"<DiskWatch, {'read-only: ' + ', '.join(why) if why else 'writable'}>"

    @property
    def is_by_hand(self) -> bool:
        return self._is_by_hand

    async def load(self) -> None:
        """Learn what was so before the last stop, if that is to be remembered."""
        if not self._persists:
            return
        found: list[BookieStatus] = []
        for directory in self._ledger_directories:
            path = directory / _CURRENT / STATUS_NAME
            try:
                found.append(decode_status(await self._disk.run(self._disk.read_file, path)))
            except FileNotFoundError:
                continue
            except (OSError, FormatError) as exc:
                log.warning("%s is passed over: %s", path, exc)
        status = newest_status(found)
        if status is not None:
            self._stored = status.read_only, status.by_hand
            self._is_by_hand = status.read_only and status.by_hand
            self._has_room = not status.read_only or status.by_hand
            if self._is_by_hand:
                log.warning("read-only, as an operator demanded before the last stop")

    async def look(self) -> None:
        """Measure, and set the rights accordingly.

        Raises:
            DirectoryError: A directory is bad, or full and the bookie may not become read-only.
        """
        judged = await self._measure()
        self._on_judged(judged)
        if not judged.writable and not self._config.may_be_read_only:
            raise DirectoryError(
                f"{self._figures(judged)}: the disk is full (diskUsageThreshold {self._config.full:g}), and"
                " readOnlyModeEnabled=false. Free some space"
            )
        if judged.writable != self._has_room:
            self._has_room = judged.writable
            if judged.writable:
                log.info("%s: there is room again", self._figures(judged))
            else:
                log.warning(
                    "%s: the disk is full (diskUsageThreshold %g): read-only until it is below %g",
                    self._figures(judged),
                    self._config.full,
                    self._config.low,
                )
        if judged.is_near and not self._is_near:
            log.warning("%s: the disk is filling up", self._figures(judged))
        self._is_near = judged.is_near
        self._rights.high_priority_writable = judged.high_priority_writable
        self._set_rights()

    async def run(self) -> None:
        """Look again and again; what cannot be announced or stored now is tried again at the next look.

        Raises ``DirectoryError`` as ``look`` does.
        """
        announced = self._rights.writable
        while True:
            with trio.move_on_after(self._config.check_interval_s):
                await self._changed.wait()
            self._changed = trio.Event()
            await self.look()
            writable = self._rights.writable
            await self._store_status()
            if self._has_room and not self._is_near:
                await self._fill_reserves()
            if writable == announced:
                continue
            try:
                if writable:
                    await self._registration.become_writable()
                else:
                    await self._registration.become_read_only()
            except NamespaceError as exc:
                log.warning("the change to %s waits: %s", "writable" if writable else "read-only", exc)
            else:
                announced = writable

    def set_read_only(self, read_only: bool) -> None:
        """An operator's word: read-only until he says otherwise, or free to take writes as the disks allow.

        In force on return; announced and stored by ``run``, soon.

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
        self._rights.writable = self._has_room and not self._is_forced and not self._is_by_hand

    async def _measure(self) -> Fullness:
        usages = []
        for directory in self._ledger_directories:
            usages.append(await self._in_thread(self._disk.usage, directory))
            await self._in_thread(self._disk.check_directory, directory / _CURRENT)
        for directory in self._journal_directories:
            await self._in_thread(self._disk.check_directory, directory / _CURRENT)
        return judge(
            [(usage.total_bytes, usage.free_bytes) for usage in usages],
            was_writable=self._has_room,
            config=self._config,
        )

    async def _in_thread(self, job: Callable[[Path], T], directory: Path) -> T:
        try:
            return await self._disk.run(job, directory)
        except OSError as exc:
            raise DirectoryError(
                f"the disk of {directory} is bad: {exc}. The bookie stops. Make the directory readable and"
                " writable again, or replace the disk and let recovery copy the entries from other replicas"
            ) from exc

    async def _store_status(self) -> None:
        """Write the state down if it has changed; not what ``forceReadOnlyBookie`` makes of it."""
        state = (not self._has_room or self._is_by_hand, self._is_by_hand)
        if not self._persists or state == self._stored or (self._stored is None and not state[0]):
            return
        data = encode_status(BookieStatus(state[0], self._wall_ms(), state[1]))
        stored = 0
        for directory in self._ledger_directories:
            path = directory / _CURRENT / STATUS_NAME
            try:
                await self._disk.run(self._disk.replace_file, path, data)
                stored += 1
            except OSError as exc:  # most likely full: that is why
                log.warning("%s cannot be written: %s", path, exc)
        if stored:
            self._stored = state

    async def _fill_reserves(self) -> None:
        for reserve in self._reserves:
            is_growing = True
            while is_growing:
                is_growing = await self._disk.run(reserve.fill)
                await trio.sleep(_FILL_PAUSE_S)  # others need the disk, too

    def _figures(self, judged: Fullness) -> str:
        return ", ".join(
            f"{directory} {share:.1%} used"
            for directory, share in zip(self._ledger_directories, judged.used, strict=True)
        )
