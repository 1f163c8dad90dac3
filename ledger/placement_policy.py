"""Rules of spreading an ensemble over racks and regions, as functions of what is known of the bookies.

Inside: which ensembles are acceptable, which bookie is preferred, what is given up first where not all can be
had. Not inside: finding an ensemble (``placement_search``), locations, weights, health (``placer``).
Always: no bookie twice in an ensemble; what is enforced holds in every write set chosen for, or that is
an error; without enforcement only too few bookies are one; no write set is chosen of which it is known that
nothing on it could ever be confirmed. The order of what matters: what is enforced, no quarantined bookie, the
racks that are wished for, no bookie that failed lately, an even spread.

Source: RackawareEnsemblePlacementPolicyImpl.java, RegionAwareEnsemblePlacementPolicy.java; reference on
operations 1.3 to 1.5.
"""

from __future__ import annotations

import enum
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import attrs

from ledger.errors import NotEnoughBookiesError, PlacementError
from ledger.placement import choose_ensemble, choose_replacements
from ledger.placement_config import PlacementConfig, PlacementPolicy
from ledger.placement_search import Prefers, fill_places
from ledger.quorum import write_sets
from ledger.topology import Topology
from ledger.weights import draw_order


@attrs.frozen(kw_only=True)
class Candidates:
    """What is known of the bookies that may be chosen."""

    writable: Collection[str]
    topology: Topology = attrs.field(factory=Topology)
    suspects: Collection[str] = ()  # failed lately
    tried: Sequence[str] = ()  # those of them that failed whoever chooses, the last one last
    quarantined: Collection[str] = ()  # failed often
    weights: Mapping[str, float] = attrs.field(factory=dict)


class Adherence(enum.Enum):
    """Whether an ensemble is spread as its policy wishes."""

    MEETS = "meets"
    FAILS = "fails"


def racks_wanted(config: PlacementConfig, write_quorum: int) -> int:
    """The racks that a write set should span."""
    return 1 if config.policy is PlacementPolicy.RANDOM else min(config.racks_min, write_quorum)


def spans_racks(members: Iterable[str], topology: Topology, racks_min: int) -> bool:
    """Whether these bookies stand in so many racks; of bookies in unknown places nothing is claimed."""
    return racks_min <= 1 or len(topology.racks(filter(topology.is_known, members))) >= racks_min


def spans_regions(members: Iterable[str], topology: Topology, ack_quorum: int, regions_min: int) -> bool:
    """Whether any ``ack_quorum`` of these bookies stand in so many regions."""
    largest = sorted(Counter(map(topology.region, members)).values(), reverse=True)
    return sum(largest[: regions_min - 1]) < ack_quorum


def acks_span(
    acknowledged: Collection[str], topology: Topology, config: PlacementConfig, write_quorum: int
) -> bool:
    """Whether an entry on these bookies may be confirmed, as far as fault domains go (reference 5.8).

    Bookies in unknown places count as one more rack together, as Apache's do.
    """
    if len(topology.racks(acknowledged)) < racks_wanted(config, write_quorum):
        return False
    regions_min = config.durable_regions
    return regions_min is None or len(set(map(topology.region, acknowledged))) >= regions_min


def may_span(members: Collection[str], topology: Topology, config: PlacementConfig) -> bool:
    """Whether a whole write set can ever fulfil ``acks_span``: those in unknown places may stand anywhere."""
    known = list(filter(topology.is_known, members))
    unknown = len(members) - len(known)
    if len(topology.racks(known)) + unknown < racks_wanted(config, len(members)):
        return False
    regions_min = config.durable_regions
    return regions_min is None or len(set(map(topology.region, known))) + unknown >= regions_min


def adherence(
    ensemble: Sequence[str], topology: Topology, config: PlacementConfig, write_quorum: int, ack_quorum: int
) -> Adherence:
    """Whether every write set of an ensemble is spread as wished; for checks of stored ledgers."""
    accepts = _accepts(
        config, topology, racks_wanted(config, write_quorum), ack_quorum, config.durable_regions
    )
    if config.enforce_racks and not all(map(topology.is_known, ensemble)):
        return Adherence.FAILS
    met = all(
        accepts([ensemble[index] for index in indices]) for indices in write_sets(len(ensemble), write_quorum)
    )
    return Adherence.MEETS if met else Adherence.FAILS


def choose_spread_ensemble(
    config: PlacementConfig,
    candidates: Candidates,
    size: int,
    write_quorum: int,
    ack_quorum: int,
    rng: random.Random,
    *,
    turn: int = 0,
) -> tuple[str, ...]:
    """The bookies of a new ensemble.

    Args:
        turn: How many ensembles were chosen before: regions take turns.

    Raises:
        NotEnoughBookiesError: Fewer than ``size`` bookies are writable.
        PlacementError: Enough are, but not with the fault domains that are enforced.
        ValueError: The quorums can never keep the promise about regions.
    """
    regions_min = config.durable_regions
    # Java also refuses what could not be done with the fewest regions, though there may be more of them.
    if regions_min is not None and ack_quorum < regions_min:
        raise ValueError(f"ack_quorum={ack_quorum} can never span regions_min={regions_min} regions")
    if len(candidates.writable) < size:
        raise NotEnoughBookiesError(size, len(candidates.writable))
    places: list[str | None] = [None] * size
    for pool in _pools(config, candidates, size):
        if config.policy is PlacementPolicy.RANDOM and not candidates.weights:
            return choose_ensemble(pool, size, rng, suspects=candidates.suspects)
        found = _fill(config, candidates, pool, places, {}, write_quorum, ack_quorum, regions_min, rng, turn)
        if found is not None:
            return found
    raise PlacementError(
        size,
        len(candidates.writable),
        _explained(config, candidates, write_quorum, ack_quorum, regions_min),
    )


def choose_spread_replacements(
    config: PlacementConfig,
    candidates: Candidates,
    ensemble: Sequence[str],
    failed: Collection[int],
    write_quorum: int,
    ack_quorum: int,
    rng: random.Random,
) -> tuple[dict[int, str], str | None]:
    """New bookies for as many of the failed indices as possible; and why not for all, if the rules forbid it.

    Members of the ensemble are never chosen, failed ones included.
    """
    spare = set(candidates.writable) - set(ensemble)
    regions_min = config.durable_regions if config.enforce_regions_in_replace else None
    if config.policy is PlacementPolicy.RANDOM and not candidates.weights:
        good = spare - set(candidates.quarantined)
        suspects, tried = candidates.suspects, candidates.tried
        chosen = choose_replacements(ensemble, failed, good, rng, suspects=suspects, tried=tried)
        rest, others = set(failed) - chosen.keys(), spare - good
        if rest and others:
            chosen |= choose_replacements(ensemble, rest, others, rng, suspects=suspects, tried=tried)
        return chosen, None
    present: list[str | None] = list(ensemble)
    indices = sorted(failed)
    # All at once if possible: a replacement that is right beside a failing bookie may be wrong beside that
    # one's replacement. Otherwise one after the other, as far as they go.
    for holes in ([indices] if len(indices) > 1 else []) + [[index] for index in indices]:
        was = {index: ensemble[index] for index in holes}
        places = [None if index in was else bookie for index, bookie in enumerate(present)]
        free = attrs.evolve(candidates, writable=spare - set(present))
        for pool in _pools(config, free, len(holes)):
            found = _fill(config, free, pool, places, was, write_quorum, ack_quorum, regions_min, rng, 0)
            if found is not None:
                present = list(found)
                break
        if len(holes) > 1 and present != list(ensemble):
            break
    chosen = {
        index: new for index in indices if (new := present[index]) is not None and new != ensemble[index]
    }
    missing = len(indices) - len(chosen)
    reason = None
    if missing and len(spare) > len(chosen):
        reason = f"no replacement for {missing} of its bookies: " + _explained(
            config, attrs.evolve(candidates, writable=spare), write_quorum, ack_quorum, regions_min
        )
    return chosen, reason


def _pools(config: PlacementConfig, candidates: Candidates, wanted: int) -> list[set[str]]:
    """From whom to choose: first without the quarantined, then with them."""
    topology = candidates.topology
    allowed = {
        bookie
        for bookie in candidates.writable
        if topology.region(bookie) not in config.regions_disallowed
        and (topology.is_known(bookie) or not config.enforce_racks)
    }
    good = allowed - set(candidates.quarantined)
    pools = [good, allowed] if len(good) < len(allowed) else [allowed]
    return [pool for pool in pools if len(pool) >= wanted]


def _fill(
    config: PlacementConfig,
    candidates: Candidates,
    pool: Collection[str],
    places: Sequence[str | None],
    was: Mapping[int, str],
    write_quorum: int,
    ack_quorum: int,
    regions_min: int | None,
    rng: random.Random,
    turn: int,
) -> tuple[str, ...] | None:
    topology = candidates.topology
    order = draw_order(pool, candidates.weights, rng)
    doubts = dict.fromkeys(candidates.suspects, 1) | {
        bookie: 2 + number for number, bookie in enumerate(candidates.tried)
    }
    order.sort(key=lambda bookie: doubts.get(bookie, 0))
    prefers = _prefers(config, topology, order, doubts, was, turn)
    domain = topology.rack if config.policy is not PlacementPolicy.RANDOM else lambda bookie: ""
    wanted = racks_wanted(config, write_quorum)
    for racks_min in (wanted,) if config.enforce_racks else range(wanted, 0, -1):
        found = fill_places(
            places,
            order,
            write_quorum=write_quorum,
            accepts=_accepts(config, topology, racks_min, ack_quorum, regions_min),
            prefers=prefers,
            domain=domain,
        )
        if found is not None:
            return found
    return None


def _accepts(
    config: PlacementConfig, topology: Topology, racks_min: int, ack_quorum: int, regions_min: int | None
) -> Callable[[Sequence[str]], bool]:
    def accepts(members: Sequence[str]) -> bool:
        return (
            spans_racks(members, topology, racks_min)
            and (regions_min is None or spans_regions(members, topology, ack_quorum, regions_min))
            and (not config.enforce_fault_domains or may_span(members, topology, config))
        )

    return accepts


def _prefers(
    config: PlacementConfig,
    topology: Topology,
    order: Collection[str],
    doubts: Mapping[str, int],
    was: Mapping[int, str],
    turn: int,
) -> Prefers:
    turns: dict[str, int] = {}
    if config.policy is PlacementPolicy.REGION_AWARE:
        regions = sorted({*config.regions, *map(topology.region, order)})
        turns = {region: 1 + (number - turn) % len(regions) for number, region in enumerate(regions)}
        if topology.local is not None:
            turns[topology.local.split("/", 2)[1]] = 0

    def prefers(place: int, bookie: str, ensemble: Sequence[str | None]) -> tuple[int, ...]:
        suspected = doubts.get(bookie, 0)
        if config.policy is PlacementPolicy.RANDOM:
            return (suspected,)
        chosen = [member for member in ensemble if member is not None]
        rack, former = topology.rack(bookie), was.get(place)
        crowd = sum(topology.rack(member) == rack for member in chosen)
        if config.policy is PlacementPolicy.RACK_AWARE:
            if former is not None:
                elsewhere = int(topology.is_known(former) and rack != topology.rack(former))
            else:
                elsewhere = int(not chosen and topology.local is not None and rack != topology.local)
            return (suspected, elsewhere, crowd)
        region = topology.region(bookie)
        elsewhere = int(former is not None and region != topology.region(former))
        region_crowd = sum(topology.region(member) == region for member in chosen)
        return (suspected, elsewhere, region_crowd, 0 if former is not None else turns[region], crowd)

    return prefers


def _explained(
    config: PlacementConfig,
    candidates: Candidates,
    write_quorum: int,
    ack_quorum: int,
    regions_min: int | None,
) -> str:
    topology = candidates.topology
    demands = []
    wanted = racks_wanted(config, write_quorum)
    if config.enforce_racks or (config.enforce_fault_domains and wanted > 1):
        demands.append(f"span {wanted} racks")
    if regions_min is not None:
        demands.append(f"have any {ack_quorum} of its bookies in {regions_min} regions")
    elif config.enforce_fault_domains and config.durable_regions is not None:
        demands.append(f"span {config.durable_regions} regions")
    where = Counter(
        topology.rack(bookie) if topology.is_known(bookie) else "unknown places"
        for bookie in candidates.writable
    )
    told = ", ".join(f"{count} in {rack}" for rack, count in sorted(where.items()))
    if config.regions_disallowed:
        demands.append(f"avoid {', '.join(sorted(config.regions_disallowed))}")
    return (
        f"every write quorum of {write_quorum} must {' and '.join(demands) or 'be placed'};"
        f" to choose from: {told or 'none'}"
    )
