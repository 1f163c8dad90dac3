"""Whether the replicas of a closed ledger are placed as the policy prescribes.

Inside: the check of one ledger and of one fragment, as pure functions; the numbers of a check of all
ledgers. Not inside: the rules of placement (``ledger.placement.spread_policy``), marking (``auditor``),
moving replicas (``ledger_restorer``).
Always: a fragment is checked only if all its bookies are registered and their locations are known. A source
of locations that fails must not make a whole cluster look badly placed; a bookie that is away is left to the
audit.

Source: AuditorPlacementPolicyCheckTask.java; docs/autorecovery.md.
"""

from __future__ import annotations

import enum
from collections.abc import Collection

import attrs

from ledger.fragments.fragments import Fragment, fragments_of
from ledger.metadata import LedgerMetadata
from ledger.placement.config import PlacementConfig, PlacementPolicy
from ledger.placement.spread_policy import Adherence, adherence
from ledger.placement.topology import Topology


class Placing(enum.Enum):
    """The result for one fragment or ledger."""

    GOOD = "good"
    BAD = "bad"
    UNKNOWN = "unknown"  # a bookie is away, or its location is not known


@attrs.define
class PlacementFindings:
    """The result of one check of all ledgers."""

    ledgers: int = 0  # closed ledgers that were looked at
    bad: int = 0
    unknown: int = 0
    marked: int = 0
    overdue: int = 0  # marks older than the grace
    at_ms: int = 0  # the end of the check, epoch milliseconds

    def count(self, placing: Placing) -> None:
        """Count one ledger."""
        self.ledgers += 1
        self.bad += placing is Placing.BAD
        self.unknown += placing is Placing.UNKNOWN


def fragment_placing(
    fragment: Fragment,
    ack_quorum: int,
    config: PlacementConfig,
    topology: Topology,
    registered: Collection[str],
) -> Placing:
    """Judge one fragment. A fragment without entries is placed well."""
    if config.policy is PlacementPolicy.RANDOM or fragment.last < fragment.first:
        return Placing.GOOD
    if not all(bookie in registered and topology.is_known(bookie) for bookie in fragment.bookies):
        return Placing.UNKNOWN
    found = adherence(fragment.bookies, topology, config, fragment.write_quorum, ack_quorum)
    return Placing.GOOD if found is Adherence.MEETS else Placing.BAD


def ledger_placing(
    metadata: LedgerMetadata, config: PlacementConfig, topology: Topology, registered: Collection[str]
) -> Placing:
    """Judge a closed ledger: bad if any fragment is, else unknown if any is."""
    found = {
        fragment_placing(one, metadata.ack_quorum, config, topology, registered)
        for one in fragments_of(metadata, metadata.last_entry_id)
    }
    return next((one for one in (Placing.BAD, Placing.UNKNOWN) if one in found), Placing.GOOD)
