"""Storing damaged pages of an index again, with the help of other bookies.

A damaged page hides up to a thousand entries of a ledger: each read of one fails, and none is denied. Most
of its slots are sound. A slot counts if the entry log has this entry at its location. The other entries are
read from other bookies and appended to the entry log, and one step replaces the page.

Inside: which entries a new page must name, reading those that are lost. Not inside: finding damage
(``bookie.damage.scrubber``), the page itself (``bookie.index.page_repair``), the pauses (``damage_healing``).
Always: a page is replaced only if it names each entry that the metadata place here. Only settled entries are
known that way: those of a closed ledger, and of another one those up to its LAC. This bookie may have
acknowledged later ones that nobody else has, so their page stays damaged until then.

A copy of an entry that the metadata do not yet place here may get lost with its slot. The worker that made it
looks for it before it removes the mark of the ledger (docs/autorecovery.md).

Source: none; Apache's bookie cannot notice a damaged page.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import attrs

from bookie.errors import EntryUnreadableError
from bookie.index.entry_index import DamagedRange
from bookie.ledger_record import LedgerRecord
from bookie.limits import RECORD_BYTES_MAX
from bookie.storage.directory_store import DirectoryStore
from bookie.storage.storage import Storage
from ledger.client import LedgerClient
from ledger.errors import LedgerError
from ledger.metadata import LedgerMetadata
from ledger.quorum import write_set
from ledger.read.replica_copy import ReplicaCopy

_READ_BYTES_MAX = 1 << 20
_APPEND_BYTES = 8 << 20  # in memory, before they are appended to the entry log


@attrs.frozen
class IndexHealing:
    """The result of healing one ledger's index."""

    pages: int = 0  # replaced
    failure: str | None = None  # why a page was not replaced


async def heal_index(storage: Storage, client: LedgerClient, ledger_id: int, bookie_id: str) -> IndexHealing:
    """Replace the damaged pages of a ledger's index, as many as can be replaced now.

    Raises ``StorageFailedError`` if the disk failed.
    """
    if (record := storage.ledger(ledger_id)) is None:
        return IndexHealing()
    store = storage.stores[record.directory]
    damaged = await store.damaged_ranges(ledger_id)
    if not damaged:
        return IndexHealing()
    lac = record.lac  # before the metadata: what it confirms is placed by these
    pages, failure = 0, None
    try:
        copy = await client.replica_copy(ledger_id, bookie_id)
    except LedgerError as exc:
        return IndexHealing(failure=str(exc))
    for one in damaged:
        try:
            pages += await _heal_range(store, record, copy, lac, one, bookie_id)
        except LedgerError as exc:
            failure = str(exc)
    return IndexHealing(pages, failure)


async def _heal_range(
    store: DirectoryStore, record: LedgerRecord, copy: ReplicaCopy, lac: int, damaged: DamagedRange, own: str
) -> bool:
    ledger_id, entry_ids = damaged.ledger_id, damaged.entry_ids
    if not is_settled(copy.metadata, lac, entry_ids):
        raise LedgerError(
            f"ledger {ledger_id} is not closed, and its entries from {entry_ids.start} to {entry_ids[-1]} are"
            " not all confirmed"
        )
    found = await _sound(store, damaged)
    lost = [one for one in entries_here(copy.metadata, entry_ids, own) if one not in found]
    if not await _copy_lost(store, record, copy, lost, found):
        raise LedgerError(f"the copies of entries of ledger {ledger_id} could not be stored")
    return await store.replace_index_range(record, damaged, found)


def is_settled(metadata: LedgerMetadata, lac: int, entry_ids: range) -> bool:
    """True if the metadata tell which of these entries belong on each bookie, for good."""
    return metadata.is_closed or entry_ids[-1] <= lac


def entries_here(metadata: LedgerMetadata, entry_ids: range, bookie_id: str) -> list[int]:
    """The settled entries of a range that the metadata place on this bookie."""
    stop = metadata.last_entry_id + 1 if metadata.is_closed else entry_ids.stop
    return [
        entry_id
        for entry_id in range(entry_ids.start, min(stop, entry_ids.stop))
        if belongs_on(metadata, entry_id, bookie_id)
    ]


def belongs_on(metadata: LedgerMetadata, entry_id: int, bookie_id: str) -> bool:
    """True if the metadata place the entry on this bookie."""
    bookies = metadata.ensemble_for(entry_id).bookies
    indices = write_set(entry_id, metadata.ensemble_size, metadata.write_quorum)
    return any(bookies[index] == bookie_id for index in indices)


async def _sound(store: DirectoryStore, damaged: DamagedRange) -> dict[int, int]:
    """The slots of a damaged page at whose location the entry log has the entry."""
    found: dict[int, int] = {}
    for entry_id, location in damaged.remains.items():
        try:
            await store.reader.read(damaged.ledger_id, entry_id, location)
        except EntryUnreadableError:
            continue
        found[entry_id] = location
    return found


async def _copy_lost(
    store: DirectoryStore, record: LedgerRecord, copy: ReplicaCopy, lost: list[int], found: dict[int, int]
) -> bool:
    """Read entries from other bookies, append them to the entry log and add their locations to ``found``."""
    bodies: dict[int, bytes] = {}
    size_bytes = 0
    for first, last in _runs(lost):
        at = first
        while at <= last:
            for body in await copy.read(at, last, _READ_BYTES_MAX):
                if len(body) > RECORD_BYTES_MAX:
                    return False
                bodies[at] = body
                size_bytes += len(body)
                at += 1
            if size_bytes >= _APPEND_BYTES:
                found |= await store.append_copies(record, bodies)
                bodies, size_bytes = {}, 0
    found |= await store.append_copies(record, bodies)
    return all(entry_id in found for entry_id in lost)


def _runs(entry_ids: list[int]) -> Iterator[tuple[int, int]]:
    """The first and the last of each run of consecutive ids."""
    for _, pairs in itertools.groupby(enumerate(entry_ids), lambda pair: pair[1] - pair[0]):
        run = [entry_id for _, entry_id in pairs]
        yield run[0], run[-1]
