"""Copying the entries that a bookie may have lost back from the other replicas, until no ledger is in limbo.

If a ledger in limbo is not closed and this bookie has fenced it, the repair first recovers it, as any client
would, but with the password from the metadata. After that its last entry is known. Then the repair copies
each entry that this bookie should hold and does not, newest ledger first, byte for byte from another replica.
When all of them are durable here, the ledger leaves limbo.

A ledger without metadata was deleted. It is deleted here at once, and so are ledgers that are deleted while
the repair pauses.

If an entry cannot be copied now because too few replicas reply, the ledger stays in limbo and the bookie
denies none of its entries. The repair logs that and tries again without end, with growing pauses.

Inside: the entries needed (``held_ranges``, ``missing_ranges``), the rounds, limits, stats.
Not inside: reading replicas (``ledger.read.replica_copy``), recovering (``ledger.recovery``), storing
(``storage``).
Always: a ledger leaves limbo only after each needed entry was found in the index or made durable in the
journal. The metadata used for that are up to date and were read after the ledger had entered limbo. The bytes
in flight are bounded. A restart continues: limbo and the copied entries are stored.

Source: DataIntegrityCheckImpl.java, EntryCopierImpl.java; BP-46; docs/storage-format.md 11.3.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Container, Iterator
from contextlib import AbstractAsyncContextManager
from struct import Struct

import attrs
import trio

from bookie.errors import BookieServerError, StorageFailedError
from bookie.ledger_metadata.gone_ledgers import WATCHED_MAX, GoneLedgers
from bookie.ledger_record import UNKNOWN_KEY, LedgerRecord, lac_of_entry
from bookie.limits import RECORD_BYTES_MAX
from bookie.storage.storage import Storage
from ledger.client import LedgerClient
from ledger.digest import ENTRY_HEADER_BYTES, master_key
from ledger.errors import LedgerError, NoSuchEntryError, NoSuchLedgerError
from ledger.metadata import LedgerMetadata
from ledger.metadata_store.errors import MetadataError
from ledger.read.replica_copy import ReplicaCopy
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tasks.failure_domain import report_contained

OpenClient = Callable[[], AbstractAsyncContextManager[LedgerClient]]
_IDS = Struct(">qq")
PROGRESS_S = 30.0
RANGE_ENTRIES_MAX = 4096  # checked between two checkpoints of the loop
DELETED_TOGETHER_MAX = 256  # ledgers, with few syncs for all
FAILURES_MAX = 32  # of reads; then the ledger waits for the next round, since no replica seems to reply

log = get_logger(__name__)


@attrs.frozen(kw_only=True)
class IntegrityConfig:
    """How much of this machine and of the other bookies the repair may use."""

    copies_in_flight_max: int = attrs.field(default=4, validator=attrs.validators.ge(1))
    batch_bytes_max: int = attrs.field(default=1 << 20, validator=attrs.validators.ge(1))
    """In one read; a larger entry is read alone."""
    rate_bytes_max: int = attrs.field(default=32 << 20, validator=attrs.validators.ge(0))
    """Per second; 0: no limit."""
    pause_s: float = attrs.field(default=3.0, validator=attrs.validators.gt(0))
    """Before failed ledgers are tried again; doubled after each round without progress."""
    pause_max_s: float = attrs.field(default=300.0, validator=attrs.validators.gt(0))


@attrs.define(eq=False)
class IntegrityStats:
    """The work done since the start, and the work left."""

    ledgers_in_limbo: int = 0
    ledgers_repaired: int = 0
    ledgers_recovered: int = 0
    ledgers_deleted: int = 0
    entries_copied: int = 0
    bytes_copied: int = 0
    entries_lost: Counter[int] = attrs.field(factory=Counter)
    """By ledger: the entries that no other replica had at the last attempt."""
    last_failure: str | None = None


def held_ranges(metadata: LedgerMetadata, bookie_id: str) -> Iterator[tuple[int, int, int]]:
    """Ranges of entries that may be stored on a bookie, newest first: (first, last, index in the ensemble).

    Each range has at most ``RANGE_ENTRIES_MAX`` entries. If the ledger is not closed, the last ensemble is
    left out, because its entries are not final.
    """
    stop = metadata.last_entry_id + 1 if metadata.is_closed else metadata.last_ensemble.first_entry_id
    for ensemble in reversed(metadata.ensembles):
        first = ensemble.first_entry_id
        if bookie_id in ensemble.bookies:
            own = ensemble.bookies.index(bookie_id)
            for end in range(stop, first, -RANGE_ENTRIES_MAX):
                yield max(first, end - RANGE_ENTRIES_MAX), end - 1, own
        stop = min(stop, first)


def missing_ranges(
    first: int, last: int, own: int, ensemble_size: int, write_quorum: int, have: Container[int]
) -> Iterator[tuple[int, int]]:
    """First and last ids of the consecutive entries in a range that a bookie should have and lacks.

    Args:
        own: The index of the bookie in the ensemble of the range.
        have: The ids of the entries that the bookie has.
    """
    begin: int | None = None
    for entry_id in range(first, last + 1):
        # The write set of an entry: ``write_quorum`` indices from ``entry_id`` on, modulo the ensemble size.
        if (own - entry_id) % ensemble_size < write_quorum and entry_id not in have:
            if begin is None:
                begin = entry_id
        elif begin is not None:
            yield begin, entry_id - 1
            begin = None
    if begin is not None:
        yield begin, last


def is_entry(ledger_id: int, entry_id: int, body: bytes) -> bool:
    """True if another bookie's reply can be stored as this entry. The digest was checked, if there is one."""
    if not ENTRY_HEADER_BYTES <= len(body) <= RECORD_BYTES_MAX:
        return False
    return bool(_IDS.unpack_from(body) == (ledger_id, entry_id))


class IntegrityRepair:
    """The repair of one running bookie."""

    def __init__(
        self,
        storage: Storage,
        bookie_id: str,
        open_client: OpenClient,
        gone: GoneLedgers,
        config: IntegrityConfig | None = None,
    ) -> None:
        """``open_client`` opens a client of the cluster for each round of repairs."""
        self._gone_ledgers = gone
        self._without_metadata: list[int] = []
        self.stats = IntegrityStats()
        self._storage, self._bookie_id, self._open_client = storage, bookie_id, open_client
        self._config = config or IntegrityConfig()
        self._bytes_allowed_at = 0.0
        self._logged_at = 0.0

    async def run(self) -> None:
        """Repair until no ledger is in limbo or the storage fails. If cancelled, a later start continues."""
        pause_s = self._config.pause_s
        while records := self._in_limbo():
            done_before = self.stats.ledgers_repaired
            try:
                async with self._open_client() as client:
                    await self._round(client, records)
            except StorageFailedError:
                return  # ``Storage.wait_failed`` reports it
            except (LedgerError, MetadataError, OSError) as exc:
                self._note_failure(f"{type(exc).__name__}: {exc}")
            except Exception as exc:
                # The bookie serves without the repair, so an unexpected error must not stop it.
                report_contained("repair of ledgers in limbo", exc)
                self._note_failure(f"{type(exc).__name__}: {exc}")
            self.stats.ledgers_in_limbo = len(self._in_limbo())
            if not self.stats.ledgers_in_limbo:
                break
            pause_s = (
                self._config.pause_s
                if self.stats.ledgers_repaired > done_before
                else min(2 * pause_s, self._config.pause_max_s)
            )
            log.warning(
                "bookie %s: %d ledgers are still in limbo, the next attempt is in %g s; last failure: %s",
                self._bookie_id,
                self.stats.ledgers_in_limbo,
                pause_s,
                self.stats.last_failure,
            )
            with trio.move_on_after(pause_s):
                await self._follow_deletions()
        self.stats.ledgers_in_limbo = 0
        if self.stats.ledgers_repaired:
            log.info(
                "bookie %s has all its entries again: %d ledgers repaired, %d entries of %d bytes copied",
                self._bookie_id,
                self.stats.ledgers_repaired,
                self.stats.entries_copied,
                self.stats.bytes_copied,
            )

    def _in_limbo(self) -> list[LedgerRecord]:
        """The ledgers in limbo, newest first."""
        records = map(self._storage.ledger, reversed(self._storage.ledger_ids()))
        return [record for record in records if record is not None and record.limbo]

    async def _round(self, client: LedgerClient, records: list[LedgerRecord]) -> None:
        self._logged_at = trio.current_time()
        for done, record in enumerate(records):
            self.stats.ledgers_in_limbo = len(records) - done
            try:
                await self._repair(client, record)
            except NoSuchLedgerError:
                self._without_metadata.append(record.ledger_id)
                if len(self._without_metadata) >= DELETED_TOGETHER_MAX:
                    await self._delete_gone()
            except StorageFailedError:
                raise
            except (LedgerError, BookieServerError) as exc:
                self._note_failure(f"ledger {record.ledger_id}: {exc}")
            except (MetadataError, OSError):
                raise
            except Exception as exc:
                report_contained("repair of ledgers in limbo", exc, ledger_id=record.ledger_id)
                self._note_failure(f"ledger {record.ledger_id}: {type(exc).__name__}: {exc}")
            self._log_progress()
        await self._delete_gone()

    async def _delete_gone(self) -> None:
        """Delete the ledgers whose metadata were not found, if the store confirms that they do not exist."""
        gone, self._without_metadata = self._without_metadata, []
        if not gone:
            return
        try:
            deleted = await self._gone_ledgers.delete(gone)
        except StorageFailedError:
            raise
        except (BookieServerError, MetadataError) as exc:
            self._note_failure(f"{len(gone)} ledgers without metadata are kept: {exc}")
        else:
            self.stats.ledgers_deleted += len(deleted)

    async def _follow_deletions(self) -> None:
        """Delete ledgers in limbo as soon as they are deleted from the cluster; return if none is left."""
        while left := [record.ledger_id for record in self._in_limbo()]:
            try:
                await self._gone_ledgers.wait_change(left)
                self._without_metadata = left[:WATCHED_MAX]
                await self._delete_gone()
            except StorageFailedError:
                return  # the next round ends the repair
            except Exception as exc:
                if not isinstance(exc, MetadataError):
                    report_contained("following deletions", exc)
                self._note_failure(f"{type(exc).__name__}: {exc}")
            if self._in_limbo():
                await trio.sleep(self._config.pause_s)  # so that a flapping connection keeps nothing busy

    async def _repair(self, client: LedgerClient, record: LedgerRecord) -> None:
        ledger_id = record.ledger_id
        copy = await client.replica_copy(ledger_id, self._bookie_id)
        await self._delete_gone()  # before the copying, which may take long
        if record.fenced and not copy.metadata.is_closed:
            # This bookie refuses its writer, so only a recovery can determine the last entry. A ledger that
            # is not fenced can have lost entries only before its last ensemble.
            await client.recover(ledger_id)
            self.stats.ledgers_recovered += 1
            copy = await client.replica_copy(ledger_id, self._bookie_id)
        if not self._is_present(record):
            return
        if record.master_key == UNKNOWN_KEY and copy.metadata.password is not None:
            batch = self._storage.new_batch()
            self._storage.create_ledger(batch, ledger_id, master_key(copy.metadata.password))
            await self._storage.submit_durably(batch)
        have = set(await self._storage.entry_ids(ledger_id))
        await self._copy_missing(copy, record, have)
        if self._is_present(record):
            await self._storage.submit_durably(self._storage.new_batch())  # entries of ``have``, too
            self._storage.leave_limbo(record)
            self.stats.entries_lost.pop(ledger_id, None)
            self.stats.ledgers_repaired += 1

    def _is_present(self, record: LedgerRecord) -> bool:
        """False if the ledger was deleted meanwhile."""
        return self._storage.ledger(record.ledger_id) is record

    async def _copy_missing(self, copy: ReplicaCopy, record: LedgerRecord, have: Container[int]) -> None:
        """Copy all entries that can be copied; then raise the first error, if any."""
        errors: list[Exception] = []
        self.stats.entries_lost.pop(record.ledger_id, None)
        metadata = copy.metadata
        ranges = held_ranges(metadata, self._bookie_id)

        async def work() -> None:
            for first, last, own in ranges:
                await trio.lowlevel.checkpoint()
                for missing in missing_ranges(
                    first, last, own, metadata.ensemble_size, metadata.write_quorum, have
                ):
                    try:
                        await self._copy_range(copy, record, *missing, errors)
                    except (StorageFailedError, OSError) as exc:
                        errors.insert(0, exc)
                    if len(errors) > FAILURES_MAX or (errors and not isinstance(errors[0], LedgerError)):
                        return

        async with trio.open_nursery() as nursery:
            for _ in range(self._config.copies_in_flight_max):
                nursery.start_soon(work)
        if errors:
            raise errors[0]

    async def _copy_range(
        self, copy: ReplicaCopy, record: LedgerRecord, first: int, last: int, errors: list[Exception]
    ) -> None:
        while first <= last and self._is_present(record) and len(errors) <= FAILURES_MAX:
            await self._storage.wait_capacity()
            try:
                bodies = await copy.read(first, last, self._config.batch_bytes_max)
            except NoSuchEntryError as exc:
                self.stats.entries_lost[record.ledger_id] += 1
                errors[:] = errors or [exc]  # not counted against FAILURES_MAX: the replicas did reply
                first += 1
            except LedgerError as exc:
                errors.append(exc)
                first += 1
            else:
                fitting = [
                    body
                    for _, body in itertools.takewhile(
                        lambda one: is_entry(record.ledger_id, *one), enumerate(bodies, first)
                    )
                ]
                if not fitting:
                    # An Apache bookie with a greater frame limit may hold longer entries.
                    size = f"of {len(bodies[0])} bytes " if bodies else ""
                    text = (
                        f"its entry {first} {size}is longer than this bookie can store, or not of this ledger"
                    )
                    errors.append(LedgerError(text))
                    first += 1
                    continue
                await self._wait_allowed(sum(map(len, fitting)))
                await self._store(record, first, fitting)
                first += len(fitting)
                self._log_progress()

    async def _store(self, record: LedgerRecord, first: int, bodies: list[bytes]) -> None:
        if not self._is_present(record):
            return
        batch = self._storage.new_batch()
        for entry_id, body in enumerate(bodies, first):
            self._storage.stage_entry(batch, record, entry_id, lac_of_entry(entry_id, body), body)
        await self._storage.submit_durably(batch)
        self.stats.entries_copied += len(bodies)
        self.stats.bytes_copied += sum(map(len, bodies))

    async def _wait_allowed(self, size_bytes: int) -> None:
        rate = self._config.rate_bytes_max
        if rate:
            start = max(self._bytes_allowed_at, trio.current_time())
            self._bytes_allowed_at = start + size_bytes / rate
            await trio.sleep_until(start)

    def _note_failure(self, text: str) -> None:
        self.stats.last_failure = text
        log.debug("bookie %s: %s", self._bookie_id, text)

    def _log_progress(self) -> None:
        now = trio.current_time()
        if now >= self._logged_at + PROGRESS_S:
            self._logged_at = now
            stats = self.stats
            log.info(
                "bookie %s: %d ledgers in limbo; so far %d ledgers repaired, %d entries of %d bytes copied",
                self._bookie_id,
                stats.ledgers_in_limbo,
                stats.ledgers_repaired,
                stats.entries_copied,
                stats.bytes_copied,
            )
