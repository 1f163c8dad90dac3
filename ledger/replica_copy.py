"""The stored bytes of a ledger's entries, for a bookie that must have them again.

Inside: reading entries as they are stored, from any replica but one's own, with their ids checked, and their
digests where the metadata hold what that takes. Not inside: storing them, and which are missing.
Always: what is returned was verified; the LAC in it may differ from that of the bytes once stored here, as
between any two replicas (reference 7.8).

Source: EntryCopierImpl.java; reference on bookie storage 6.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from ledger.catalog import Versioned
from ledger.cluster import Cluster
from ledger.digest import ENTRY_HEADER_BYTES, EntryCodec
from ledger.errors import CorruptEntryError
from ledger.metadata import LedgerMetadata
from ledger.replica_reads import ReplicaReads

_IDS = Struct(">qq")


class ReplicaCopy:
    """Made by ``LedgerClient.replica_copy``."""

    def __init__(self, current: Versioned, cluster: Cluster, own: str) -> None:
        metadata = current.metadata
        self._ledger_id, self._metadata = current.ledger_id, metadata
        # Format version 1 stores neither password nor digest type: then the ids must do.
        self._has_codec = metadata.password is not None
        codec = EntryCodec(metadata.digest_type, metadata.password or b"")
        self._codec = codec
        self._replicas = ReplicaReads(current.ledger_id, codec, cluster, metadata.ensemble_size, avoid=own)
        self._has_batches = metadata.ensemble_size == metadata.write_quorum

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata, as of the making of this copy."""
        return self._metadata

    async def read(self, first: int, last: int, size_bytes_max: int) -> list[bytes]:
        """The stored bytes of consecutive entries from ``first`` on: at least one, at most up to ``last``.

        Args:
            size_bytes_max: About so many at once; the first entry comes whatever its size.

        Raises:
            NoSuchEntryError: Every other replica denies the first one.
            LedgerReadError: No other replica gave a good answer.
        """
        if self._has_batches and last > first:
            bodies = await self._replicas.read_batch(
                self._metadata, first, last, size_bytes_max, self._checked
            )
            if bodies is not None:
                return bodies
            self._has_batches = False
        return await self._replicas.read_single(self._metadata, first, self._checked)

    def _checked(self, bodies: Sequence[bytes], first: int) -> list[bytes]:
        """The good ones in front; the first must be."""
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
