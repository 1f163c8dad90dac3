"""Moving as few replicas as possible, so that an ensemble is spread as the policy prescribes.

Inside: the choice, as a pure function. Not inside: the rules of spreading (``spread_policy``), locations
(``placer``), copying.
Always: a returned choice makes the ensemble adhere; its new bookies have known locations and are none of the
ensemble. If there is no such choice, nothing is returned, so that no replica moves in vain.

Source: RackawareEnsemblePlacementPolicyImpl.java (replaceToAdherePlacementPolicy); docs/autorecovery.md.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations, islice

import attrs

from ledger.placement.config import PlacementConfig
from ledger.placement.spread_policy import Adherence, Candidates, adherence, choose_spread_replacements

ENSEMBLE_MAX = 64  # a larger one stays as it is: its sets of members are too many to look at
TRIES_MAX = 256  # sets of members to replace; every set of an ensemble of eight


def choose_adhering(
    config: PlacementConfig,
    candidates: Candidates,
    ensemble: Sequence[str],
    write_quorum: int,
    ack_quorum: int,
    rng: random.Random,
) -> dict[int, str]:
    """Choose replacements, as few as possible, after which the ensemble adheres; empty if there are none.

    Returns:
        The index of each member to replace, and its new bookie.
    """
    if len(ensemble) > ENSEMBLE_MAX:
        return {}
    strict = attrs.evolve(config, enforce_racks=True)
    located = [one for one in candidates.writable if candidates.topology.is_known(one)]
    candidates = attrs.evolve(candidates, writable=located)
    sets = (
        indices
        for count in range(1, len(ensemble) + 1)
        for indices in combinations(range(len(ensemble)), count)
    )
    for indices in islice(sets, TRIES_MAX):
        chosen, _ = choose_spread_replacements(
            strict, candidates, ensemble, indices, write_quorum, ack_quorum, rng
        )
        changed = [chosen.get(index, bookie) for index, bookie in enumerate(ensemble)]
        if (
            len(chosen) == len(indices)
            and adherence(changed, candidates.topology, strict, write_quorum, ack_quorum) is Adherence.MEETS
        ):
            return chosen
    return {}
