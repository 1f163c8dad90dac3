"""Reading entries: from the write cache, from the read cache, or by index and entry log.

Inside: the order of the look-ups, batches of consecutive entries, what is read ahead and cached. Not inside:
the caches, the index and the entry logs themselves.
Always: a read looks for an entry in the write cache first and in the index second, because a flush moves
entries from the cache to the index. A read raises "no such entry" only if neither has it. A look-up in the
read cache uses the location that the index names now. An entry that cannot be read is an error, after one
more look at the index: compaction may have moved the entry. A look-up that finds no file descriptor on the
loop is repeated in a reader thread, which waits for one.

Source: SingleDirectoryDbLedgerStorage.java (doGetEntry, read-ahead); docs/storage-format.md 8.6.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import attrs

from bookie.damage.directory_entries import DirectoryEntries
from bookie.disk.descriptors import OUT_OF_DESCRIPTORS
from bookie.entrylog.format import split_location
from bookie.entrylog.reader import READ_BYTES_MAX, neighbours
from bookie.errors import EntryUnreadableError, FormatError, NoEntryError, NoLedgerError
from bookie.index.entry_index import EntryRange
from bookie.ledger_record import LedgerRecord
from bookie.storage.entry_places import EntryPlace
from bookie.storage.read_ahead import WINDOW_BYTES_MAX, EntryReadAhead
from bookie.storage.read_cache import ReadCache
from bookie.storage.write_cache import WriteCache
from ledger.catalog.availability import encode_availability
from ledger.packed_entries import PackedEntries, join_entries, pack_entries

T = TypeVar("T")

WORTHWHILE_BYTES_MIN = 64 << 10  # of a batch, from its first entry to its last
_MOVES_MAX = 4  # of one entry, while it is being read
_LENGTH_BYTES = 4


@attrs.frozen(kw_only=True)
class ReadConfig:
    """How much the reads of one ledger directory may cache and read ahead."""

    cache_bytes_max: int = attrs.field(default=32 << 20, validator=attrs.validators.ge(0))  # 0: none
    # Clients that can open the entry logs get the places of entries if these are this many bytes.
    place_bytes_min: int = attrs.field(default=64 << 10, validator=attrs.validators.ge(1))
    ahead_entries_max: int = attrs.field(default=1024, validator=attrs.validators.ge(0))
    ahead_bytes_max: int = attrs.field(
        default=WINDOW_BYTES_MAX,
        validator=attrs.validators.and_(attrs.validators.ge(0), attrs.validators.le(READ_BYTES_MAX)),
    )


class EntryReads:
    """Reads of one ledger directory. On the loop."""

    def __init__(
        self,
        entries: DirectoryEntries,
        write_cache: WriteCache,
        config: ReadConfig | None = None,
    ) -> None:
        config = config or ReadConfig()
        self._disk = entries.disk
        self._ledgers = entries.ledgers
        self._deleting = entries.deleting
        self._write_cache = write_cache
        self._index = entries.index
        self._reader = entries.reader
        self._place_bytes_min = config.place_bytes_min
        self._ahead_entries_max = config.ahead_entries_max
        self._ahead = EntryReadAhead(
            window_bytes_max=config.ahead_bytes_max
            if config.ahead_entries_max > 1 and config.cache_bytes_max
            else 0
        )
        self._damaged = entries.damaged
        self.read_cache = ReadCache(config.cache_bytes_max)

    def read_cached(self, record: LedgerRecord, entry_id: int) -> bytes | None:
        """The entry's body if it is in memory. Waits for the disk only if the index does."""
        ledger_id = record.ledger_id
        body = self._write_cache.get(record, entry_id)
        if body is not None or not self.read_cache.holds(ledger_id) or ledger_id in self._deleting:
            return body
        try:
            found = self._index.locate(ledger_id, entry_id, 1)
        except (OSError, FormatError):
            return None  # ``read`` raises the error
        if self._damaged and found and self._damaged.evidence(found[0]) is not None:
            return None
        return self.read_cache.get(ledger_id, found[0]) if found else None

    def find(self, record: LedgerRecord, entry_id: int) -> bytes | bool:
        """See ``Storage.find_entry``."""
        body = self._write_cache.get(record, entry_id)
        if body is not None:
            return body
        ledger_id = record.ledger_id
        if ledger_id in self._deleting:
            return False
        try:
            found = self._index.locate(ledger_id, entry_id, 1)
        except (OSError, FormatError):
            return True  # ``read_stored`` raises the error
        return bool(found)

    async def read_stored(self, record: LedgerRecord, entry_id: int) -> bytes | None:
        """See ``Storage.read_stored``."""
        error = EntryUnreadableError(record.ledger_id, entry_id, "compaction moves it")
        for _ in range(_MOVES_MAX):
            found = await self._locate(record, entry_id, 1)
            if not found:
                return None
            location = found[0]
            body: bytes | None = None
            try:
                body = await self._reader.read(record.ledger_id, entry_id, location)
            except EntryUnreadableError as exc:
                error = exc
            self._index.forget_cached()
            if list(self._locate_now(record, entry_id, 1)) != [location]:
                continue  # moved or deleted meanwhile
            if body is None and not error.is_lost:
                raise error
            return body
        raise error

    async def read(self, ledger_id: int, entry_id: int) -> bytes:
        """See ``Storage.read``."""
        record = self._record(ledger_id)
        if (body := self._write_cache.get(record, entry_id)) is not None:
            return body
        found = await self._locate(record, entry_id, 2)
        if not found:
            raise NoEntryError(ledger_id, entry_id)
        location = found[0]
        self._check(ledger_id, entry_id, location)
        if (body := self.read_cache.get(ledger_id, location)) is not None:
            return body
        window = self._ahead.window_bytes(ledger_id, entry_id)
        try:
            if window:
                return (await self._read_ahead(record, entry_id, window))[0]
            next_location = found[1] if len(found) > 1 else 0
            body = await self._reader.read(ledger_id, entry_id, location, next_location=next_location)
        except EntryUnreadableError as exc:
            return await self._read_moved(ledger_id, entry_id, location, exc)
        if self._ledgers.get(ledger_id) is record:  # not deleted meanwhile
            self.read_cache.put(ledger_id, location, body)
        return body

    async def read_batch(
        self, ledger_id: int, first: int, count_max: int, size_bytes_max: int
    ) -> Sequence[bytes]:
        """See ``Storage.read_batch``."""
        record = self._record(ledger_id)
        bodies: list[bytes] = []
        parts: list[PackedEntries] = []  # before ``bodies``: whole reads are passed on as they are
        used = count = 0
        while count < count_max:
            entry_id = first + count
            body = self._write_cache.get(record, entry_id)
            try:
                if body is not None:
                    more: Sequence[bytes] = (body,)
                else:
                    more = await self._read_piece(record, entry_id, count_max - count, size_bytes_max - used)
            except EntryUnreadableError:
                if count:
                    break
                return [await self.read(ledger_id, first)]
            if isinstance(more, PackedEntries) and not bodies and used + len(more.packed) <= size_bytes_max:
                parts.append(more)
                used += len(more.packed)
                count += len(more)
            else:
                for body in more:
                    used += len(body) + _LENGTH_BYTES
                    if used > size_bytes_max and count:
                        return _joined(parts, bodies)
                    bodies.append(body)
                    count += 1
            if not more or used >= size_bytes_max:
                break
            if parts and not bodies and used > size_bytes_max // 2:
                break  # a shorter batch costs less than joining it with another one
        if not count:
            raise NoEntryError(ledger_id, first)
        return _joined(parts, bodies)

    async def place(
        self, record: LedgerRecord, first: int, count_max: int, size_bytes_max: int
    ) -> EntryPlace | None:
        """See ``Storage.place``."""
        ledger_id = record.ledger_id
        found: list[int] = []
        behind = 0
        while (count := len(found)) < count_max:
            # A damaged entry is refused by ``read_batch``, which knows the evidence.
            if self._damaged or self._write_cache.get(record, first + count) is not None:
                break
            locations = self._locate_now(record, first + count, count_max - count)
            if not locations or (found and locations[0] != behind):
                break
            used_bytes = locations[0] - found[0] if found else 0
            taken, span_bytes = neighbours(locations, max(1, size_bytes_max - used_bytes))
            found += locations[:taken]
            if taken < len(locations) or used_bytes + span_bytes >= size_bytes_max:
                break
            behind = await self._reader.location_behind(ledger_id, first + len(found) - 1, found[-1])
            if not behind:
                break
        if (
            not found
            or found[-1] - found[0] < self._place_bytes_min
            or self._ledgers.get(ledger_id) is not record
        ):
            return None
        log_id, offset = split_location(found[0])
        starts = tuple([location - found[0] for location in found])
        return EntryPlace(record.directory, log_id, offset - _LENGTH_BYTES, starts)

    async def entry_ids(self, ledger_id: int) -> list[int]:
        """See ``Storage.entry_ids``."""
        return await self._with_entry_ids(ledger_id, sorted)

    async def availability(self, ledger_id: int) -> bytes:
        """See ``Storage.availability``."""
        return await self._with_entry_ids(ledger_id, lambda ids: encode_availability(sorted(ids)))

    async def _with_entry_ids(self, ledger_id: int, job: Callable[[set[int]], T]) -> T:
        """Do a job with a ledger's ids in a reader thread: a ledger may have millions of them."""
        record = self._record(ledger_id)
        ids = self._write_cache.entry_ids(record)  # before the index: a flush moves entries there
        is_deleting = ledger_id in self._deleting

        def run() -> T:
            if not is_deleting:
                ids.update(self._disk.with_descriptors(partial(self._index.entry_ids, ledger_id)))
            return job(ids)

        try:
            return await self._disk.run(run)
        except (OSError, FormatError) as exc:
            raise EntryUnreadableError(ledger_id, -1, f"the index fails: {exc}") from exc

    def drop_ledger(self, ledger_id: int) -> None:
        """The ledger is being deleted: drop its cached entries and its read-ahead state."""
        self.read_cache.drop_ledger(ledger_id)
        self._ahead.drop_ledger(ledger_id)
        self._damaged.drop_ledger(ledger_id)

    async def _read_piece(
        self, record: LedgerRecord, entry_id: int, count_max: int, size_bytes_max: int
    ) -> Sequence[bytes]:
        """Consecutive entries that the write cache lacks: from the read cache, or from one read."""
        ledger_id = record.ledger_id
        locations = await self._locate(record, entry_id, count_max)
        if not locations or size_bytes_max <= 0:
            return ()
        if len(locations) < count_max and len(locations) > 1:
            locations = self._continued(record, entry_id, locations, count_max, size_bytes_max)
        if self._damaged:
            self._check(ledger_id, entry_id, locations[0])
            locations = list(itertools.takewhile(lambda at: self._damaged.evidence(at) is None, locations))
        cached: list[bytes] = []
        for location in locations:
            if (body := self.read_cache.get(ledger_id, location)) is None:
                break
            cached.append(body)
        if cached:
            return cached
        window = self._ahead.window_bytes(ledger_id, entry_id)
        if window > 0 and locations[-1] - locations[0] < WORTHWHILE_BYTES_MIN:
            # The request is smaller than a worthwhile read: read what the next requests will need, too. For a
            # larger one, a copy of each entry into the cache costs more than a read for each request.
            return (await self._read_ahead(record, entry_id, window))[: len(locations)]
        more = await self._reader.read_batch(
            ledger_id, range(entry_id, entry_id + len(locations)), locations, size_bytes_max
        )
        self._ahead.has_read(ledger_id, entry_id, entry_id + len(more) - 1)
        return more

    def _continued(
        self,
        record: LedgerRecord,
        entry_id: int,
        locations: Sequence[int],
        count_max: int,
        size_bytes_max: int,
    ) -> Sequence[int]:
        """These locations, and those after them that one read takes in: of entries that have the distance of
        the last two. An index looks up no more than one of its chunks, and a short read costs as much."""
        found = list(locations)
        step = found[-1] - found[-2]
        while (
            len(found) < count_max
            and 0 < found[-1] - found[0] < size_bytes_max
            and self._write_cache.get(record, entry_id + len(found)) is None
        ):
            more = self._locate_now(record, entry_id + len(found), count_max - len(found))
            if not more or more[0] - found[-1] != step:
                break
            found += more
        return found

    async def _read_ahead(self, record: LedgerRecord, entry_id: int, window: int) -> Sequence[bytes]:
        """Read and cache the entries of one window from this entry on. Return the consecutive ones."""
        ledger_id = record.ledger_id
        entry_range = await self._following(record, entry_id)
        if not entry_range.locations:  # the storage thread has changed the index meanwhile
            raise EntryUnreadableError(ledger_id, entry_id, "the index no longer names it")
        bodies = await self._reader.read_batch(
            ledger_id, entry_range.entry_ids, entry_range.locations, window
        )
        self._ahead.has_read(ledger_id, entry_id, entry_range.entry_ids[len(bodies) - 1])
        if self._ledgers.get(ledger_id) is record:  # not deleted meanwhile
            for location, body in zip(entry_range.locations, bodies, strict=False):
                self.read_cache.put(ledger_id, location, body)
        count = 1
        while count < len(bodies) and entry_range.entry_ids[count] == entry_id + count:
            count += 1
        return bodies[:count]

    async def _read_moved(
        self, ledger_id: int, entry_id: int, location: int, error: EntryUnreadableError
    ) -> bytes:
        """Read an entry that is not at its location: it may have been moved or deleted meanwhile."""
        for _ in range(_MOVES_MAX):
            self._index.forget_cached()
            found = await self._locate(self._record(ledger_id), entry_id, 1)
            if not found or found[0] == location:
                break
            location = found[0]
            self._check(ledger_id, entry_id, location)
            try:
                return await self._reader.read(ledger_id, entry_id, location)
            except EntryUnreadableError as exc:
                error = exc
        raise error

    def _check(self, ledger_id: int, entry_id: int, location: int) -> None:
        if self._damaged and (evidence := self._damaged.evidence(location)) is not None:
            raise EntryUnreadableError(ledger_id, entry_id, evidence, is_lost=True)

    def _record(self, ledger_id: int) -> LedgerRecord:
        record = self._ledgers.get(ledger_id)
        if record is None:
            raise NoLedgerError(ledger_id)
        return record

    async def _locate(self, record: LedgerRecord, entry_id: int, count_max: int) -> Sequence[int]:
        """As ``_locate_now``, but waits for a file descriptor. Without a checkpoint if there is one."""
        if record.ledger_id in self._deleting:
            return ()
        try:
            try:
                return self._index.locate(record.ledger_id, entry_id, count_max)
            except OSError as exc:
                if exc.errno not in OUT_OF_DESCRIPTORS:
                    raise
            found = await self._disk.run(self._index.locate, record.ledger_id, entry_id, count_max)
        except (OSError, FormatError) as exc:
            raise EntryUnreadableError(record.ledger_id, entry_id, f"the index fails: {exc}") from exc
        return found if self._ledgers.get(record.ledger_id) is record else ()  # deleted meanwhile

    def _locate_now(self, record: LedgerRecord, entry_id: int, count_max: int) -> Sequence[int]:
        if record.ledger_id in self._deleting:
            return ()
        try:
            return self._index.locate(record.ledger_id, entry_id, count_max)
        except (OSError, FormatError) as exc:
            raise EntryUnreadableError(record.ledger_id, entry_id, f"the index fails: {exc}") from exc

    async def _following(self, record: LedgerRecord, entry_id: int) -> EntryRange:
        args = record.ledger_id, entry_id, self._ahead_entries_max
        try:
            try:
                return self._index.following(*args)
            except OSError as exc:
                if exc.errno not in OUT_OF_DESCRIPTORS:
                    raise
            return await self._disk.run(self._index.following, *args)
        except (OSError, FormatError) as exc:
            raise EntryUnreadableError(record.ledger_id, entry_id, f"the index fails: {exc}") from exc


def _joined(parts: list[PackedEntries], bodies: list[bytes]) -> Sequence[bytes]:
    """All entries of a batch: those in parts, and those after them."""
    if not parts:
        return bodies
    return join_entries([*parts, pack_entries(bodies)] if bodies else parts)
