"""Whether a move of a replica keeps to the policy of placement.

Inside: the comparison of two ensembles, as a pure function. Not inside: the rules of spreading
(``ledger.placement``), the choice of moves (``plan``).
Always: an ensemble that adheres still does after the move; one that does not spans no fewer racks and regions
in any write set than before. A bookie whose location is not known is chosen only where locations do not
matter, or in place of another one whose location is not known.

Source: our own; docs/placement.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from ledger.placement.config import PlacementConfig, PlacementPolicy
from ledger.placement.spread_policy import Adherence, adherence
from ledger.placement.topology import Topology
from ledger.quorum import write_sets


def may_replace(
    config: PlacementConfig,
    topology: Topology,
    before: Sequence[str],
    after: Sequence[str],
    write_quorum: int,
    ack_quorum: int,
) -> bool:
    """True if the ensemble ``after`` is placed as well as ``before`` at least."""
    if config.policy is PlacementPolicy.RANDOM:
        return True
    new = [bookie for bookie in after if bookie not in before]
    if any(topology.region(bookie) in config.regions_disallowed for bookie in new):
        return False
    if adherence(after, topology, config, write_quorum, ack_quorum) is Adherence.MEETS:
        return all(map(topology.is_known, new)) or not all(map(topology.is_known, before))
    if adherence(before, topology, config, write_quorum, ack_quorum) is Adherence.MEETS:
        return False
    return all(
        _spread(topology, [after[index] for index in indices])
        >= _spread(topology, [before[index] for index in indices])
        for indices in write_sets(len(before), write_quorum)
    )


def _spread(topology: Topology, bookies: Sequence[str]) -> tuple[int, int]:
    known = list(filter(topology.is_known, bookies))
    return len(topology.racks(known)), len(set(map(topology.region, known)))
