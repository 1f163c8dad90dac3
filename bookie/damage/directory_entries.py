"""The entries on the disk of one ledger directory, as their readers see them.

Inside: the value that names what finds and reads them. Not inside: the write cache, what changes them
(``storage.directory_store``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import attrs

from bookie.damage.damaged_entries import DamagedEntries
from bookie.disk.disk import Disk
from bookie.entrylog.reader import EntryLogReader
from bookie.index.entry_index import EntryIndex
from bookie.ledger_record import LedgerRecord


@attrs.frozen(kw_only=True, eq=False)
class DirectoryEntries:
    """See the module."""

    disk: Disk
    ledgers: Mapping[int, LedgerRecord]  # that live here
    deleting: Collection[int]  # ledgers whose old index records are still to be deleted
    index: EntryIndex
    reader: EntryLogReader
    damaged: DamagedEntries = attrs.field(factory=DamagedEntries)  # never read
