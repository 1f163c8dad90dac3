"""Garbage collection of a bookie: deletes dead ledgers, then collects the entry logs.

Inside: the rule for dead ledgers, a round, the loop over rounds, the operator's commands. Not inside: entry
logs and their compaction (``log_collector``), the list of existing ledgers (``live_ledgers``).
Always: a local ledger is deleted only if the metadata store has confirmed, after the local listing, that it
does not exist. A listing that fails or is incomplete deletes nothing. A failure in one ledger directory or
one log does not stop the others.

A ledger is in the metadata store before any of its entries can reach a bookie. So a ledger that was listed
here first, and is absent there afterwards, was deleted.

A round: finish interrupted compactions, delete dead ledgers, delete logs without live entries, compact if
that is due.

Source: ScanAndCompareGarbageCollector.java, GarbageCollectorThread.java; it avoids apache/bookkeeper #870,
#876, #2264, #4596, #4607.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Protocol

import attrs
import trio

from bookie.disk.fullness import Fullness
from bookie.errors import ClusterRestoredError, StorageFailedError
from bookie.gc.compaction_rules import CompactionConfig, CompactionLevel, due_level
from bookie.gc.log_collector import LogCollector
from ledger.metadata_store.errors import ConnectionLostError, SessionExpiredError, StoreUnreachableError
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tasks.failure_domain import report_contained

STORE_AWAY = (ConnectionLostError, SessionExpiredError, StoreUnreachableError, ClusterRestoredError)

log = get_logger(__name__)

LiveLedgers = Callable[[Sequence[int]], Awaitable[Collection[int]]]
"""Takes ledger ids, ascending; returns those that exist or may exist. For each omitted id the metadata store
has confirmed that it has no such ledger. Raises if the store cannot be read."""

DeleteOverReplicated = Callable[[Sequence[int], Callable[[int], Awaitable[None]]], Awaitable[Sequence[int]]]
"""Takes ledger ids and a function that deletes a local ledger. Deletes the over-replicated ledgers, whose
ensembles do not contain this bookie; returns their ids."""


class GarbageStore(Protocol):
    """The methods of the storage that a round calls."""

    def ledger_ids(self) -> list[int]: ...
    async def delete_ledger(self, ledger_id: int) -> None: ...
    @property
    def collectors(self) -> Sequence[LogCollector]: ...


@attrs.frozen(kw_only=True)
class GcConfig:
    """When rounds run. ``CompactionConfig`` says when a round compacts."""

    interval_s: float = attrs.field(default=600, validator=attrs.validators.gt(0))
    over_replicated_interval_s: float = 86400  # between deletions of over-replicated ledgers; <= 0: never
    metadata_requests_per_s: float = attrs.field(default=1000, validator=attrs.validators.gt(0))


@attrs.frozen
class GcRoundResult:
    """The ids of the ledgers and logs that one round deleted."""

    ledger_ids: tuple[int, ...]
    log_ids: tuple[int, ...]  # each ledger directory has its own log ids
    compacted: CompactionLevel | None = None


@attrs.define
class GcState:
    """The state shown to an operator."""

    is_running: bool = False
    is_forced: bool = False  # the running or the next round was requested
    compacting: CompactionLevel | None = None
    rounds: int = 0
    deleted_ledgers: int = 0
    minor_compactions: int = 0
    major_compactions: int = 0
    last_minor_s: float | None = None  # time of the loop's clock
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
        delete_over_replicated: DeleteOverReplicated | None = None,
        delete_local_copy: Callable[[int], Awaitable[None]] | None = None,
    ) -> None:
        self.state = GcState()
        self._store = store
        self._live_ledgers = live_ledgers
        self._config = config or GcConfig()
        self._compaction = compaction or CompactionConfig()
        self._delete_over_replicated = delete_over_replicated
        self._delete_local_copy = delete_local_copy or store.delete_ledger
        self._suspended_by_operator = _Suspended()
        self._suspended_by_disk = _Suspended()
        self._is_disk_filling = False  # then each round compacts
        self._is_store_away = False  # as the last round saw it
        self._forced_minor = self._forced_major = False
        self._round_requested = trio.Event()
        self._began_s: float | None = None
        self._last_over_replicated_s: float | None = None

    def __repr__(self) -> str:
        return f"<GarbageCollector {self.state.rounds} rounds>"

    @property
    def collectors(self) -> Sequence[LogCollector]:
        """The collector of each ledger directory."""
        return self._store.collectors

    # --- commands; they return at once ---

    def force(self, *, minor: bool | None = None, major: bool | None = None) -> None:
        """Start a round now, or after the running one.

        A requested level is compacted even if it is suspended. If no level is given, major compaction runs
        unless it is suspended; then minor compaction, unless that is suspended.
        """
        if minor is None and major is None:
            major = not (self._suspended_by_operator.major or self._suspended_by_disk.major)
            minor = not (self._suspended_by_operator.minor or self._suspended_by_disk.minor)
        self._forced_minor |= bool(minor)
        self._forced_major |= bool(major)
        self.state.is_forced = True
        self._round_requested.set()

    def suspend(self, *, minor: bool = False, major: bool = False) -> None:
        """Schedule no compaction of these levels until ``resume``. A running one continues."""
        self._suspended_by_operator.minor |= minor
        self._suspended_by_operator.major |= major

    def resume(self, *, minor: bool = False, major: bool = False) -> None:
        """Undo ``suspend``."""
        self._suspended_by_operator.minor &= not minor
        self._suspended_by_operator.major &= not major

    def suspended(self) -> tuple[bool, bool]:
        """(minor, major): True if the level is suspended, by an operator or by a full disk."""
        return (
            self._suspended_by_operator.minor or self._suspended_by_disk.minor,
            self._suspended_by_operator.major or self._suspended_by_disk.major,
        )

    def on_fullness(self, fullness: Fullness) -> None:
        """Suspend or force compaction by the fullness of the disks. Called after each measurement."""
        is_near, is_full = fullness.is_near, not fullness.writable
        if self._compaction.forces_when_full:
            is_new = (is_near or is_full) and not self._is_disk_filling
            self._is_disk_filling = is_near or is_full
            if is_new:
                self._round_requested.set()
        else:
            self._suspended_by_disk = _Suspended(minor=is_full, major=is_near or is_full)

    # --- rounds ---

    async def run(self) -> None:
        """Run a round every ``interval_s``, and on request, until cancelled or until the storage has failed.

        Interrupted compactions are finished first. A failed round is logged, and the next one runs as usual:
        the metadata store may be unavailable for a while.
        """
        try:
            await self._finish_compactions()
            while True:
                with trio.move_on_after(self._config.interval_s):
                    await self._round_requested.wait()
                self._round_requested = trio.Event()
                try:
                    await self.run_round()
                    self._note_store_is_back()
                except StorageFailedError:
                    raise
                except STORE_AWAY as exc:
                    self._note_store_is_away(exc)
                except Exception as exc:  # it ends this round only
                    self.state.last_failure = str(exc) or repr(exc)
                    report_contained("garbage collection", exc)
        except StorageFailedError:
            return  # ``wait_failed`` of the storage reports the error

    def _note_store_is_away(self, error: Exception) -> None:
        """One line for each outage, however many rounds it takes."""
        self.state.last_failure = str(error)
        level = logging.DEBUG if self._is_store_away else logging.WARNING
        self._is_store_away = True
        log.log(
            level,
            "garbage collection waits for the metadata store: %s; nothing is deleted; it tries every %s s",
            error,
            self._config.interval_s,
        )

    def _note_store_is_back(self) -> None:
        if self._is_store_away:
            log.info("garbage collection has gone on: the metadata store is back")
        self._is_store_away = False

    async def run_round(self) -> GcRoundResult:
        """Run one round. Errors of ``live_ledgers`` are raised, and then no ledger has been deleted.

        A cancelled round is partly done; the next round does the rest.
        """
        state = self.state
        state.is_running = True
        if self._began_s is None:
            self._began_s = trio.current_time()
        forced_minor, self._forced_minor = self._forced_minor or self._is_disk_filling, False
        forced_major, self._forced_major = self._forced_major or self._is_disk_filling, False
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
            self._record_compaction(level)
        state.rounds += 1
        state.deleted_ledgers += len(dead)
        if dead or removed:
            log.info("garbage: %d ledgers and %d entry logs deleted", len(dead), len(removed))
        return GcRoundResult(tuple(dead), tuple(removed), level)

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
        last_s = self._began_s if self._last_over_replicated_s is None else self._last_over_replicated_s
        interval_s = self._config.over_replicated_interval_s
        if (
            self._delete_over_replicated is not None
            and last_s is not None
            and 0 < interval_s <= now_s - last_s
        ):
            self._last_over_replicated_s = now_s
            dead += await self._delete_over_replicated(self._store.ledger_ids(), self._delete_local_copy)
        return dead

    def _due(self, forced_minor: bool, forced_major: bool) -> CompactionLevel | None:
        now_s = trio.current_time()
        assert self._began_s is not None  # ``run_round`` sets it first
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
        level: CompactionLevel | None,
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
        """Log the error that is being handled. This directory's work is incomplete; the others continue."""
        self.state.last_failure = str(error)
        report_contained("garbage collection of entry logs", error, directory=collector.directory)

    def _record_compaction(self, level: CompactionLevel) -> None:
        now_s = trio.current_time()
        if level is CompactionLevel.MAJOR:
            self.state.major_compactions += 1
            self.state.last_major_s = now_s
        else:
            self.state.minor_compactions += 1
            self.state.last_minor_s = now_s
