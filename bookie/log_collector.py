"""The entry logs of one ledger directory, as garbage collection sees them.

Inside: what each log holds and how much of that is live; deleting those of which nothing is; compaction of
the others, in slices, throttled; what cannot be followed is put aside. Not inside: which ledgers are dead
(``gc``), which logs are worth it (``compaction_rules``), the file work (``compactor``).
Always: a log that cannot be followed to its end is reported, counted and kept, and stops nothing else; so is,
in this round, one that a damaged index cannot be asked about; a log is deleted only in the storage thread,
between flushes, and only if at that moment none of its ledgers is known.

Everything public is called on the loop, by one task. What writes runs in the storage thread, one slice a
job; what only reads, in reader threads.

Source: GarbageCollectorThread.java, AbstractLogCompactor.java; apache/bookkeeper#2264, #3901, #4544, #4596.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import trio

from bookie.compaction_files import leftovers
from bookie.compaction_rules import CompactionConfig, Level, LogUsage, choose_bundles
from bookie.compactor import Copy, Relocation, delete_sources, unfinished
from bookie.disk import Disk
from bookie.entry_log import EntryLogWriter
from bookie.entry_log_format import entry_log_id_of, entry_log_name
from bookie.errors import CompactionError, FormatError, IndexUnreadableError, SourceUnreadableError
from bookie.index import EntryIndex
from bookie.log_summary import LogSummaries, LogSummary, SummaryScan
from bookie.mentions import logs_mentioned
from bookie.reserve import Reserve
from bookie.token_bucket import TokenBucket

log = logging.getLogger(__name__)

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]
_BURST_S = 0.25  # of the rate, after a pause
_LEDGERS_PER_WALK = 64  # of the index, in a reader thread
_MARGIN_BYTES = 32 << 20  # left free: the index and the journal of the bookie need some while we work


@attrs.define
class LogFigures:
    """What is known of the directory's logs, and what has been done to them since the start."""

    logs: int = 0  # complete ones, at the last look
    total_bytes: int = 0  # of their entries
    live_bytes: int = 0
    quarantined: dict[int, str] = attrs.field(factory=dict)  # log -> why it is kept for good
    deleted_logs: int = 0  # as nothing in them was live
    deleted_bytes: int = 0
    compacted_logs: int = 0
    compacted_bytes: int = 0  # of the logs rewritten, before
    copied_bytes: int = 0  # and after
    failures: int = 0
    last_failure: str | None = None
    running: Level | None = None


class LogCollector:
    """See the module. Made by ``DirectoryStore``."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        index: EntryIndex,
        writer: EntryLogWriter,
        *,
        is_live: Callable[[int], bool],
        in_thread: InThread,
        on_deleted: Callable[[int], None],
        log_bytes_max: int,
        config: CompactionConfig,
    ) -> None:
        """
        Args:
            is_live: Whether a ledger is known here; from any thread.
            in_thread: Runs a job in the directory's storage thread; its ``OSError`` fails the bookie.
            on_deleted: Told of each log that is gone; on the loop.
        """
        self.directory = directory
        self.figures = LogFigures()
        self.config = config
        self._disk = disk
        self._index = index
        self._writer = writer
        self._is_live = is_live
        self._in_thread = in_thread
        self._on_deleted = on_deleted
        self._log_bytes_max = log_bytes_max
        self._summaries = LogSummaries()
        self._usages: dict[int, LogUsage] = {}  # of the complete logs, at the last look
        self._settled: set[int] = set()  # logs whose torn end has been compared with the index
        self._reserve = Reserve(disk, directory, config.reserve_bytes)
        by_entries = config.rate_entries_per_s
        rate = config.rate_bytes_per_s if by_entries is None else by_entries
        self._bucket = TokenBucket(rate, burst=rate * _BURST_S)

    def __repr__(self) -> str:
        return f"<LogCollector {self.directory}: {len(self._usages)} logs>"

    # --- rounds ---

    async def finish_compactions(self) -> None:
        """Finish what a crash or an error has interrupted. Errors are told; the next round tries again."""
        pending: dict[int, tuple[int, ...]] = {}
        try:
            pending = await self._in_thread(partial(unfinished, self._disk, self.directory))
        except CompactionError as exc:
            self._failed(exc)
        for target_id, source_ids in pending.items():
            log.info("%s: a compaction is finished", self.directory / entry_log_name(target_id))
            try:
                await self._relocate(target_id, source_ids)
            except CompactionError as exc:
                self._failed(exc)

    async def remove_dead(self) -> list[int]:
        """Look at all complete logs; delete those in which nothing is live, and return their ids.

        A cancelled call has deleted some of them. ``OSError``: the directory cannot be listed.
        """
        now_s = trio.current_time()
        complete_ids = await self._in_thread(partial(self._complete_ids, now_s))
        torn: list[LogSummary] = []
        dead: list[LogSummary] = []
        usages: dict[int, LogUsage] = {}
        for log_id in complete_ids:
            summary = await self._summary(log_id)
            if summary is None:
                continue
            if summary.torn_at is not None and log_id not in self._settled:
                torn.append(summary)
                continue
            await self._weigh(summary, usages, dead)
        for summary in await self._settle(torn):
            await self._weigh(summary, usages, dead)
        dead = await self._without_mentioned(dead)
        removed: list[int] = await self._in_thread(partial(self._remove, dead))
        self._forget(removed)
        self.figures.deleted_logs += len(removed)
        self._usages = usages
        self._count()
        return removed

    async def compact(self, level: Level) -> int:
        """Rewrite the logs that are used too little; how many. After ``remove_dead``.

        Stops early when time is up, when the disk is too full, or at an error, which is told: not at a log
        that is damaged, or that a damaged index cannot be asked about. A cancelled
        call leaves nothing that the next round does not clean up or finish.
        """
        self.figures.running = level
        try:
            return await self._compact(level)
        except CompactionError as exc:
            self._failed(exc)
            return 0
        finally:
            self.figures.running = None
            self._count()

    async def fill_reserve(self) -> None:
        """Make the reserve for a full disk, if there is room."""
        while await self._in_thread(self._reserve.fill):
            await self._wait_for(1 << 20, 0)

    # --- looking ---

    def _complete_ids(self, now_s: float) -> list[int]:
        """In the storage thread, so that no log is opened between the two questions."""
        self._writer.complete_idle(now_s)
        names = self._disk.list_directory(self.directory)
        pending = leftovers(names).pending
        busy = self._writer.open_ids() | set(pending) | {one for ids in pending.values() for one in ids}
        found = [entry_log_id_of(name) for name in names]
        return sorted(log_id for log_id in found if log_id is not None and log_id not in busy)

    async def _summary(self, log_id: int) -> LogSummary | None:
        """What is in a complete log; None if that cannot be told."""
        if log_id in self.figures.quarantined:
            return None
        if (kept := self._summaries.get(log_id)) is not None:
            return kept
        scan = SummaryScan(self._disk, self.directory, log_id)
        try:
            while (summary := await self._disk.run(scan.step)) is None:
                pass
        except FormatError as exc:
            self._quarantine(log_id, str(exc))
            return None
        except OSError as exc:  # perhaps it can be read at the next round
            self._failed(exc)
            return None
        finally:
            scan.close()
        self._summaries.keep(summary)
        return summary

    async def _weigh(self, summary: LogSummary, usages: dict[int, LogUsage], dead: list[LogSummary]) -> None:
        live_bytes = await self._disk.run(summary.live_bytes, self._is_live)
        if live_bytes:
            usages[summary.log_id] = LogUsage(summary.log_id, summary.total_bytes, live_bytes)
        else:
            dead.append(summary)

    async def _settle(self, torn: list[LogSummary]) -> list[LogSummary]:
        """Ask the index whether what looks like the end of a torn log hides entries; those where not."""
        if not torn:
            return []
        offsets = {summary.log_id: summary.torn_at or 0 for summary in torn}
        try:
            damaged = await self._mentioned(offsets)
        except IndexUnreadableError as exc:
            self._failed(exc)
            return []
        for log_id, offset in offsets.items():
            if log_id in damaged:
                why = (
                    f"{self.directory / entry_log_name(log_id)}: nothing can be read from offset {offset} on"
                )
                self._quarantine(log_id, f"{why}, where the index has entries")
            else:
                self._settled.add(log_id)
        return [summary for summary in torn if summary.log_id in self._settled]

    async def _without_mentioned(self, dead: list[LogSummary]) -> list[LogSummary]:
        """Those to be deleted. What is in a log without a map only a scan says: the index is asked, too."""
        doubtful = {summary.log_id: 0 for summary in dead if not summary.has_map}
        if not doubtful:
            return dead
        try:
            mentioned = await self._mentioned(doubtful)
        except IndexUnreadableError as exc:
            self._failed(exc)
            return [summary for summary in dead if summary.has_map]
        for summary in dead:
            if summary.log_id in mentioned and not summary.has_live(self._is_live):
                path = self.directory / entry_log_name(summary.log_id)
                self._quarantine(summary.log_id, f"{path}: a scan finds no entry that the index has there")
        return [summary for summary in dead if summary.log_id not in mentioned]

    def _remove(self, dead: Iterable[LogSummary]) -> list[int]:
        """Delete logs, if still none of their ledgers is known; in the storage thread."""
        closed = self._writer.close_dead(self._is_live)
        summaries = [LogSummary(log_id, held, has_map=False) for log_id, held in closed.items()]
        removed = []
        for summary in [*dead, *summaries]:
            if summary.has_live(self._is_live):
                continue
            path = self.directory / entry_log_name(summary.log_id)
            try:
                self._disk.unlink(path)
            except OSError as exc:
                log.warning("%s cannot be deleted: %s", path, exc)
                continue
            removed.append(summary.log_id)
            self.figures.deleted_bytes += summary.total_bytes
        if removed:
            self._disk.sync_directory(self.directory)
        return removed

    def _forget(self, log_ids: Iterable[int]) -> None:
        for log_id in log_ids:
            self._summaries.forget(log_id)
            self._settled.discard(log_id)
            self._usages.pop(log_id, None)
            self.figures.quarantined.pop(log_id, None)
            self._on_deleted(log_id)

    # --- compaction ---

    async def _compact(self, level: Level) -> int:
        config = self.config
        began_s = trio.current_time()
        time_max_s = config.time_max_s(level)
        waiting = dict(self._usages)
        done = 0
        while time_max_s is None or trio.current_time() < began_s + time_max_s:
            bundle = await self._next_bundle(waiting, config.threshold(level))
            if not bundle:
                break
            for log_id in bundle:
                del waiting[log_id]
            try:
                done += await self._compact_bundle(bundle)
            except SourceUnreadableError as exc:
                self._quarantine(exc.log_id, str(exc))
                in_doubt = frozenset({exc.log_id})
            except IndexUnreadableError as exc:
                self._failed(exc)
                in_doubt = exc.log_ids
            else:
                continue
            for log_id in bundle:  # the others of the bundle get another chance
                if log_id in self._usages and log_id not in in_doubt:
                    waiting[log_id] = self._usages[log_id]
        return done

    async def _next_bundle(self, waiting: dict[int, LogUsage], threshold: float) -> tuple[int, ...]:
        choose = partial(
            choose_bundles,
            waiting.values(),
            threshold=threshold,
            log_bytes_max=self._log_bytes_max,
            target_bytes=self._log_bytes_max if self.config.counts_target_size else 0,
        )
        room_bytes = await self._room_bytes()
        bundles = choose(room_bytes=room_bytes)
        if not bundles and choose(room_bytes=self._log_bytes_max):
            held_bytes = await self._disk.run(self._reserve.held_bytes)
            if held_bytes and choose(room_bytes=room_bytes + held_bytes):
                log.warning("%s: the disk is full; compaction goes on in its reserve", self.directory)
                await self._in_thread(self._reserve.release)
                bundles = choose(room_bytes=await self._room_bytes(margin_bytes=0))
        return bundles[0] if bundles else ()

    async def _room_bytes(self, margin_bytes: int = _MARGIN_BYTES) -> int:
        usage = await self._disk.run(self._disk.usage, self.directory)
        return max(0, usage.free_bytes - min(margin_bytes, usage.total_bytes // 100))

    async def _compact_bundle(self, source_ids: Sequence[int]) -> int:
        """Rewrite these logs into one; how many. ``CompactionError``: nothing has changed."""
        sources = []
        for log_id in source_ids:
            summary = await self._summary(log_id)
            if summary is None:
                raise SourceUnreadableError(log_id, self.figures.quarantined.get(log_id, "it cannot be read"))
            sources.append(summary)
        copy: Copy | None = None
        try:
            copy = Copy(
                self._disk,
                self.directory,
                self._index,
                sources,
                await self._in_thread(self._take_id),
                self._is_live,
                slice_bytes=self.config.slice_bytes,
            )
            while (piece := await self._in_thread(copy.step)) is not None:
                self.figures.copied_bytes += piece.copied_bytes
                await self._wait_for(piece.read_bytes, piece.copied_entries)
            await self._in_thread(copy.publish)
        finally:
            if copy is not None:
                with trio.CancelScope(shield=True):
                    await self._in_thread(copy.discard)
        if copy.summary is None:
            kept = await self._still_mentioned(source_ids)
            deleted = await self._in_thread(
                partial(delete_sources, self._disk, self.directory, source_ids, None, kept)
            )
            self._forget(deleted)
        else:
            self._summaries.keep(copy.summary)
            await self._relocate(copy.target_id, tuple(source_ids))
            live_bytes = copy.summary.live_bytes(self._is_live)
            self._usages[copy.target_id] = LogUsage(copy.target_id, copy.summary.total_bytes, live_bytes)
        self.figures.compacted_logs += len(sources)
        self.figures.compacted_bytes += sum(source.total_bytes for source in sources)
        return len(sources)

    def _take_id(self) -> int:
        try:
            return self._writer.ids.take()
        except OSError as exc:
            raise CompactionError(f"{self.directory}: no new log can be begun: {exc}") from exc

    async def _relocate(self, target_id: int, source_ids: tuple[int, ...]) -> None:
        relocation = Relocation(
            self._disk,
            self.directory,
            self._index,
            target_id,
            source_ids,
            slice_bytes=self.config.slice_bytes,
        )
        try:
            while (piece := await self._in_thread(relocation.step)) is not None:
                await self._wait_for(piece.read_bytes, piece.copied_entries)
            kept = await self._still_mentioned(source_ids)
            deleted = await self._in_thread(partial(relocation.finish, kept))
        finally:
            relocation.close()
        self._forget(deleted)

    async def _still_mentioned(self, source_ids: Sequence[int]) -> set[int]:
        """Sources that the index points to although all that was found in them has moved: to be kept.

        A flipped bit in a length can hide an entry from a scan; where the index says it can still be read.
        ``CompactionError``: it cannot be told, and all must be kept.
        """
        try:
            names = await self._disk.run(self._disk.list_directory, self.directory)
        except OSError as exc:
            raise CompactionError(f"{self.directory}: {exc}") from exc
        source_ids = [log_id for log_id in source_ids if entry_log_name(log_id) in names]
        ledger_ids: set[int] | None = set()
        for log_id in source_ids:
            summary = await self._summary(log_id)
            if summary is None or not summary.has_map:
                ledger_ids = None  # nobody can say whose entries it had: all of the index is read
            elif ledger_ids is not None:
                ledger_ids.update(summary.ledger_ids())
        offsets = dict.fromkeys(source_ids, 0)
        kept: set[int] = set()
        if ledger_ids is None:
            kept = await self._mentioned(offsets)
        else:
            wanted = sorted(ledger_ids)
            for start in range(0, len(wanted), _LEDGERS_PER_WALK):
                part = wanted[start : start + _LEDGERS_PER_WALK]
                kept |= await self._mentioned(offsets, part)
        for log_id in kept:
            path = self.directory / entry_log_name(log_id)
            self._quarantine(log_id, f"{path}: the index has entries there that a scan does not find")
        return kept

    async def _mentioned(self, offsets: dict[int, int], ledger_ids: Sequence[int] | None = None) -> set[int]:
        """As ``logs_mentioned``. ``IndexUnreadableError``: all of these logs are in doubt."""
        try:
            return await self._disk.run(logs_mentioned, self._index, offsets, ledger_ids)
        except (OSError, FormatError) as exc:
            raise IndexUnreadableError(offsets, str(exc)) from exc

    async def _wait_for(self, size_bytes: int, entries: int) -> None:
        units = size_bytes if self.config.rate_entries_per_s is None else entries
        await trio.sleep(self._bucket.take(units, trio.current_time()))

    # --- telling ---

    def _quarantine(self, log_id: int, why: str) -> None:
        if log_id not in self.figures.quarantined:
            log.error(
                "%s. The log is kept, and no space of it comes back until somebody has looked at it", why
            )
            self.figures.quarantined[log_id] = why
        self._usages.pop(log_id, None)

    def _failed(self, error: BaseException) -> None:
        log.warning("%s: garbage collection of entry logs: %s", self.directory, error)
        self.figures.failures += 1
        self.figures.last_failure = str(error)

    def _count(self) -> None:
        self.figures.logs = len(self._usages)
        self.figures.total_bytes = sum(usage.total_bytes for usage in self._usages.values())
        self.figures.live_bytes = sum(usage.live_bytes for usage in self._usages.values())
