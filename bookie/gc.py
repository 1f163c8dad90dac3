"""Garbage collection: which ledgers may go, and in which order everything else is done.

Inside: the rule, a round, the endless loop, what may be asked of it from outside. Not inside: entry logs
and their compaction (``log_collector``), who says which ledgers exist (``live_ledgers``).
Always: a ledger goes only if the metadata store has confirmed, after it was seen here, that it does not
exist; a listing that fails or is cut short deletes nothing. Trouble with one ledger directory, or one log,
stops nothing elsewhere.

A ledger is in the metadata store before any of its entries can reach a bookie; hence "seen here first,
absent there afterwards" means deleted.

A round: finish what a crash interrupted; delete dead ledgers, then logs in which nothing is live; compact,
if that is due.

Source: ScanAndCompareGarbageCollector.java, GarbageCollectorThread.java; bugs it keeps out:
apache/bookkeeper #870, #876, #2264, #4596, #4607.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Protocol

import attrs
import trio

from bookie.compaction_rules import CompactionConfig, Level, due_level
from bookie.errors import StorageFailedError
from bookie.fullness import Fullness
from bookie.log_collector import LogCollector

log = logging.getLogger(__name__)

LiveLedgers = Callable[[Sequence[int]], Awaitable[Collection[int]]]
"""Given ledger ids, ascending: those of them that exist, or may exist. To leave an id out is to confirm
that the metadata store was asked about it and has no such ledger. Raises if it cannot be asked."""

Surplus = Callable[[Sequence[int], Callable[[int], Awaitable[None]]], Awaitable[Sequence[int]]]
"""Given ledger ids and how to delete one here: deletes those that this bookie holds without being in any of
their ensembles; their ids."""


class GarbageStore(Protocol):
    """What a round asks of the store."""

    def ledger_ids(self) -> list[int]: ...
    async def delete_ledger(self, ledger_id: int) -> None: ...
    @property
    def collectors(self) -> Sequence[LogCollector]: ...


@attrs.frozen(kw_only=True)
class GcConfig:
    """When garbage is looked for. When logs are compacted is each directory's (``CompactionConfig``)."""

    interval_s: float = attrs.field(default=600, validator=attrs.validators.gt(0))
    surplus_interval_s: float = 86400  # ledgers whose ensembles this bookie is not in; 0 or less: never
    metadata_requests_per_s: float = attrs.field(default=1000, validator=attrs.validators.gt(0))


@attrs.frozen
class Collected:
    """What one round let go."""

    ledger_ids: tuple[int, ...]
    log_ids: tuple[int, ...]  # counted for each ledger directory by itself
    compacted: Level | None = None


@attrs.define
class GcState:
    """What an operator may see."""

    is_running: bool = False
    is_forced: bool = False  # the running round, or the next one
    compacting: Level | None = None
    rounds: int = 0
    deleted_ledgers: int = 0
    minor_runs: int = 0
    major_runs: int = 0
    last_minor_s: float | None = None  # on the loop's clock
    last_major_s: float | None = None
    last_failure: str | None = None


@attrs.define
class _Suspended:
    minor: bool = False
    major: bool = False


def dead_ledgers(local: Iterable[int], live: Collection[int]) -> list[int]:
    """The local ledgers that are not live, ascending."""
    return sorted(set(local).difference(live))


class GarbageCollector:
    """Garbage collection of one bookie. On the loop."""

    def __init__(
        self,
        store: GarbageStore,
        live_ledgers: LiveLedgers,
        *,
        config: GcConfig | None = None,
        compaction: CompactionConfig | None = None,
        surplus: Surplus | None = None,
        delete_surplus: Callable[[int], Awaitable[None]] | None = None,
    ) -> None:
        self.state = GcState()
        self._store = store
        self._live_ledgers = live_ledgers
        self._config = config or GcConfig()
        self._compaction = compaction or CompactionConfig()
        self._surplus = surplus
        self._delete_surplus = delete_surplus or store.delete_ledger
        self._by_order = _Suspended()  # of an operator
        self._by_disk = _Suspended()
        self._is_pressed = False  # the disk is filling up, and every round is to compact
        self._forced_minor = self._forced_major = False
        self._wanted = trio.Event()
        self._began_s: float | None = None
        self._last_surplus_s: float | None = None

    def __repr__(self) -> str:
        return f"<GarbageCollector {self.state.rounds} rounds>"

    @property
    def collectors(self) -> Sequence[LogCollector]:
        """Those of the ledger directories."""
        return self._store.collectors

    # --- orders; they return at once ---

    def force(self, *, minor: bool | None = None, major: bool | None = None) -> None:
        """Have a round begin now, or after the one that runs.

        A level that is asked for is compacted even if it is suspended; without any, major compaction runs
        unless it is suspended, else minor likewise.
        """
        if minor is None and major is None:
            major = not (self._by_order.major or self._by_disk.major)
            minor = not (self._by_order.minor or self._by_disk.minor)
        self._forced_minor |= bool(minor)
        self._forced_major |= bool(major)
        self.state.is_forced = True
        self._wanted.set()

    def suspend(self, *, minor: bool = False, major: bool = False) -> None:
        """No compaction of these levels by itself until ``resume``. One that runs goes on."""
        self._by_order.minor |= minor
        self._by_order.major |= major

    def resume(self, *, minor: bool = False, major: bool = False) -> None:
        """Undo ``suspend``."""
        self._by_order.minor &= not minor
        self._by_order.major &= not major

    def suspended(self) -> tuple[bool, bool]:
        """Whether minor, and whether major compaction is suspended, by order or by a full disk."""
        return self._by_order.minor or self._by_disk.minor, self._by_order.major or self._by_disk.major

    def disks_judged(self, judged: Fullness) -> None:
        """Told how full the disks are; again and again."""
        is_near, is_full = judged.is_near, not judged.writable
        if self._compaction.forces_when_full:
            is_new = (is_near or is_full) and not self._is_pressed
            self._is_pressed = is_near or is_full
            if is_new:
                self._wanted.set()
        else:
            self._by_disk = _Suspended(minor=is_full, major=is_near or is_full)

    # --- doing ---

    async def run(self) -> None:
        """Do a round every ``interval_s``, and when forced, until cancelled or until the storage has failed.

        What a crash has interrupted is finished at once. A round that fails is logged and tried again: a
        metadata store out of reach is no reason to stop.
        """
        try:
            await self._finish_compactions()
            while True:
                with trio.move_on_after(self._config.interval_s):
                    await self._wanted.wait()
                self._wanted = trio.Event()
                try:
                    await self.run_round()
                except StorageFailedError:
                    raise
                except Exception as exc:  # the store's, whatever it is: reported here, and here it stops
                    self.state.last_failure = str(exc)
                    log.exception(
                        "garbage collection failed; the next round is in %s s", self._config.interval_s
                    )
        except StorageFailedError:
            return  # told by wait_failed

    async def run_round(self) -> Collected:
        """Do one round. What ``live_ledgers`` raises goes through, and no ledger has been deleted then.

        A cancelled round has done some of it; the next one goes on.
        """
        state = self.state
        state.is_running = True
        if self._began_s is None:
            self._began_s = trio.current_time()
        forced_minor, self._forced_minor = self._forced_minor or self._is_pressed, False
        forced_major, self._forced_major = self._forced_major or self._is_pressed, False
        try:
            await self._finish_compactions()
            dead = await self._delete_dead_ledgers()
            level = self._due(forced_minor, forced_major)
            removed: list[int] = []
            failures: list[StorageFailedError] = []
            async with trio.open_nursery() as nursery:
                for collector in self._store.collectors:
                    nursery.start_soon(self._collect, collector, level, removed, failures)
            if failures:
                raise failures[0]
        finally:
            state.is_running = state.is_forced = False
            state.compacting = None
        if level is not None:
            self._ran(level)
        state.rounds += 1
        state.deleted_ledgers += len(dead)
        if dead or removed:
            log.info("garbage: %d ledgers and %d entry logs deleted", len(dead), len(removed))
        return Collected(tuple(dead), tuple(removed), level)

    async def _finish_compactions(self) -> None:
        for collector in self._store.collectors:
            try:
                await collector.finish_compactions()
            except StorageFailedError:
                raise
            except Exception as exc:
                self._failed_in(collector, exc)

    async def _delete_dead_ledgers(self) -> list[int]:
        local = self._store.ledger_ids()
        dead = dead_ledgers(local, await self._live_ledgers(local)) if local else []
        for ledger_id in dead:
            await self._store.delete_ledger(ledger_id)
        now_s = trio.current_time()
        last_s = self._began_s if self._last_surplus_s is None else self._last_surplus_s
        interval_s = self._config.surplus_interval_s
        if self._surplus is not None and last_s is not None and 0 < interval_s <= now_s - last_s:
            self._last_surplus_s = now_s
            dead += await self._surplus(self._store.ledger_ids(), self._delete_surplus)
        return dead

    def _due(self, forced_minor: bool, forced_major: bool) -> Level | None:
        now_s = trio.current_time()
        assert self._began_s is not None
        last_minor_s = self.state.last_minor_s or self._began_s
        last_major_s = self.state.last_major_s or self._began_s
        minor_suspended, major_suspended = self.suspended()
        return due_level(
            self._compaction,
            since_minor_s=now_s - max(last_minor_s, last_major_s),
            since_major_s=now_s - last_major_s,
            is_minor_suspended=minor_suspended,
            is_major_suspended=major_suspended,
            is_minor_forced=forced_minor,
            is_major_forced=forced_major,
        )

    async def _collect(
        self,
        collector: LogCollector,
        level: Level | None,
        removed: list[int],
        failures: list[StorageFailedError],
    ) -> None:
        try:
            removed += await collector.remove_dead()
            if level is not None:
                self.state.compacting = level
                await collector.compact(level)
            await collector.fill_reserve()
        except StorageFailedError as exc:
            failures.append(exc)
        except Exception as exc:
            self._failed_in(collector, exc)

    def _failed_in(self, collector: LogCollector, error: Exception) -> None:
        """Called while the error is handled: in this directory something is left undone; others go on."""
        self.state.last_failure = str(error)
        log.exception("%s: garbage collection of its entry logs failed", collector.directory)

    def _ran(self, level: Level) -> None:
        now_s = trio.current_time()
        if level is Level.MAJOR:
            self.state.major_runs += 1
            self.state.last_major_s = now_s
        else:
            self.state.minor_runs += 1
            self.state.last_minor_s = now_s
