"""The metadata of a ledger, and the changes that are allowed.

Inside: the value, its invariants, the legal changes, the ensemble of an entry.
Not inside: stored bytes (``metadata_codec``), compare-and-set (``catalog``), the decision that a change is
needed (writer, recovery).
Always: ensemble size >= write quorum >= ack quorum >= 1; ensembles are in ascending order and each has the
full size; a bookie is in an ensemble at most once; a CLOSED ledger has a last entry, and only re-replication
changes its metadata.

Source: LedgerMetadataImpl.java, LedgerMetadataBuilder.java; docs/metadata.md 10.4, 11.4.
"""

from __future__ import annotations

import bisect
import enum
from collections.abc import Mapping, Sequence

import attrs

from ledger.digest import ENTRY_ID_MAX, DigestType
from ledger.errors import LedgerMetadataError

LENGTH_BYTES_MAX = 2**63 - 1
NO_ENTRY = -1  # the last entry of an empty ledger
FORMAT_VERSION_NEWEST = 3


class LedgerState(enum.Enum):
    """The state of a ledger. The value is the number in the stored metadata."""

    OPEN = 1  # its writer adds to it
    IN_RECOVERY = 2  # a client is deciding its end; its writer must stop
    CLOSED = 3  # no entry is ever added again

    def __repr__(self) -> str:
        return f"LedgerState.{self.name}"


@attrs.frozen
class Ensemble:
    """The bookies that hold the entries from ``first_entry_id`` up to the first entry of the next
    ensemble."""

    first_entry_id: int
    bookies: tuple[str, ...]  # in the order from which write sets are computed


def _first_entry_id(ensemble: Ensemble) -> int:
    return ensemble.first_entry_id


def _check_format_version(_metadata: object, _attribute: object, value: int) -> None:
    if value not in (1, 2, 3):
        raise LedgerMetadataError(f"metadata format version {value}; there are 1, 2 and 3")


@attrs.frozen(kw_only=True)
class LedgerMetadata:
    """One version of a ledger's metadata.

    Raises:
        LedgerMetadataError: The values contradict each other.
    """

    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    ensembles: tuple[Ensemble, ...]
    state: LedgerState = LedgerState.OPEN
    last_entry_id: int = NO_ENTRY  # valid only if CLOSED
    length_bytes: int = 0  # payload bytes of all entries; valid only if CLOSED
    digest_type: DigestType = DigestType.CRC32  # the value if none is stored, as in Java
    # Stored in clear text. None if neither it nor the digest type is stored (format version 1): any is right.
    password: bytes | None = attrs.field(default=b"", repr=False)
    ctime_ms: int | None = None  # None if not stored; the metadata store has the creation time of the node
    custom: Mapping[str, bytes] = attrs.field(factory=dict, hash=False)
    creator_token: int = 0  # shows a creator whose reply was lost that it made the ledger; 0 after a change
    format_version: int = attrs.field(default=FORMAT_VERSION_NEWEST, validator=_check_format_version)

    def __attrs_post_init__(self) -> None:
        if not self.ensemble_size >= self.write_quorum >= self.ack_quorum >= 1:
            raise LedgerMetadataError(
                f"ensemble size {self.ensemble_size}, write quorum {self.write_quorum}, ack quorum "
                f"{self.ack_quorum}: none may be larger than the one before it, or less than 1"
            )
        if not self.ensembles:
            raise LedgerMetadataError("there is no ensemble; a ledger has at least one")
        previous = -1
        for ensemble in self.ensembles:
            if ensemble.first_entry_id <= previous:
                raise LedgerMetadataError(
                    f"an ensemble that begins at entry {ensemble.first_entry_id} after one at {previous}"
                    if previous >= 0
                    else f"an ensemble that begins at entry {ensemble.first_entry_id}"
                )
            previous = ensemble.first_entry_id
            if previous > ENTRY_ID_MAX:
                raise LedgerMetadataError(
                    f"an ensemble that begins at entry {previous}, which is no entry id"
                )
            if len(ensemble.bookies) != self.ensemble_size:
                raise LedgerMetadataError(
                    f"the ensemble at entry {ensemble.first_entry_id} has {len(ensemble.bookies)} bookies; "
                    f"the ensemble size is {self.ensemble_size}"
                )
            # Two replicas on one bookie are one replica: an ack quorum would count the same disk twice.
            if len(set(ensemble.bookies)) != self.ensemble_size:
                repeated = next(each for each in ensemble.bookies if ensemble.bookies.count(each) > 1)
                raise LedgerMetadataError(
                    f"the ensemble at entry {ensemble.first_entry_id} names the bookie {repeated!r} "
                    f"{ensemble.bookies.count(repeated)} times; replicas must be on different bookies. "
                    "If these are stored metadata, another program wrote them: correct the ledger's node"
                )
        if self.state is LedgerState.CLOSED:
            # The entry after the last one has an id too: readers compute it.
            if (
                not NO_ENTRY <= self.last_entry_id < ENTRY_ID_MAX
                or not 0 <= self.length_bytes <= LENGTH_BYTES_MAX
            ):
                raise LedgerMetadataError(
                    f"closed at entry {self.last_entry_id} with {self.length_bytes} bytes"
                )
        elif (self.last_entry_id, self.length_bytes) != (NO_ENTRY, 0):
            raise LedgerMetadataError(
                f"a last entry ({self.last_entry_id}) or a length, but the ledger is not closed"
            )

    @property
    def is_closed(self) -> bool:
        """True if ``last_entry_id`` and ``length_bytes`` are final."""
        return self.state is LedgerState.CLOSED

    @property
    def last_ensemble(self) -> Ensemble:
        """The ensemble for new entries."""
        return self.ensembles[-1]

    def ensemble_for(self, entry_id: int) -> Ensemble:
        """The ensemble that holds an entry.

        Raises:
            LedgerMetadataError: The entry is in front of the first ensemble.
        """
        place = bisect.bisect_right(self.ensembles, entry_id, key=_first_entry_id)
        if place:
            return self.ensembles[place - 1]
        raise LedgerMetadataError(
            f"entry {entry_id} is in front of the first ensemble, which begins at "
            f"entry {self.ensembles[0].first_entry_id}"
        )

    def accepts_password(self, password: bytes) -> bool:
        """True if this is the ledger's password, or if none is stored (format version 1)."""
        return self.password is None or self.password == password

    def in_recovery(self) -> LedgerMetadata:
        """The metadata of a ledger whose end is being decided. Its writer can no longer change them.

        Raises:
            LedgerMetadataError: The ledger is closed.
        """
        self._refuse_if_closed("recovered")
        return attrs.evolve(self, state=LedgerState.IN_RECOVERY, creator_token=0)

    def closed(self, last_entry_id: int, length_bytes: int) -> LedgerMetadata:
        """The metadata of the ledger closed at this entry. A close is final.

        Args:
            last_entry_id: -1 for an empty ledger.
            length_bytes: Payload bytes of all entries.

        Raises:
            LedgerMetadataError: It is closed already, possibly at another entry; or the values are invalid.
        """
        self._refuse_if_closed("closed again")
        return attrs.evolve(
            self,
            state=LedgerState.CLOSED,
            last_entry_id=last_entry_id,
            length_bytes=length_bytes,
            creator_token=0,
        )

    def with_ensemble(self, first_entry_id: int, bookies: Sequence[str]) -> LedgerMetadata:
        """The metadata with these bookies for entries from ``first_entry_id`` on.

        If the last ensemble begins at the same entry, it holds no entry yet and is replaced.

        Raises:
            LedgerMetadataError: The ledger is closed; or the new ensemble would begin in front of the last
                one. Readers would then look for confirmed entries on bookies that never had them.
        """
        self._refuse_if_closed("given another ensemble")
        last = self.last_ensemble.first_entry_id
        if first_entry_id < last:
            raise LedgerMetadataError(
                f"an ensemble from entry {first_entry_id} on, but the last one begins at {last} already"
            )
        kept = self.ensembles[:-1] if first_entry_id == last else self.ensembles
        return attrs.evolve(
            self, ensembles=(*kept, Ensemble(first_entry_id, tuple(bookies))), creator_token=0
        )

    def with_replicas(self, first_entry_id: int, bookies: Sequence[str]) -> LedgerMetadata:
        """The metadata after the entries of one ensemble were copied to these bookies. Legal in any state.

        Raises:
            LedgerMetadataError: No ensemble begins at ``first_entry_id``.
        """
        if all(ensemble.first_entry_id != first_entry_id for ensemble in self.ensembles):
            raise LedgerMetadataError(f"no ensemble begins at entry {first_entry_id}")
        copied = Ensemble(first_entry_id, tuple(bookies))
        ensembles = tuple(
            copied if ensemble.first_entry_id == first_entry_id else ensemble for ensemble in self.ensembles
        )
        return attrs.evolve(self, ensembles=ensembles, creator_token=0)

    def _refuse_if_closed(self, wanted: str) -> None:
        if self.is_closed:
            raise LedgerMetadataError(
                f"closed at entry {self.last_entry_id} with {self.length_bytes} bytes; it cannot be {wanted}"
            )
