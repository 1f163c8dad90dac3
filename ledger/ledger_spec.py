"""What a new ledger shall be: its replication, its digest, who may read and write it.

Inside: the value, its check, and the metadata that begin the ledger. Not inside: choosing the bookies
(``placement.placer``), storing the metadata (``catalog``).
Always: with fewer bookies than the ensemble size the ack quorum stays, and the metadata say what was asked.

Source: LedgerCreateOp.java; docs/protocol.md 5.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from ledger.digest import DigestType
from ledger.metadata import Ensemble, LedgerMetadata
from ledger.quorum import check_quorums
from ledger.replication_asked import AskedReplication


@attrs.frozen(kw_only=True)
class LedgerSpec:
    """The arguments of ``LedgerClient.create`` as one value, and three more for ``create_from``.

    Raises:
        ValueError: The three sizes contradict each other.
    """

    ensemble_size: int = 3
    write_quorum: int = 3
    ack_quorum: int = 2
    digest_type: DigestType = DigestType.CRC32C
    password: bytes | None = attrs.field(default=b"", repr=False)  # None: a random one
    custom: Mapping[str, bytes] = attrs.field(factory=dict, hash=False)
    ledger_id: int | None = None  # None: generated
    deferred_sync: bool = False
    bookies: Sequence[str] | None = None  # the first ensemble; None: placement chooses it
    may_be_smaller: bool = (
        False  # with fewer bookies, begin with those that are there, down to the ack quorum
    )

    def __attrs_post_init__(self) -> None:
        check_quorums(self.ensemble_size, self.write_quorum, self.ack_quorum)

    def metadata(self, bookies: Sequence[str], password: bytes, ctime_ms: int) -> LedgerMetadata:
        """The first metadata of the ledger, on these bookies."""
        custom = dict(self.custom)
        ensemble_size, write_quorum = self.ensemble_size, self.write_quorum
        if len(bookies) < ensemble_size:
            custom |= AskedReplication(ensemble_size, write_quorum, self.ack_quorum).custom
            ensemble_size, write_quorum = len(bookies), min(write_quorum, len(bookies))
        return LedgerMetadata(
            ensemble_size=ensemble_size,
            write_quorum=write_quorum,
            ack_quorum=self.ack_quorum,
            ensembles=(Ensemble(0, tuple(bookies)),),
            digest_type=self.digest_type,
            password=password,
            ctime_ms=ctime_ms,
            custom=custom,
        )
