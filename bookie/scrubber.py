"""Reads all that a ledger directory holds, slowly, to find damage while other replicas have the entries.

Inside: the walk from the index to the entry logs, its pace, what is told of damage. Not inside: which digest
a ledger has (``digest_witness``), what is remembered (``damaged_entries``), reading (``entry_log_reader``).
Always: memory does not grow with what is stored; an entry is called damaged only if it was read twice in vain
and the index, asked again, still names the place: compaction and deletions raise no alarm; known damage is
forgotten only after all of its ledger was looked at again.

Found: indexed entries whose log is gone or ends before them, whose ids or length are not theirs, which the
disk cannot read, and those with a CRC32 or CRC32C digest that does not hold. Not found: a changed payload
under a MAC digest (the bookie has no password) or none; an entry the index does not name.

Source: InterleavedLedgerStorage.java (localConsistencyCheck), ScrubberService.java; reference on bookie
storage 6.7.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence

import attrs
import trio

from bookie.damaged_entries import DamagedEntries
from bookie.digest_witness import DigestWitness
from bookie.disk import Disk
from bookie.entry_log_reader import RUN_BYTES_MAX, EntryLogReader
from bookie.errors import EntryUnreadableError, FormatError, StartError, StorageFailedError
from bookie.index import EntryIndex, LedgerRun
from bookie.ledgers import LedgerRecord
from bookie.token_bucket import TokenBucket

log = logging.getLogger(__name__)

_BUSY_S = 0.1  # a look at the load
_BUSY_LOOKS_MAX = 50  # then it goes on all the same: a bookie that is always busy needs it, too
_MOVES_MAX = 5  # of one entry, while it is looked at
_SHOWN_MAX = 3
_TOLD_MAX = 20  # damaged entries with a line of their own, in each round


@attrs.frozen(kw_only=True)
class ScrubConfig:
    """How often and how fast each ledger directory is read."""

    interval_s: float = attrs.field(default=86_400.0, validator=attrs.validators.ge(0))  # 0: never
    first_after_s: float = 600.0  # a bookie that has just been started has other work
    bytes_per_s: float = attrs.field(default=8 << 20, validator=attrs.validators.gt(0))
    entries_per_s: float = attrs.field(default=0, validator=attrs.validators.ge(0))  # 0: no such limit
    on_start: bool = False  # once, at full speed, before anybody is served; damage stops the start


@attrs.define(eq=False)
class ScrubFigures:
    """What was done since the start."""

    rounds: int = 0
    entries: int = 0
    bytes: int = 0
    damaged: int = 0  # found, each once a round


@attrs.define(eq=False)
class _Look:
    """At one ledger, in one round."""

    record: LedgerRecord
    witness: DigestWitness = attrs.field(factory=DigestWitness)
    doubted: deque[tuple[int, bool]] = attrs.field(
        factory=deque
    )  # entries; whether the witness has seen them
    found: list[tuple[int, EntryUnreadableError]] = attrs.field(factory=list)  # where, and what
    is_whole: bool = True  # all that the index should have of it was looked at


class Scrubber:
    """Of one ledger directory. On the loop."""

    def __init__(
        self,
        disk: Disk,
        ledgers: Mapping[int, LedgerRecord],
        deleting: Collection[int],
        index: EntryIndex,
        reader: EntryLogReader,
        damaged: DamagedEntries,
        config: ScrubConfig,
        *,
        is_busy: Callable[[], bool] = lambda: False,
    ) -> None:
        """``is_busy``: whether others wait for this disk now."""
        self._disk = disk
        self._ledgers = ledgers
        self._deleting = deleting
        self._index = index
        self._reader = reader
        self._damaged = damaged
        self._config = config
        self._is_busy = is_busy
        self.figures = ScrubFigures()

    def __repr__(self) -> str:
        return f"<Scrubber, {self.figures.rounds} rounds, {len(self._damaged)} damaged entries>"

    async def run(self) -> None:
        """Round after round, until cancelled; at most one in each interval.

        A round that fails is logged, and the next one begins anew: no bookie ends since it was looked after.
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
                return  # told by wait_failed
            except Exception:  # whatever it is: reported here, and here it stops
                log.exception("a round of the scrubber failed; the next one is in %g s", interval_s)
            await trio.sleep(max(0.0, began_s + interval_s - trio.current_time()))

    async def scrub(self, *, throttled: bool = True) -> list[EntryUnreadableError]:
        """One round: what is damaged, at most as many as are remembered.

        A cancelled round leaves what it has found; the next one begins anew.
        """
        pace = _Pace(self._config, self._is_busy) if throttled else None
        found: list[EntryUnreadableError] = []
        places: set[int] = set()
        unfinished: set[int] = set()  # ledgers; what is known of them stays known
        for record in sorted(self._ledgers.values(), key=lambda record: record.ledger_id):
            look = _Look(record)
            await self._scrub_ledger(look, pace)
            if not look.is_whole:
                unfinished.add(record.ledger_id)
            for location, error in look.found:
                places.add(location)
                found.append(error)
                if len(found) <= _TOLD_MAX:
                    log.error(
                        "%s. Reads of it are answered with an I/O error; another replica has it, if it has"
                        " any: let the ledger be replicated anew, and look after this disk",
                        error,
                    )
        self._damaged.keep_only(places, unfinished)
        self.figures.rounds += 1
        if found:
            log.error("the scrubber found %d damaged entries in this round", len(found))
        return found

    async def _scrub_ledger(self, look: _Look, pace: _Pace | None) -> None:
        record, ledger_id = look.record, look.record.ledger_id
        first = 0
        while True:
            try:
                run = await self._disk.run(_next_run, self._index, ledger_id, first)
            except (OSError, FormatError) as exc:
                look.is_whole = False
                if self._is_live(record):
                    log.error("the index of ledger %d from entry %d on: %s", ledger_id, first, exc)
                return
            if run is None or not self._is_live(record):
                return
            await self._scrub_run(look, run, pace)
            while look.doubted:
                damage = await self._confirm(look, *look.doubted.popleft())
                if damage is None:
                    continue
                self.figures.damaged += 1
                self._damaged.add(ledger_id, damage[0], damage[1].evidence)
                if len(look.found) < self._damaged.count_max:
                    look.found.append(damage)
            first = run.entry_ids[-1] + 1

    async def _scrub_run(self, look: _Look, run: LedgerRun, pace: _Pace | None) -> None:
        """Read it, and doubt what may be damaged."""
        entry_ids, locations = run.entry_ids, run.locations
        at = 0
        while at < len(locations):
            began = at
            try:
                bodies = await self._reader.read_run(
                    run.ledger_id, entry_ids[at:], locations[at:], RUN_BYTES_MAX
                )
            except EntryUnreadableError:
                look.doubted.append((entry_ids[at], False))
                at += 1
                size_bytes = 0
            else:
                stop = at + len(bodies)
                size_bytes = sum(map(len, bodies))
                seen = list(zip(entry_ids[at:stop], bodies, strict=True))
                look.doubted += [(one, True) for one in await self._disk.run(look.witness.look, seen)]
                self.figures.entries += len(bodies)
                self.figures.bytes += size_bytes
                at = stop
                del bodies, seen
            if pace is not None:
                await pace.wait(size_bytes, max(1, at - began))

    async def _confirm(
        self, look: _Look, entry_id: int, is_seen: bool
    ) -> tuple[int, EntryUnreadableError] | None:
        """Look again; where it is damaged and how, unless it is not, or not there any more.

        ``is_seen``: the witness knows it. To be shown an entry may make him doubt others.
        """
        record, ledger_id, witness = look.record, look.record.ledger_id, look.witness
        failed: tuple[int, EntryUnreadableError] | None = None
        for _ in range(_MOVES_MAX):
            self._index.forget_cached()
            try:
                place = await self._disk.run(self._index.locate, ledger_id, entry_id)
            except (OSError, FormatError):
                look.is_whole = False
                return None  # the index says so itself when it is asked
            if not place or not self._is_live(record):
                return None
            if failed is not None and failed[0] == place[0]:
                return failed  # after a look that failed the index still names the place
            try:
                body = await self._reader.read(ledger_id, entry_id, place[0])
            except EntryUnreadableError as exc:
                failed = place[0], exc
                continue
            if is_seen:
                is_sound = await self._disk.run(witness.holds, body)
            else:
                doubted = await self._disk.run(witness.look, [(entry_id, body)])
                look.doubted += [(one, True) for one in doubted if one != entry_id]
                is_seen, is_sound = True, entry_id not in doubted
            if is_sound:
                return None
            assert witness.digest_type is not None
            evidence = f"its {witness.digest_type.value} digest does not hold"
            failed = place[0], EntryUnreadableError(ledger_id, entry_id, evidence)
        look.is_whole = False
        return None  # it moves faster than it can be read: the next round will see

    def _is_live(self, record: LedgerRecord) -> bool:
        """Not deleted, nor made anew under the same id."""
        return self._ledgers.get(record.ledger_id) is record and record.ledger_id not in self._deleting


class _Pace:
    """How fast one round may go."""

    def __init__(self, config: ScrubConfig, is_busy: Callable[[], bool]) -> None:
        self._bytes = TokenBucket(config.bytes_per_s, burst=RUN_BYTES_MAX)
        self._entries = TokenBucket(config.entries_per_s, burst=1) if config.entries_per_s else None
        self._is_busy = is_busy

    async def wait(self, size_bytes: int, entries_count: int) -> None:
        now_s = trio.current_time()
        wait_s = self._bytes.take(size_bytes, now_s)
        if self._entries is not None:
            wait_s = max(wait_s, self._entries.take(entries_count, now_s))
        await trio.sleep(wait_s)
        for _ in range(_BUSY_LOOKS_MAX):
            if not self._is_busy():
                break
            await trio.sleep(_BUSY_S)


def _next_run(index: EntryIndex, ledger_id: int, first_entry_id: int) -> LedgerRun | None:
    """The piece of the index that begins with the first entry from there on. Blocks."""
    for run in index.runs(ledger_id, first_entry_id):
        at = 0
        while at < len(run.entry_ids) and run.entry_ids[at] < first_entry_id:
            at += 1
        if at < len(run.entry_ids):
            return LedgerRun(ledger_id, run.entry_ids[at:], run.locations[at:])
    return None


async def scrub_before_serving(scrubbers: Sequence[Scrubber]) -> None:
    """One round of each, at full speed. ``StartError`` with the first few if anything is damaged."""
    damaged = [error for scrubber in scrubbers for error in await scrubber.scrub(throttled=False)]
    if damaged:
        more = f" and {len(damaged) - _SHOWN_MAX} more" if len(damaged) > _SHOWN_MAX else ""
        raise StartError(
            f"the check on start (localConsistencyCheckOnStartup) found {len(damaged)} damaged entries:"
            f" {'; '.join(map(str, damaged[:_SHOWN_MAX]))}{more}. Start without it to serve all others while"
            " these are replicated anew"
        )
