"""Bringing back what a bookie has lost, from the other replicas, ledger by ledger, until nothing is in limbo.

A ledger in limbo that is not closed and that this bookie has fenced is recovered first, as any client would,
but with the password from the metadata: then it has an end. Then every entry this bookie should hold and does
not is copied, newest ledger first, as the bytes that another replica stores. When all of them are durable
here, the ledger leaves limbo; a bookie without ledgers in limbo is like any other.

What cannot be brought back now (too few replicas answer) is tried again, for ever, ever more seldom, and told
of: the ledger stays in limbo, and nothing of it is denied.

Inside: which entries are wanted (``held_ranges``, ``missing_runs``), the rounds, limits, figures. Not inside:
reading replicas (``ledger.replica_copy``), recovering (``ledger.opening``), storing (``storage``).
Always: limbo ends only after every wanted entry was found in the index or was made durable in the journal;
metadata by which that is judged were read when the ledger was in limbo already, and up to date; bytes in
flight are bounded. Survives a restart: limbo is stored, and what was copied is there.

Source: DataIntegrityCheckImpl.java, EntryCopierImpl.java; BP-46; reference on bookie storage 6.3.
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Container, Iterator
from contextlib import AbstractAsyncContextManager
from struct import Struct

import attrs
import trio

from bookie.errors import BookieServerError, StorageFailedError
from bookie.journal_format import RECORD_BYTES_MAX
from bookie.ledgers import UNKNOWN_KEY, LedgerRecord
from bookie.storage import Storage
from ledger.client import LedgerClient
from ledger.digest import ENTRY_HEADER_BYTES, master_key
from ledger.errors import LedgerError, NoSuchEntryError, NoSuchLedgerError
from ledger.metadata import LedgerMetadata
from ledger.replica_copy import ReplicaCopy
from namespace.errors import NamespaceError

OpenClient = Callable[[], AbstractAsyncContextManager[LedgerClient]]
_LAC = Struct(">q")
_LAC_AT = 16
PROGRESS_S = 30.0
RANGE_ENTRIES_MAX = 4096  # looked through without letting others run
FAILURES_MAX = 32  # of reads, before a ledger is left for later: nobody seems to answer

log = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class IntegrityConfig:
    """How much of the machine and of the others' the repair may take."""

    runs_in_flight_max: int = attrs.field(default=4, validator=attrs.validators.ge(1))
    run_bytes_max: int = attrs.field(default=1 << 20, validator=attrs.validators.ge(1))
    """Asked for at once; an entry that is larger comes alone."""
    rate_bytes_max: int = attrs.field(default=32 << 20, validator=attrs.validators.ge(0))
    """In a second; 0: no limit."""
    pause_s: float = attrs.field(default=3.0, validator=attrs.validators.gt(0))
    """Before what could not be done is tried again; doubled each time."""
    pause_max_s: float = attrs.field(default=300.0, validator=attrs.validators.gt(0))


@attrs.define(eq=False)
class IntegrityFigures:
    """What has been done since the start, and what is left."""

    ledgers_in_limbo: int = 0
    ledgers_repaired: int = 0
    ledgers_recovered: int = 0
    entries_copied: int = 0
    bytes_copied: int = 0
    entries_lost: Counter[int] = attrs.field(factory=Counter)
    """By ledger: entries that no other replica has, at the last try."""
    last_failure: str | None = None


def held_ranges(metadata: LedgerMetadata, bookie_id: str) -> Iterator[tuple[int, int, int]]:
    """First and last entry ids that a bookie holds a share of, and its index in their ensemble; newest first.

    In pieces of a bounded length. Of a ledger that is not closed, those in front of the last ensemble: they
    are complete.
    """
    stop = metadata.last_entry_id + 1 if metadata.is_closed else metadata.last_ensemble.first_entry_id
    for ensemble in reversed(metadata.ensembles):
        first = ensemble.first_entry_id
        if bookie_id in ensemble.bookies:
            own = ensemble.bookies.index(bookie_id)
            for end in range(stop, first, -RANGE_ENTRIES_MAX):
                yield max(first, end - RANGE_ENTRIES_MAX), end - 1, own
        stop = min(stop, first)


def missing_runs(
    first: int, last: int, own: int, ensemble_size: int, write_quorum: int, have: Container[int]
) -> Iterator[tuple[int, int]]:
    """First and last ids of the runs of entries that a bookie should have in a range, and has not.

    Args:
        own: The bookie's index in the ensemble of the range.
    """
    begin: int | None = None
    for entry_id in range(first, last + 1):
        # Its write set is the ``write_quorum`` indices from ``entry_id`` on, in a circle.
        if (own - entry_id) % ensemble_size < write_quorum and entry_id not in have:
            if begin is None:
                begin = entry_id
        elif begin is not None:
            yield begin, entry_id - 1
            begin = None
    if begin is not None:
        yield begin, last


class IntegrityRepair:
    """The repair of one running bookie."""

    def __init__(
        self,
        storage: Storage,
        bookie_id: str,
        open_client: OpenClient,
        config: IntegrityConfig | None = None,
    ) -> None:
        """``open_client``: a client of the cluster's ledgers, opened while there is something to do."""
        self.figures = IntegrityFigures()
        self._storage, self._bookie_id, self._open_client = storage, bookie_id, open_client
        self._config = config or IntegrityConfig()
        self._bytes_allowed_at = 0.0
        self._told_at = 0.0

    async def run(self) -> None:
        """Return when nothing is in limbo, or the storage has failed. If cancelled, a later start goes on."""
        pause_s = self._config.pause_s
        while left := self._in_limbo():
            done_before = self.figures.ledgers_repaired
            try:
                async with self._open_client() as client:
                    await self._round(client, left)
            except StorageFailedError:
                return  # told by wait_failed
            except (LedgerError, NamespaceError, OSError) as exc:
                self._failed(f"{type(exc).__name__}: {exc}")
            except Exception as exc:
                # Whatever it is, the bookie serves well without this; reported here, and here it stops.
                log.exception("bookie %s: its repair failed", self._bookie_id)
                self._failed(f"{type(exc).__name__}: {exc}")
            self.figures.ledgers_in_limbo = len(self._in_limbo())
            if not self.figures.ledgers_in_limbo:
                break
            pause_s = (
                self._config.pause_s
                if self.figures.ledgers_repaired > done_before
                else min(2 * pause_s, self._config.pause_max_s)
            )
            log.warning(
                "bookie %s: %d ledgers are still in limbo, the next try is in %g s; last failure: %s",
                self._bookie_id,
                self.figures.ledgers_in_limbo,
                pause_s,
                self.figures.last_failure,
            )
            await trio.sleep(pause_s)
        self.figures.ledgers_in_limbo = 0
        if self.figures.ledgers_repaired:
            log.info(
                "bookie %s has everything it should have: %d ledgers repaired, %d entries of %d bytes copied",
                self._bookie_id,
                self.figures.ledgers_repaired,
                self.figures.entries_copied,
                self.figures.bytes_copied,
            )

    def _in_limbo(self) -> list[LedgerRecord]:
        """Newest first."""
        records = map(self._storage.ledger, reversed(self._storage.ledger_ids()))
        return [record for record in records if record is not None and record.limbo]

    async def _round(self, client: LedgerClient, records: list[LedgerRecord]) -> None:
        self._told_at = trio.current_time()
        for done, record in enumerate(records):
            self.figures.ledgers_in_limbo = len(records) - done
            try:
                await self._repair(client, record)
            except NoSuchLedgerError:
                pass  # garbage collection deletes it
            except StorageFailedError:
                raise
            except (LedgerError, BookieServerError) as exc:
                self._failed(f"ledger {record.ledger_id}: {exc}")
            self._tell()

    async def _repair(self, client: LedgerClient, record: LedgerRecord) -> None:
        ledger_id = record.ledger_id
        copy = await client.replica_copy(ledger_id, self._bookie_id)
        if record.fenced and not copy.metadata.is_closed:
            # Its writer is finished, since this bookie refuses it; where it ends only a recovery can tell.
            # One that is not fenced can have lost entries only in front of its last ensemble.
            await client.recover(ledger_id)
            self.figures.ledgers_recovered += 1
            copy = await client.replica_copy(ledger_id, self._bookie_id)
        if not self._is_here(record):
            return
        if record.master_key == UNKNOWN_KEY and copy.metadata.password is not None:
            self._storage.create_ledger(ledger_id, master_key(copy.metadata.password))
        have = set(await self._storage.entry_ids(ledger_id))
        await self._copy_missing(copy, record, have)
        if self._is_here(record):
            await self._storage.submit_durably()
            self._storage.leave_limbo(record)
            self.figures.entries_lost.pop(ledger_id, None)
            self.figures.ledgers_repaired += 1

    def _is_here(self, record: LedgerRecord) -> bool:
        """Whether the ledger has not been deleted meanwhile."""
        return self._storage.ledger(record.ledger_id) is record

    async def _copy_missing(self, copy: ReplicaCopy, record: LedgerRecord, have: Container[int]) -> None:
        """Copy all that can be copied; then raise the first error, if there was one."""
        errors: list[Exception] = []
        self.figures.entries_lost.pop(record.ledger_id, None)
        metadata = copy.metadata
        ranges = held_ranges(metadata, self._bookie_id)

        async def work() -> None:
            for first, last, own in ranges:
                await trio.lowlevel.checkpoint()
                for run in missing_runs(
                    first, last, own, metadata.ensemble_size, metadata.write_quorum, have
                ):
                    try:
                        await self._copy_run(copy, record, *run, errors)
                    except (StorageFailedError, OSError) as exc:
                        errors.insert(0, exc)
                    if len(errors) > FAILURES_MAX or (errors and not isinstance(errors[0], LedgerError)):
                        return

        async with trio.open_nursery() as nursery:
            for _ in range(self._config.runs_in_flight_max):
                nursery.start_soon(work)
        if errors:
            raise errors[0]

    async def _copy_run(
        self, copy: ReplicaCopy, record: LedgerRecord, first: int, last: int, errors: list[Exception]
    ) -> None:
        while first <= last and self._is_here(record) and len(errors) <= FAILURES_MAX:
            await self._storage.wait_room()
            try:
                bodies = await copy.read(first, last, self._config.run_bytes_max)
            except NoSuchEntryError as exc:
                self.figures.entries_lost[record.ledger_id] += 1
                errors[:] = errors or [exc]  # however many: each was an answer
                first += 1
            except LedgerError as exc:
                errors.append(exc)
                first += 1
            else:
                fitting = list(itertools.takewhile(lambda body: len(body) <= RECORD_BYTES_MAX, bodies))
                if not fitting:
                    # Of a bookie that keeps longer ones: Apache's, with a greater frame limit.
                    what = f"its entry {first} of {len(bodies[0])} bytes is longer than this bookie can keep"
                    errors.append(LedgerError(what))
                    first += 1
                    continue
                await self._wait_allowed(sum(map(len, fitting)))
                self._store(record, first, fitting)
                await self._storage.submit_durably()
                first += len(fitting)
                self._tell()

    def _store(self, record: LedgerRecord, first: int, bodies: list[bytes]) -> None:
        if not self._is_here(record):
            return
        for entry_id, body in enumerate(bodies, first):
            assert len(body) >= ENTRY_HEADER_BYTES
            (lac,) = _LAC.unpack_from(body, _LAC_AT)
            self._storage.stage_entry(record, entry_id, lac, body)
        self.figures.entries_copied += len(bodies)
        self.figures.bytes_copied += sum(map(len, bodies))

    async def _wait_allowed(self, size_bytes: int) -> None:
        rate = self._config.rate_bytes_max
        if rate:
            start = max(self._bytes_allowed_at, trio.current_time())
            self._bytes_allowed_at = start + size_bytes / rate
            await trio.sleep_until(start)

    def _failed(self, text: str) -> None:
        self.figures.last_failure = text
        log.debug("bookie %s: %s", self._bookie_id, text)

    def _tell(self) -> None:
        now = trio.current_time()
        if now >= self._told_at + PROGRESS_S:
            self._told_at = now
            figures = self.figures
            log.info(
                "bookie %s: %d ledgers left in limbo; repaired so far %d, entries copied %d, bytes %d",
                self._bookie_id,
                figures.ledgers_in_limbo,
                figures.ledgers_repaired,
                figures.entries_copied,
                figures.bytes_copied,
            )
