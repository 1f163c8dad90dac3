"""Slowly reads all entries of a ledger directory, to find damage while other replicas have the entries.

Inside: the scan of the index and the entry logs, its rate, reports of damage. Not inside: checksums
(``digest_checker``), digest types (``DigestTypeOf``), the list of damaged entries (``damaged_entries``),
reading (``entrylog.reader``).
Always: memory does not grow with the stored data. An entry is reported only if two reads failed and the index
still references the location after the second. So compaction and deletion cause no false report. Known damage
is dropped only after its whole ledger was checked again. An entry without a checksum that holds counts as
damaged only if the metadata say that its ledger has checksums.

Found: indexed entries whose log is missing or ends before them, whose ids or length are wrong, which the disk
cannot read, or which match neither CRC32 nor CRC32C in a ledger that has one of them. Not found: a changed
payload under a MAC digest (the bookie has no password) or without a digest, or while the metadata cannot be
read; an entry that the index does not reference.

Source: InterleavedLedgerStorage.java (localConsistencyCheck), ScrubberService.java;
docs/storage-format.md 13.1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

import attrs
import trio

from bookie.damage.damaged_entries import DamagedEntry
from bookie.damage.directory_entries import DirectoryEntries
from bookie.digest_checker import CHECKSUM_TYPES, DigestTypeOf, checksum_type
from bookie.disk.token_bucket import TokenBucket
from bookie.entrylog.reader import READ_BYTES_MAX
from bookie.errors import EntryUnreadableError, FormatError, StartError, StorageFailedError
from bookie.index.entry_index import EntryIndex, EntryRange
from bookie.ledger_record import LedgerRecord
from ledger.digest import DigestType
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tasks.failure_domain import report_contained

log = get_logger(__name__)

_BUSY_S = 0.1  # pause before the next check of the load
_BUSY_CHECKS_MAX = 50  # then the scrubber continues: a bookie that is always busy must be scrubbed too
_MOVES_MAX = 5  # an entry that moves more often is left to the next round
_SHOWN_MAX = 3
_LOGGED_MAX = 20  # damaged entries with their own log line, in each round


@attrs.frozen(kw_only=True)
class ScrubConfig:
    """Interval and rate of the scrubber of each ledger directory."""

    interval_s: float = attrs.field(default=86_400.0, validator=attrs.validators.ge(0))  # 0: never
    first_after_s: float = 600.0  # delay of the first round: a starting bookie has other work
    bytes_per_s: float = attrs.field(default=8 << 20, validator=attrs.validators.gt(0))
    entries_per_s: float = attrs.field(default=0, validator=attrs.validators.ge(0))  # 0: unlimited
    on_start: bool = False  # one round at full speed before the bookie serves; damage refuses the start


@attrs.define(eq=False)
class ScrubStats:
    """The work done since the start."""

    rounds: int = 0
    entries: int = 0
    bytes: int = 0
    damaged: int = 0  # damaged entries; one that stays damaged is counted by the round that found it


@attrs.define(eq=False)
class _LedgerScrub:
    """The state of one ledger in one round."""

    record: LedgerRecord
    digest_type: DigestType | None = None  # from the metadata; None: not known, or not asked for
    is_type_read: bool = False
    suspects: deque[int] = attrs.field(factory=deque)  # ids of entries to check again
    found: list[tuple[int, EntryUnreadableError]] = attrs.field(factory=list)  # location and error
    is_whole: bool = True  # False: some entries of the ledger could not be checked
    is_index_unreadable: bool = False


class Scrubber:
    """The scrubber of one ledger directory. Used on the loop."""

    def __init__(
        self,
        entries: DirectoryEntries,
        config: ScrubConfig,
        *,
        digest_type_of: DigestTypeOf | None = None,
        is_busy: Callable[[], bool] = lambda: False,
    ) -> None:
        """Scrub nothing yet.

        Args:
            digest_type_of: Called at most once for each ledger in a round, and only if an entry matches no
                checksum. None: there are no metadata, and no entry is damaged by its digest.
            is_busy: True if other work waits for this disk now.
        """
        self._disk = entries.disk
        self._ledgers = entries.ledgers
        self._deleting = entries.deleting
        self._index = entries.index
        self._reader = entries.reader
        self._damaged = entries.damaged
        self._config = config
        self._digest_type_of = digest_type_of
        self._is_busy = is_busy
        self.stats = ScrubStats()
        # Ledgers of which a part of the index could not be read; a ledger that is healed is removed.
        self.unreadable: set[int] = set()

    def __repr__(self) -> str:
        return f"<Scrubber, {self.stats.rounds} rounds, {len(self._damaged)} damaged entries>"

    async def run(self) -> None:
        """Run rounds until cancelled, at most one in each interval.

        A failed round is logged, and the next one starts from the beginning; the bookie continues. Returns
        if the interval is 0, or if the storage has failed.
        """
        interval_s = self._config.interval_s
        if not interval_s:
            return
        await trio.sleep(min(interval_s, self._config.first_after_s))
        while True:
            began_s = trio.current_time()
            try:
                await self.scrub()
            except StorageFailedError:
                return  # ``wait_failed`` of the storage reports the error
            except Exception as exc:  # any other error ends this round only
                report_contained("round of the scrubber", exc)
            await trio.sleep(max(0.0, began_s + interval_s - trio.current_time()))

    async def scrub(self, *, throttled: bool = True) -> list[EntryUnreadableError]:
        """Run one round; return the damaged entries, for each ledger at most as many as the list holds.

        A cancelled round keeps the damage found so far; the next one starts from the beginning.
        """
        pace = _Pace(self._config, self._is_busy) if throttled else None
        found: list[EntryUnreadableError] = []
        locations: set[int] = set()
        unfinished: set[int] = set()  # ledgers whose known damage is kept
        for record in sorted(self._ledgers.values(), key=lambda record: record.ledger_id):
            ledger = _LedgerScrub(record)
            try:
                await self._scrub_ledger(ledger, pace)
            except StorageFailedError:
                raise
            except Exception as exc:
                report_contained("scrubbing", exc, ledger_id=record.ledger_id)
                ledger.is_whole = False
            if ledger.is_index_unreadable:
                self.unreadable.add(record.ledger_id)
            else:
                self.unreadable.discard(record.ledger_id)
            if not ledger.is_whole:
                unfinished.add(record.ledger_id)
            for location, error in ledger.found:
                locations.add(location)
                found.append(error)
                if len(found) <= _LOGGED_MAX:
                    log.error(
                        "%s. Reads of it fail with an I/O error; clients read another replica if one exists,"
                        " and a bookie of a cluster copies it from there. Check this disk",
                        error,
                    )
        self._damaged.keep_only(locations, unfinished)
        self.stats.rounds += 1
        self.unreadable.intersection_update(self._ledgers)
        if found:
            log.error("the scrubber found %d damaged entries in this round", len(found))
        return found

    async def _scrub_ledger(self, ledger: _LedgerScrub, pace: _Pace | None) -> None:
        record, ledger_id = ledger.record, ledger.record.ledger_id
        first = 0
        while True:
            try:
                entry_range = await self._disk.run(_next_range, self._index, ledger_id, first)
            except (OSError, FormatError) as exc:
                ledger.is_whole = False
                if self._is_live(record):
                    ledger.is_index_unreadable = True
                    log.error(
                        "the index of ledger %d cannot be read from entry %d on: %s", ledger_id, first, exc
                    )
                return
            if entry_range is None or not self._is_live(record):
                return
            await self._scrub_range(ledger, entry_range, pace)
            while ledger.suspects:
                damage = await self._confirm(ledger, ledger.suspects.popleft())
                if damage is None:
                    continue
                location, error = damage
                self.stats.damaged += self._damaged.evidence(location) is None
                self._damaged.add(DamagedEntry(ledger_id, error.entry_id, location, error.evidence))
                if len(ledger.found) < self._damaged.count_max:
                    ledger.found.append(damage)
            first = entry_range.entry_ids[-1] + 1

    async def _scrub_range(self, ledger: _LedgerScrub, entry_range: EntryRange, pace: _Pace | None) -> None:
        """Read the entries, and collect those that may be damaged as suspects."""
        entry_ids, locations = entry_range.entry_ids, entry_range.locations
        at = 0
        while at < len(locations):
            began = at
            try:
                found = await self._reader.read_batch(
                    entry_range.ledger_id, entry_ids[at:], locations[at:], READ_BYTES_MAX
                )
                bodies = list(found)
            except EntryUnreadableError:
                ledger.suspects.append(entry_ids[at])
                at += 1
                size_bytes = 0
            else:
                stop = at + len(bodies)
                size_bytes = sum(map(len, bodies))
                entries = list(zip(entry_ids[at:stop], bodies, strict=True))
                if not ledger.is_type_read or ledger.digest_type in CHECKSUM_TYPES:
                    unmatched = await self._disk.run(_without_checksum, entries)
                    if unmatched and await self._has_checksums(ledger):
                        ledger.suspects += unmatched
                self.stats.entries += len(bodies)
                self.stats.bytes += size_bytes
                at = stop
                del bodies, entries
            if pace is not None:
                await pace.wait(size_bytes, max(1, at - began))

    async def _confirm(self, ledger: _LedgerScrub, entry_id: int) -> tuple[int, EntryUnreadableError] | None:
        """Check an entry again.

        Returns:
            Location and error if it is damaged; None if it is sound, moved or deleted.
        """
        record, ledger_id = ledger.record, ledger.record.ledger_id
        failed: tuple[int, EntryUnreadableError] | None = None
        for _ in range(_MOVES_MAX):
            self._index.forget_cached()
            try:
                located = await self._disk.run(self._index.locate, ledger_id, entry_id)
            except (OSError, FormatError):
                ledger.is_whole = False
                return None  # the next read of the index reports the error
            if not located or not self._is_live(record):
                return None
            if failed is not None and failed[0] == located[0]:
                return failed  # after the failed check the index still references the location
            try:
                body = await self._reader.read(ledger_id, entry_id, located[0])
            except EntryUnreadableError as exc:
                failed = located[0], exc
                continue
            unmatched = await self._disk.run(_without_checksum, [(entry_id, body)])
            if not unmatched or not await self._has_checksums(ledger):
                return None
            assert ledger.digest_type is not None  # ``_has_checksums`` says no without a type
            evidence = f"its {ledger.digest_type.value} digest does not match"
            failed = located[0], EntryUnreadableError(ledger_id, entry_id, evidence)
        ledger.is_whole = False
        return None  # the entry moved too often; the next round checks it

    async def _has_checksums(self, ledger: _LedgerScrub) -> bool:
        """True if the metadata say that the ledger has CRC32C or CRC32 digests."""
        if not ledger.is_type_read:
            ledger.is_type_read = True
            if self._digest_type_of is not None:
                ledger.digest_type = await self._digest_type_of(ledger.record.ledger_id)
                # Not known now: its known damage remains.
                ledger.is_whole &= ledger.digest_type is not None
        return ledger.digest_type in CHECKSUM_TYPES

    def _is_live(self, record: LedgerRecord) -> bool:
        """True if the ledger was not deleted, and not created again under the same id."""
        return self._ledgers.get(record.ledger_id) is record and record.ledger_id not in self._deleting


class _Pace:
    """The rate limit of one round."""

    def __init__(self, config: ScrubConfig, is_busy: Callable[[], bool]) -> None:
        self._bytes = TokenBucket(config.bytes_per_s, burst=READ_BYTES_MAX)
        self._entries = TokenBucket(config.entries_per_s, burst=1) if config.entries_per_s else None
        self._is_busy = is_busy

    async def wait(self, size_bytes: int, entries_count: int) -> None:
        now_s = trio.current_time()
        wait_s = self._bytes.take(size_bytes, now_s)
        if self._entries is not None:
            wait_s = max(wait_s, self._entries.take(entries_count, now_s))
        await trio.sleep(wait_s)
        for _ in range(_BUSY_CHECKS_MAX):
            if not self._is_busy():
                break
            await trio.sleep(_BUSY_S)


def _without_checksum(entries: Iterable[tuple[int, bytes]]) -> list[int]:
    """The ids of the entries that match neither CRC32C nor CRC32."""
    return [entry_id for entry_id, body in entries if checksum_type(body) is None]


def _next_range(index: EntryIndex, ledger_id: int, first_entry_id: int) -> EntryRange | None:
    """The index range that begins with the first entry at or after ``first_entry_id``. Blocks."""
    for entry_range in index.ranges(ledger_id, first_entry_id):
        at = 0
        while at < len(entry_range.entry_ids) and entry_range.entry_ids[at] < first_entry_id:
            at += 1
        if at < len(entry_range.entry_ids):
            return EntryRange(ledger_id, entry_range.entry_ids[at:], entry_range.locations[at:])
    return None


async def scrub_before_serving(scrubbers: Sequence[Scrubber]) -> None:
    """Run one round of each at full speed. ``StartError`` with the first few damaged entries, if any."""
    damaged = [error for scrubber in scrubbers for error in await scrubber.scrub(throttled=False)]
    if damaged:
        more = f" and {len(damaged) - _SHOWN_MAX} more" if len(damaged) > _SHOWN_MAX else ""
        raise StartError(
            f"the check on start (localConsistencyCheckOnStartup) found {len(damaged)} damaged entries:"
            f" {'; '.join(map(str, damaged[:_SHOWN_MAX]))}{more}. Start without it to serve the other entries"
            " while these are re-replicated"
        )
