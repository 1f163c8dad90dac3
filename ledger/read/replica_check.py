"""Reading every replica of a ledger's entries, and comparing them.

Inside: the reads, what is wrong with each replica. Not inside: mending (``ledger.replication``), the records
in the entries.
Always: nothing is changed; an entry is given with its payload if any replica has good bytes; each bookie of
an entry's write set either has the same good bytes or is named.

Source: our own; LedgerChecker.java reads only the ends of fragments.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncGenerator

import attrs

from ledger.catalog.catalog import Versioned
from ledger.context import ClientContext
from ledger.digest import Entry, EntryCodec
from ledger.errors import (
    BookieError,
    CorruptEntryError,
    IoErrorRefusal,
    NoEntryRefusal,
    NoLedgerRefusal,
)
from ledger.metadata import LedgerMetadata
from ledger.quorum import write_set
from ledger.runtime.tasks.task_errors import for_each
from ledger.transport.bookie_requests import read_entry
from ledger.wire.messages import ReadRequest

ENTRIES_AT_ONCE = 16  # each up to 1 MiB on each bookie of its write set


class ReplicaFault(enum.Enum):
    """A fault of a replica."""

    MISSING = "missing"  # the bookie says that it does not have the entry
    CORRUPT = "corrupt"  # the bytes do not match their digest, or the bookie cannot read them
    DIFFERENT = "different"  # good bytes, and those of another replica are good and others
    UNREACHABLE = "unreachable"  # the bookie does not say: nothing is known


@attrs.frozen
class FaultyReplica:
    """A replica that is not as it should be."""

    bookie: str
    fault: ReplicaFault
    evidence: str


@attrs.frozen
class CheckedEntry:
    """An entry, and its replicas that are not as they should be."""

    entry_id: int
    payload: bytes | None = attrs.field(repr=False)  # None: no replica has good bytes
    replicas: int  # with good bytes that agree
    faults: tuple[FaultyReplica, ...]


class ReplicaCheck:
    """Made by ``LedgerClient.replica_check``."""

    def __init__(
        self, current: Versioned, codec: EntryCodec, context: ClientContext, last_entry_id: int
    ) -> None:
        self.metadata: LedgerMetadata = current.metadata
        self.last_entry_id = last_entry_id  # of the ledger, or the last confirmed one if it is not closed
        self._current, self._codec, self._context = current, codec, context

    def __repr__(self) -> str:
        return f"<ReplicaCheck of ledger {self._current.ledger_id}, up to entry {self.last_entry_id}>"

    async def is_current(self) -> bool:
        """True if the metadata are still those of the check: no replica was moved meanwhile.

        Raises:
            NoSuchLedgerError: The ledger was deleted.
        """
        newest = await self._context.catalog.get_newest(self._current.ledger_id)
        return newest.version == self._current.version

    async def entries(self, first: int, last: int) -> AsyncGenerator[CheckedEntry, None]:
        """Read each entry from all bookies of its write set, in order, both ends included."""
        assert last <= self.last_entry_id  # callers pass the last entry at most
        for begin in range(first, last + 1, ENTRIES_AT_ONCE):
            found: dict[int, CheckedEntry] = {}

            async def check(entry_id: int, found: dict[int, CheckedEntry] = found) -> None:
                found[entry_id] = await self.entry(entry_id)

            wanted = range(begin, min(begin + ENTRIES_AT_ONCE, last + 1))
            await for_each(check, wanted)
            for entry_id in wanted:
                yield found.pop(entry_id)

    async def entry(self, entry_id: int) -> CheckedEntry:
        """Read one entry from all bookies of its write set."""
        metadata = self.metadata
        bookies = metadata.ensemble_for(entry_id).bookies
        wanted = [
            bookies[index] for index in write_set(entry_id, metadata.ensemble_size, metadata.write_quorum)
        ]
        replies: dict[str, Entry | FaultyReplica] = {}

        async def read(bookie: str) -> None:
            replies[bookie] = await self._replica(bookie, entry_id)

        await for_each(read, wanted)
        return _compared(entry_id, [(bookie, replies[bookie]) for bookie in wanted])

    async def _replica(self, bookie: str, entry_id: int) -> Entry | FaultyReplica:
        request = ReadRequest(self._current.ledger_id, entry_id)
        try:
            return await read_entry(self._context.transport, bookie, request, self._codec)
        except (NoEntryRefusal, NoLedgerRefusal) as exc:
            return FaultyReplica(bookie, ReplicaFault.MISSING, str(exc))
        except (CorruptEntryError, IoErrorRefusal) as exc:
            return FaultyReplica(bookie, ReplicaFault.CORRUPT, str(exc))
        except BookieError as exc:
            return FaultyReplica(bookie, ReplicaFault.UNREACHABLE, str(exc))


def _compared(entry_id: int, replies: list[tuple[str, Entry | FaultyReplica]]) -> CheckedEntry:
    """Replicas agree if payload and length are equal. The LAC in them may differ (docs/protocol.md 7.8)."""
    good: tuple[str, Entry] | None = None
    replicas, faults = 0, list[FaultyReplica]()
    for bookie, reply in replies:
        if isinstance(reply, FaultyReplica):
            faults.append(reply)
        elif good is None:
            good, replicas = (bookie, reply), 1
        elif (reply.payload, reply.length_bytes) == (good[1].payload, good[1].length_bytes):
            replicas += 1
        else:
            evidence = f"its bytes are not those of bookie {good[0]}, and both match their digests"
            faults.append(FaultyReplica(bookie, ReplicaFault.DIFFERENT, evidence))
    return CheckedEntry(entry_id, None if good is None else good[1].payload, replicas, tuple(faults))
