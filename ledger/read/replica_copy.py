"""The stored bytes of a ledger's entries, for a bookie that lost them, or for a new one in its place.

Inside: reading stored bytes from any replica, if wanted without one bookie; verifying the ids, and the
digests if the metadata hold the password and the digest type.
Not inside: storing the entries, finding out which are missing.
Always: returned bytes were verified; the LAC in them may differ from that in the lost bytes, as between any
two replicas (docs/protocol.md 7.8).

Source: EntryCopierImpl.java; docs/storage-format.md 11.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from ledger.catalog.catalog import Versioned
from ledger.context import ClientContext
from ledger.digest import ENTRY_HEADER_BYTES, EntryCodec
from ledger.errors import CorruptEntryError
from ledger.metadata import LedgerMetadata
from ledger.read.replica_reads import ReplicaReads

_IDS = Struct(">qq")


class ReplicaCopy:
    """Made by ``LedgerClient.replica_copy`` and by ``ledger.replication``."""

    def __init__(self, current: Versioned, context: ClientContext, own: str | None) -> None:
        """``own``: a bookie that is not read from."""
        metadata = current.metadata
        self._ledger_id, self._metadata = current.ledger_id, metadata
        # Format version 1 stores neither password nor digest type. Then only the ids are verified.
        self._has_codec = metadata.password is not None
        codec = EntryCodec(metadata.digest_type, metadata.password or b"")
        self._codec = codec
        self._replicas = ReplicaReads(current.ledger_id, codec, context, metadata.ensemble_size, avoid=own)
        self._has_batches = metadata.ensemble_size == metadata.write_quorum
        self._has_size = False  # of an entry

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata when this object was made."""
        return self._metadata

    async def read(self, first: int, last: int, size_bytes_max: int) -> list[bytes]:
        """Read the stored bytes of one or more consecutive entries from ``first`` on, at most up to ``last``.

        Args:
            size_bytes_max: The approximate limit of the result; at least one entry is returned.

        Raises:
            NoSuchEntryError: Every other replica denied the first entry.
            LedgerReadError: No other replica returned the first entry.
        """
        if self._has_batches and last > first:
            bodies = await self._replicas.read_batch(
                self._metadata, first, last, size_bytes_max, self._verified
            )
            if bodies is not None:
                return bodies
            self._has_batches = False
        if not self._has_size:
            last = first  # the size of an entry decides how many are read at once
        bodies = await self._replicas.read_some(self._metadata, first, last, size_bytes_max, self._verified)
        self._has_size = True
        return bodies

    def _verified(self, bodies: Sequence[bytes], first: int) -> list[bytes]:
        """The bodies in front of the first bad one; ``CorruptEntryError`` if the first one is bad."""
        good: list[bytes] = []
        for entry_id, body in enumerate(bodies, first):
            try:
                if self._has_codec:
                    self._codec.unpack(body, self._ledger_id, entry_id)
                elif len(body) < ENTRY_HEADER_BYTES or _IDS.unpack_from(body) != (self._ledger_id, entry_id):
                    raise CorruptEntryError(self._ledger_id, entry_id, "it has the ids of another entry")
            except CorruptEntryError:
                if not good:
                    raise
                break
            good.append(body)
        return good
