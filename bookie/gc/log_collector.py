"""Garbage collection of the entry logs of one ledger directory.

Inside: total and live bytes of each log; deleting logs without live entries; compacting others, in throttled
slices; the quarantine of damaged logs. Not inside: which ledgers are dead (``gc``), which logs to compact
(``gc.compaction_rules``), the file work (``compactor``).
Always: a log that cannot be parsed to its end is reported, counted and kept, and the other logs are
collected. A log whose references cannot be read from a damaged index is kept in this round. A log is deleted
only in the storage thread, between flushes, and only if none of its ledgers exists here at that moment; or if
an earlier process left it half written and the index names nothing in it.

One task on the loop calls the public methods. Writes run in the storage thread, one slice a job; reads run in
reader threads.

Source: GarbageCollectorThread.java, AbstractLogCompactor.java; apache/bookkeeper#2264, #3901, #4544, #4596.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import trio

from bookie.disk.disk import Disk
from bookie.disk.reserve import FLUSH_RESERVE, Reserve
from bookie.disk.token_bucket import TokenBucket
from bookie.entrylog.compaction_files import unfinished_compactions
from bookie.entrylog.format import HEADER_BYTES, entry_log_id_of, entry_log_name
from bookie.entrylog.open_log import cut_back, end_of_entry
from bookie.entrylog.summary import LogSummaries, LogSummary, SummaryScan
from bookie.entrylog.writer import EntryLogWriter
from bookie.errors import CompactionError, FormatError, IndexUnreadableError, SourceUnreadableError
from bookie.gc.compaction_rules import CompactionConfig, CompactionLevel, LogUsage, choose_bundles
from bookie.gc.compactor import CompactionCopy, IndexRelocation, delete_sources, discard_abandoned_copies
from bookie.index.entry_index import EntryIndex
from bookie.index.index_scan import LastNamed, last_named, referenced_logs
from ledger.runtime.log_lines import get_logger

log = get_logger(__name__)

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]
_BURST_S = 0.25  # seconds of the rate that may pass at once
_LEDGERS_PER_SCAN = 64  # ledgers of one index scan in a reader thread
_MARGIN_BYTES = 32 << 20  # left free for the index and the journal during a compaction


@attrs.define
class LogStats:
    """The directory's logs, and the work done on them since the start."""

    logs: int = 0  # complete logs in the last round
    total_bytes: int = 0  # bytes of their entries
    live_bytes: int = 0
    quarantined: dict[int, str] = attrs.field(factory=dict)  # log -> why it is kept permanently
    deleted_logs: int = 0  # deleted since no entry was live
    deleted_bytes: int = 0
    compacted_logs: int = 0
    compacted_bytes: int = 0  # bytes of the rewritten logs before compaction
    copied_bytes: int = 0  # bytes of their copies
    failures: int = 0
    last_failure: str | None = None
    running: CompactionLevel | None = None


@attrs.frozen
class StoreCalls:
    """The calls of a collector to the store of its directory."""

    is_live: Callable[[int], bool]  # whether the ledger exists here; called in any thread
    in_thread: InThread  # runs a job in the directory's storage thread; its ``OSError`` fails the bookie
    on_deleted: Callable[[int], None]  # called on the loop for each deleted log


class LogCollector:
    """Collects the logs of one directory. ``DirectoryStore`` constructs it."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        index: EntryIndex,
        writer: EntryLogWriter,
        calls: StoreCalls,
        *,
        log_bytes_max: int,
        config: CompactionConfig,
    ) -> None:
        self.directory = directory
        self.stats = LogStats()
        self._disk = disk
        self._index = index
        self._writer = writer
        self._is_live = calls.is_live
        self._in_thread = calls.in_thread
        self._on_deleted = calls.on_deleted
        self._log_bytes_max = log_bytes_max
        self._summaries = LogSummaries()
        self._usages: dict[int, LogUsage] = {}  # complete logs in the last round
        self._named: set[int] = set()  # logs without a map in which the index references an entry
        self._verified_torn: set[int] = set()  # torn logs: the index references no entry in their torn end
        self._stuck_at: int | None = None  # the log that the disk was too full to rewrite
        self._reserve = Reserve(disk, directory, config.reserve_bytes, below_bytes=config.reserve_below_bytes)
        self._flush_reserve = Reserve(disk, directory, config.flush_reserve_bytes, name=FLUSH_RESERVE)
        self.use(config)

    def __repr__(self) -> str:
        return f"<LogCollector {self.directory}: {len(self._usages)} logs>"

    def use(self, config: CompactionConfig) -> None:
        """Use these thresholds and rates from the next compaction on; the reserve stays as it is."""
        self.config = config
        by_entries = config.rate_entries_per_s
        rate = config.rate_bytes_per_s if by_entries is None else by_entries
        self._bucket = TokenBucket(rate, burst=rate * _BURST_S)

    # --- rounds ---

    async def finish_compactions(self) -> None:
        """Finish interrupted compactions. An error is logged, and the next round tries again."""
        pending: dict[int, tuple[int, ...]] = {}
        try:
            pending = await self._in_thread(partial(discard_abandoned_copies, self._disk, self.directory))
        except CompactionError as exc:
            self._failed(exc)
        for target_id, source_ids in pending.items():
            log.info("%s: finishing an interrupted compaction", self.directory / entry_log_name(target_id))
            try:
                await self._relocate(target_id, source_ids)
            except CompactionError as exc:
                self._failed(exc)

    async def remove_dead(self) -> list[int]:
        """Check all complete logs; delete those without live entries, and return their ids.

        A cancelled call may have deleted some of them. ``OSError``: the directory cannot be listed.
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
            if summary.torn_at is not None and log_id not in self._verified_torn:
                torn.append(summary)
                continue
            await self._classify(summary, usages, dead)
        for summary in await self._verify_torn(torn):
            await self._classify(summary, usages, dead)
        dead = await self._without_referenced(dead)
        unnamed = await self._unnamed(usages)
        for summary in unnamed:
            del usages[summary.log_id]
        removed: list[int] = await self._in_thread(partial(self._remove, dead, unnamed))
        self._forget(removed)
        self.stats.deleted_logs += len(removed)
        self._usages = usages
        self._count()
        return removed

    async def compact(self, level: CompactionLevel) -> int:
        """Rewrite the logs with a small usage; return their number. Call it after ``remove_dead``.

        Ends early when the time limit is reached, when the disk is too full, or at an error, which is logged.
        A damaged log, or one whose references a damaged index hides, is skipped. After a cancelled call the
        next round cleans up or finishes.
        """
        self.stats.running = level
        try:
            return await self._compact(level)
        except CompactionError as exc:
            self._failed(exc)
            return 0
        finally:
            self.stats.running = None
            self._count()

    async def fill_reserve(self) -> None:
        """Create the reserve for a full disk, if enough space is free."""
        while await self._in_thread(self._reserve.fill):
            await self._wait_for(1 << 20, 0)

    # --- checking logs ---

    def _complete_ids(self, now_s: float) -> list[int]:
        """Ids of the complete logs. In the storage thread, so that no log is opened meanwhile."""
        self._writer.complete_idle(now_s)
        names = self._disk.list_directory(self.directory)
        pending = unfinished_compactions(names).pending
        busy = self._writer.open_ids() | set(pending) | {one for ids in pending.values() for one in ids}
        found = [entry_log_id_of(name) for name in names]
        return sorted(log_id for log_id in found if log_id is not None and log_id not in busy)

    async def _summary(self, log_id: int) -> LogSummary | None:
        """The summary of a complete log; None if it is damaged or cannot be read."""
        if log_id in self.stats.quarantined:
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
        except OSError as exc:  # the next round tries again
            self._failed(exc)
            return None
        finally:
            scan.close()
        self._summaries.add(summary)
        return summary

    async def _classify(
        self, summary: LogSummary, usages: dict[int, LogUsage], dead: list[LogSummary]
    ) -> None:
        live_bytes = await self._disk.run(summary.live_bytes, self._is_live)
        if not 0 <= live_bytes <= summary.total_bytes:  # a map in the file may claim any sizes
            path = self.directory / entry_log_name(summary.log_id)
            sizes = f"{live_bytes} live bytes of {summary.total_bytes}"
            self._quarantine(summary.log_id, f"{path}: its ledger map contradicts itself: {sizes}")
        elif live_bytes:
            usages[summary.log_id] = LogUsage(summary.log_id, summary.total_bytes, live_bytes)
        else:
            dead.append(summary)

    async def _verify_torn(self, torn: list[LogSummary]) -> list[LogSummary]:
        """The torn logs without an indexed entry in their torn end; the others are quarantined."""
        if not torn:
            return []
        offsets = {summary.log_id: summary.torn_at or 0 for summary in torn}
        try:
            damaged = await self._referenced(offsets)
        except IndexUnreadableError as exc:
            self._failed(exc)
            return []
        for log_id, offset in offsets.items():
            if log_id in damaged:
                path = self.directory / entry_log_name(log_id)
                self._quarantine(
                    log_id, f"{path}: unreadable from offset {offset} on, where the index references entries"
                )
            else:
                self._verified_torn.add(log_id)
        return [summary for summary in torn if summary.log_id in self._verified_torn]

    async def _without_referenced(self, dead: list[LogSummary]) -> list[LogSummary]:
        """The logs that may be deleted. Without a map the index decides, since a scan may miss entries."""
        unmapped = {summary.log_id: 0 for summary in dead if not summary.has_map}
        if not unmapped:
            return dead
        try:
            referenced = await self._referenced(unmapped)
        except IndexUnreadableError as exc:
            self._failed(exc)
            return [summary for summary in dead if summary.has_map]
        for summary in dead:
            if summary.log_id in referenced and not summary.has_live(self._is_live):
                path = self.directory / entry_log_name(summary.log_id)
                self._quarantine(
                    summary.log_id, f"{path}: the index references entries there that a scan does not find"
                )
        return [summary for summary in dead if summary.log_id not in referenced]

    async def _unnamed(self, usages: dict[int, LogUsage]) -> list[LogSummary]:
        """Logs of live ledgers in which the index names no entry: a flush was killed, or had no space.

        The journal still had those entries, and the next start has stored them in another log. A log of this
        process may be named later, and so may one with a map, which was complete. Of a log that an earlier
        flush had begun, the records after the last one that the index names are cut off.
        """
        candidates = [
            summary
            for log_id in usages
            if log_id not in self._named
            and self._writer.is_of_an_earlier_process(log_id)
            and (summary := self._summaries.get(log_id)) is not None
            and not summary.has_map
        ]
        try:
            named = await self._disk.run(last_named, self._index, {summary.log_id for summary in candidates})
        except (OSError, FormatError) as exc:
            self._failed(exc)
            return []
        for summary in candidates:
            if (last := named.get(summary.log_id)) is not None:
                self._named.add(summary.log_id)
                await self._in_thread(partial(self._cut_tail, summary, last))
                await self._count_again(summary.log_id, usages)
        return [summary for summary in candidates if summary.log_id not in named]

    def _cut_tail(self, summary: LogSummary, last: LastNamed) -> None:
        """Free the records of a log after the last one that the index names; in the storage thread."""
        path = self.directory / entry_log_name(summary.log_id)
        try:
            end = end_of_entry(self._disk, path, last.ledger_id, last.entry_id, last.offset)
            # Only if a scan found a record there: a length that is too small would end within the entry.
            if end is not None and last.offset < end < HEADER_BYTES + summary.total_bytes:
                cut_back(self._disk, path, end)
                self._summaries.forget(summary.log_id)
        except OSError as exc:
            log.warning("%s: what a killed flush has written is not removed: %s", path, exc)

    async def _count_again(self, log_id: int, usages: dict[int, LogUsage]) -> None:
        """Its usage, if the log was cut."""
        if self._summaries.get(log_id) is None:
            del usages[log_id]
            if (summary := await self._summary(log_id)) is not None:
                await self._classify(summary, usages, [])

    def _remove(self, dead: Iterable[LogSummary], unnamed: Sequence[LogSummary] = ()) -> list[int]:
        """Delete logs whose ledgers still do not exist here, and unnamed ones; in the storage thread."""
        closed = self._writer.close_dead(self._is_live)
        summaries = [LogSummary(log_id, held, has_map=False) for log_id, held in closed.items()]
        removed = []
        for summary in [*dead, *summaries, *unnamed]:
            if summary not in unnamed and summary.has_live(self._is_live):
                continue
            path = self.directory / entry_log_name(summary.log_id)
            try:
                self._disk.unlink(path)
            except OSError as exc:
                log.warning("%s cannot be deleted: %s", path, exc)
                continue
            removed.append(summary.log_id)
            self.stats.deleted_bytes += summary.total_bytes
        if removed:
            self._disk.sync_directory(self.directory)
        return removed

    def _forget(self, log_ids: Iterable[int]) -> None:
        for log_id in log_ids:
            self._summaries.forget(log_id)
            self._verified_torn.discard(log_id)
            self._named.discard(log_id)
            self._usages.pop(log_id, None)
            self.stats.quarantined.pop(log_id, None)
            self._on_deleted(log_id)

    # --- compaction ---

    async def _compact(self, level: CompactionLevel) -> int:
        config = self.config
        began_s = trio.current_time()
        time_max_s = config.time_max_s(level)
        candidates = dict(self._usages)
        done = 0
        while time_max_s is None or trio.current_time() < began_s + time_max_s:
            bundle = await self._next_bundle(candidates, level)
            if not bundle:
                break
            for log_id in bundle:
                del candidates[log_id]
            try:
                done += await self._compact_bundle(bundle)
            except SourceUnreadableError as exc:
                self._quarantine(exc.log_id, str(exc))
                skipped = frozenset({exc.log_id})
            except IndexUnreadableError as exc:
                self._failed(exc)
                skipped = exc.log_ids
            else:
                continue
            for log_id in bundle:  # the other logs of the bundle may be in a later one
                if log_id in self._usages and log_id not in skipped:
                    candidates[log_id] = self._usages[log_id]
        return done

    async def _next_bundle(self, candidates: dict[int, LogUsage], level: CompactionLevel) -> tuple[int, ...]:
        free_bytes = await self._free_bytes()
        choose = partial(
            choose_bundles,
            candidates.values(),
            threshold=self.config.threshold_at(level, free_bytes),
            log_bytes_max=self._log_bytes_max,
            target_bytes=self._log_bytes_max if self.config.counts_target_size else 0,
        )
        bundles = choose(free_bytes=free_bytes)
        if not bundles and (wanted := choose(free_bytes=self._log_bytes_max)):
            held_bytes = await self._disk.run(self._reserve.held_bytes)
            if held_bytes and choose(free_bytes=free_bytes + held_bytes):
                log.warning("%s: the disk is full; compaction releases and uses its reserve", self.directory)
                await self._in_thread(self._reserve.release)
            if await self._disk.run(self._reserve.given_bytes):  # now, or by an earlier compaction
                bundles = choose(free_bytes=await self._free_bytes(margin_bytes=0))
            if not bundles:
                self._say_what_is_needed(candidates[wanted[0][0]], free_bytes)
        return bundles[0] if bundles else ()

    def _say_what_is_needed(self, usage: LogUsage, free_bytes: int) -> None:
        """Once for each log: a round on a full disk follows the last one soon."""
        if self._stuck_at != usage.log_id:
            log.warning(
                "%s: the disk is too full to free %d bytes of %s: a copy of its %d living bytes must fit, and"
                " %d are free. Free the difference",
                self.directory,
                usage.total_bytes - usage.live_bytes,
                entry_log_name(usage.log_id),
                usage.live_bytes,
                free_bytes,
            )
        self._stuck_at = usage.log_id

    async def _free_bytes(self, margin_bytes: int = _MARGIN_BYTES) -> int:
        usage = await self._disk.run(self._disk.usage, self.directory)
        margin_bytes = min(margin_bytes, usage.total_bytes // 100)
        # A compaction that is killed leaves its copy, and the next start may need what was given for that.
        given_bytes = await self._disk.run(self._flush_reserve.given_bytes)
        return max(0, usage.free_bytes - given_bytes - margin_bytes)

    async def _compact_bundle(self, source_ids: Sequence[int]) -> int:
        """Rewrite these logs into one; return their number. ``CompactionError``: no log was deleted."""
        sources = []
        for log_id in source_ids:
            summary = await self._summary(log_id)
            if summary is None:
                raise SourceUnreadableError(log_id, self.stats.quarantined.get(log_id, "it cannot be read"))
            sources.append(summary)
        copy: CompactionCopy | None = None
        try:
            copy = CompactionCopy(
                self._disk,
                self.directory,
                self._index,
                sources,
                await self._in_thread(self._allocate_id),
                self._is_live,
                slice_bytes=self.config.slice_bytes,
            )
            while (piece := await self._in_thread(copy.step)) is not None:
                self.stats.copied_bytes += piece.copied_bytes
                await self._wait_for(piece.read_bytes, piece.copied_entries)
            await self._in_thread(copy.publish)
        finally:
            if copy is not None:
                with trio.CancelScope(shield=True):
                    await self._in_thread(copy.discard)
        if copy.summary is None:
            kept = await self._still_referenced(source_ids)
            deleted = await self._in_thread(
                partial(delete_sources, self._disk, self.directory, source_ids, None, kept)
            )
            self._forget(deleted)
        else:
            self._summaries.add(copy.summary)
            await self._relocate(copy.target_id, tuple(source_ids))
            live_bytes = copy.summary.live_bytes(self._is_live)
            self._usages[copy.target_id] = LogUsage(copy.target_id, copy.summary.total_bytes, live_bytes)
        self.stats.compacted_logs += len(sources)
        self.stats.compacted_bytes += sum(source.total_bytes for source in sources)
        return len(sources)

    def _allocate_id(self) -> int:
        try:
            return self._writer.ids.allocate()
        except OSError as exc:
            raise CompactionError(f"{self.directory}: no id for a new log can be recorded: {exc}") from exc

    async def _relocate(self, target_id: int, source_ids: tuple[int, ...]) -> None:
        relocation = IndexRelocation(
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
            kept = await self._still_referenced(source_ids)
            deleted = await self._in_thread(partial(relocation.finish, kept))
        finally:
            relocation.close()
        self._forget(deleted)

    async def _still_referenced(self, source_ids: Sequence[int]) -> set[int]:
        """Sources that the index still references after all found entries have moved; they must be kept.

        A flipped bit in a length can hide an entry from a scan; a read at its indexed location still finds
        it. ``CompactionError``: the references are unknown, and all sources must be kept.
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
                ledger_ids = None  # its ledgers are unknown: the whole index is scanned
            elif ledger_ids is not None:
                ledger_ids.update(summary.ledger_ids())
        offsets = dict.fromkeys(source_ids, 0)
        kept: set[int] = set()
        if ledger_ids is None:
            kept = await self._referenced(offsets)
        else:
            ordered = sorted(ledger_ids)
            for start in range(0, len(ordered), _LEDGERS_PER_SCAN):
                part = ordered[start : start + _LEDGERS_PER_SCAN]
                kept |= await self._referenced(offsets, part)
        for log_id in kept:
            path = self.directory / entry_log_name(log_id)
            self._quarantine(log_id, f"{path}: the index references entries there that a scan does not find")
        return kept

    async def _referenced(self, offsets: dict[int, int], ledger_ids: Sequence[int] | None = None) -> set[int]:
        """As ``referenced_logs``. ``IndexUnreadableError``: the references to these logs are unknown."""
        try:
            return await self._disk.run(referenced_logs, self._index, offsets, ledger_ids)
        except (OSError, FormatError) as exc:
            raise IndexUnreadableError(offsets, str(exc)) from exc

    async def _wait_for(self, size_bytes: int, entries: int) -> None:
        units = size_bytes if self.config.rate_entries_per_s is None else entries
        await trio.sleep(self._bucket.take(units, trio.current_time()))

    # --- reports ---

    def _quarantine(self, log_id: int, why: str) -> None:
        if log_id not in self.stats.quarantined:
            log.error(
                "%s. The log is kept and its space is not freed until an operator has inspected it", why
            )
            self.stats.quarantined[log_id] = why
        self._usages.pop(log_id, None)

    def _failed(self, error: BaseException) -> None:
        log.warning("%s: garbage collection of entry logs: %s", self.directory, error)
        self.stats.failures += 1
        self.stats.last_failure = str(error)

    def _count(self) -> None:
        self.stats.logs = len(self._usages)
        self.stats.total_bytes = sum(usage.total_bytes for usage in self._usages.values())
        self.stats.live_bytes = sum(usage.live_bytes for usage in self._usages.values())
