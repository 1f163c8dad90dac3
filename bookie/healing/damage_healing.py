"""Storing damaged entries and pages of the index again, from the replicas of other bookies.

The scrubber finds an entry that the disk has damaged. Reads of it fail, so the entry has one replica less.
This part reads it from another bookie and stores it again. The entry gets a new place, and the damaged bytes
become garbage. Before the entries come the damaged pages of the index.

Inside: which entries are healed, the pauses. Not inside: finding damage (``bookie.damage.scrubber``), reading
replicas (``ledger.read.replica_copy``), pages (``index_healing``), ledgers that lost unknown entries
(``integrity``).
Always: only an entry is stored whose digest holds, if the metadata have the password, that belongs on this
bookie by the metadata, and that cannot be read here. An entry that no other bookie returns stays damaged, and
its reads keep failing; it is tried again.

Source: none; Apache's bookie leaves damaged entries to an operator.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import attrs
import trio

from bookie.damage.damaged_entries import DamagedEntry
from bookie.errors import (
    BookieServerError,
    EntryUnreadableError,
    NoEntryError,
    NoLedgerError,
    StorageFailedError,
)
from bookie.healing.index_healing import belongs_on, heal_index
from bookie.healing.integrity import OpenClient, is_entry
from bookie.ledger_record import lac_of_entry
from bookie.storage.storage import Storage
from ledger.client import LedgerClient
from ledger.errors import LedgerError
from ledger.metadata_store.errors import MetadataError
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tasks.failure_domain import report_contained

PAUSE_S = 60.0
PAUSE_MAX_S = 3600.0
_READ_BYTES_MAX = 1 << 20

log = get_logger(__name__)


@attrs.define(eq=False)
class HealingStats:
    """The work done since the start."""

    attempts: int = 0
    healed: int = 0  # entries
    healed_pages: int = 0  # of the index
    last_failure: str | None = None


class DamageHealing:
    """The healing of one bookie's damaged entries."""

    def __init__(
        self,
        storage: Storage,
        bookie_id: str,
        open_client: OpenClient,
        *,
        may_write: Callable[[], bool] = lambda: True,
        pause_s: float = PAUSE_S,
    ) -> None:
        """Heal nothing yet.

        Args:
            open_client: Opens a client of the cluster, only when there is damage.
            may_write: False while the disks are too full.
        """
        self.stats = HealingStats()
        self._storage, self._bookie_id, self._open_client = storage, bookie_id, open_client
        self._may_write, self._pause_s = may_write, pause_s
        self._irreplaceable: set[int] = set()  # ledgers without a damaged page that could be replaced

    async def run(self) -> None:
        """Heal what the scrubber finds, until cancelled or the storage fails."""
        pause_s = self._pause_s
        while True:
            await trio.sleep(pause_s)
            pause_s = self._pause_s
            if not self._is_damaged() or not self._may_write():
                continue
            entries_before, pages_before = self.stats.healed, self.stats.healed_pages
            try:
                async with self._open_client() as client:
                    await self._heal_indexes(client)
                    for ledger_id, entries in itertools.groupby(self._damaged(), lambda one: one.ledger_id):
                        await self._heal_alone(client, ledger_id, list(entries))
            except StorageFailedError:
                return  # ``Storage.wait_failed`` reports it
            except (LedgerError, MetadataError, OSError) as exc:
                self.stats.last_failure = f"{type(exc).__name__}: {exc}"
            except Exception as exc:
                # The bookie serves without the healing, so an unexpected error must not stop it.
                report_contained("healing of damage", exc)
                self.stats.last_failure = f"{type(exc).__name__}: {exc}"
            self.stats.attempts += 1
            entries_count = self.stats.healed - entries_before
            pages_count = self.stats.healed_pages - pages_before
            if entries_count:
                log.warning(
                    "%d damaged entries were copied from other bookies and stored anew", entries_count
                )
            if pages_count:
                log.warning("%d damaged pages of the index were stored anew", pages_count)
            if not (entries_count or pages_count) and self._is_damaged():
                pause_s = min(2 * pause_s, PAUSE_MAX_S)
                log.warning(
                    "%d damaged entries, and the index of %d ledgers, could not be healed with other bookies;"
                    " the next attempt is in %g s; last failure: %s",
                    len(self._damaged()),
                    len(self._unreadable()),
                    pause_s,
                    self.stats.last_failure,
                )

    def _is_damaged(self) -> bool:
        return any(store.damaged for store in self._storage.stores) or bool(self._unreadable())

    def _unreadable(self) -> list[int]:
        """Ledgers with damaged pages of their index."""
        found = {one for store in self._storage.stores for one in store.scrubber.unreadable}
        self._irreplaceable &= found
        return sorted(found - self._irreplaceable)

    def _damaged(self) -> list[DamagedEntry]:
        known = (one for store in self._storage.stores for one in store.damaged.known())
        return sorted(known, key=lambda one: (one.ledger_id, one.entry_id))

    async def _heal_indexes(self, client: LedgerClient) -> None:
        for ledger_id in self._unreadable():
            done = await heal_index(self._storage, client, ledger_id, self._bookie_id)
            self.stats.healed_pages += done.pages
            if done.failure is not None:
                self.stats.last_failure = done.failure
            elif done.pages:
                for store in self._storage.stores:
                    store.scrubber.unreadable.discard(ledger_id)
            else:
                self._irreplaceable.add(ledger_id)  # the scrubber has logged what an operator can do

    async def _heal_alone(self, client: LedgerClient, ledger_id: int, entries: list[DamagedEntry]) -> None:
        """An unexpected error of one ledger's healing keeps the others from nothing."""
        try:
            await self._heal_ledger(client, ledger_id, entries)
        except (LedgerError, MetadataError, OSError, BookieServerError):
            raise
        except Exception as exc:
            report_contained("healing of damage", exc, ledger_id=ledger_id)
            self.stats.last_failure = f"ledger {ledger_id}: {type(exc).__name__}: {exc}"

    async def _heal_ledger(self, client: LedgerClient, ledger_id: int, entries: list[DamagedEntry]) -> None:
        record = self._storage.ledger(ledger_id)
        if record is None:
            return
        try:
            copy = await client.replica_copy(ledger_id, self._bookie_id)
        except LedgerError as exc:
            self.stats.last_failure = str(exc)  # also of a deleted ledger: garbage collection deletes it
            return
        for entry in entries:
            try:
                if not belongs_on(copy.metadata, entry.entry_id, self._bookie_id):
                    continue
                (body, *_) = await copy.read(entry.entry_id, entry.entry_id, _READ_BYTES_MAX)
            except LedgerError as exc:
                self.stats.last_failure = str(exc)
                continue
            await self._storage.wait_capacity()
            if not await self._is_unreadable(entry) or not is_entry(ledger_id, entry.entry_id, body):
                continue
            if self._storage.ledger(ledger_id) is not record:
                return  # deleted meanwhile
            batch = self._storage.new_batch()
            lac = lac_of_entry(entry.entry_id, body)
            self._storage.stage_entry(batch, record, entry.entry_id, lac, body)
            await self._storage.submit_durably(batch)
            self._storage.stores[record.directory].damaged.drop(entry.location)
            self.stats.healed += 1

    async def _is_unreadable(self, entry: DamagedEntry) -> bool:
        """False if it was written again or deleted since it was found."""
        try:
            await self._storage.read(entry.ledger_id, entry.entry_id)
        except EntryUnreadableError:
            return True
        except (NoEntryError, NoLedgerError):
            return False
        return False
