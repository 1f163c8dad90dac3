"""The rules of spreading an ensemble over racks and regions, as pure functions.

Inside: which ensembles are acceptable, which bookie is preferred, which rule is relaxed first if not all can
be fulfilled. Not inside: finding an ensemble (``placement.search``); locations, weights and health
(``placer``).
Always: no bookie is twice in an ensemble. An enforced rule holds in each write set that was chosen for;
otherwise an error is raised. Without enforced rules, only too few bookies are an error. No write set is
chosen on which certainly no entry could ever be confirmed. The priority is: enforced rules, no quarantined
bookie, the wanted number of racks, no recently failed bookie, an even spread.

Source: RackawareEnsemblePlacementPolicyImpl.java, RegionAwareEnsemblePlacementPolicy.java; docs/protocol.md
11.3 to 11.5.
"""

from __future__ import annotations

import enum
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import attrs

from ledger.errors import NotEnoughBookiesError, PlacementError
from ledger.placement.config import PlacementConfig, PlacementPolicy
from ledger.placement.random_policy import choose_ensemble, choose_replacements
from ledger.placement.search import Prefers, fill_ensemble
from ledger.placement.topology import Topology, region_of
from ledger.placement.weights import draw_order
from ledger.quorum import write_sets

REPLACED_MAX = 16  # bookies of one ensemble that one call replaces


@attrs.frozen(kw_only=True)
class Candidates:
    """The bookies that may be chosen, with all that the rules use."""

    writable: Collection[str]
    topology: Topology = attrs.field(factory=Topology)
    suspects: Collection[str] = ()  # failed recently
    tried: Sequence[str] = ()  # failed the caller recently, the latest one last
    quarantined: Collection[str] = ()  # failed often
    weights: Mapping[str, float] = attrs.field(factory=dict)


class Adherence(enum.Enum):
    """Whether an ensemble is spread as its policy prescribes."""

    MEETS = "meets"
    FAILS = "fails"


def racks_wanted(config: PlacementConfig, write_quorum: int) -> int:
    """The racks that a write set should span."""
    return 1 if config.policy is PlacementPolicy.RANDOM else min(config.racks_min, write_quorum)


def spans_racks(members: Iterable[str], topology: Topology, racks_min: int) -> bool:
    """Whether these bookies span this many racks. Bookies with unknown locations do not count."""
    return racks_min <= 1 or len(topology.racks(filter(topology.is_known, members))) >= racks_min


def spans_regions(members: Iterable[str], topology: Topology, ack_quorum: int, regions_min: int) -> bool:
    """Whether every ``ack_quorum`` of these bookies spans this many regions."""
    largest = sorted(Counter(map(topology.region, members)).values(), reverse=True)
    return sum(largest[: regions_min - 1]) < ack_quorum


def acks_span(
    acknowledged: Collection[str], topology: Topology, config: PlacementConfig, write_quorum: int
) -> bool:
    """Whether these bookies span enough fault domains to confirm an entry (docs/protocol.md 5.8).

    Bookies with unknown locations count as one more rack together, as with Apache's client.
    """
    if len(topology.racks(acknowledged)) < racks_wanted(config, write_quorum):
        return False
    regions_min = config.durable_regions
    return regions_min is None or len(set(map(topology.region, acknowledged))) >= regions_min


def may_span(members: Collection[str], topology: Topology, config: PlacementConfig) -> bool:
    """Whether a write set can ever fulfil ``acks_span``, if unknown locations turn out to be favourable."""
    known = list(filter(topology.is_known, members))
    unknown = len(members) - len(known)
    if len(topology.racks(known)) + unknown < racks_wanted(config, len(members)):
        return False
    regions_min = config.durable_regions
    return regions_min is None or len(set(map(topology.region, known))) + unknown >= regions_min


def adherence(
    ensemble: Sequence[str], topology: Topology, config: PlacementConfig, write_quorum: int, ack_quorum: int
) -> Adherence:
    """Whether every write set of a stored ensemble is spread as the policy prescribes."""
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
    """Choose the bookies of a new ensemble.

    Args:
        turn: The number of ensembles chosen before; the first region rotates with it.

    Raises:
        NotEnoughBookiesError: Fewer than ``size`` bookies are writable.
        PlacementError: The enforced fault domains allow no ensemble of them.
        ValueError: No ack quorum of this size can ever span the enforced regions.
    """
    regions_min = config.durable_regions
    # Java also refuses quorums that fail with the fewest regions, although more regions may be available.
    if regions_min is not None and ack_quorum < regions_min:
        raise ValueError(f"ack_quorum={ack_quorum} can never span regions_min={regions_min} regions")
    if len(candidates.writable) < size:
        raise NotEnoughBookiesError(size, len(candidates.writable), candidates.writable)
    vacant: list[str | None] = [None] * size
    needs = _Needs(config, write_quorum, ack_quorum, regions_min)
    for pool in _pools(config, candidates, size):
        if config.policy is PlacementPolicy.RANDOM and not candidates.weights:
            return choose_ensemble(pool, size, rng, suspects=candidates.suspects)
        found = _fill(needs, candidates, pool, vacant, rng, turn=turn)
        if found is not None:
            return found
    raise PlacementError(
        size,
        len(candidates.writable),
        _explain(config, candidates, write_quorum, ack_quorum, regions_min),
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
    """Choose bookies for as many failed indices as possible; if the rules forbid more, also return why.

    Members of the ensemble are never chosen, not even failed ones. Of more than ``REPLACED_MAX`` failed
    indices the first ones get bookies.
    """
    failed = sorted(failed)[:REPLACED_MAX]
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
    needs = _Needs(config, write_quorum, ack_quorum, regions_min)
    present: list[str | None] = list(ensemble)
    indices = failed
    # All at once if possible: a replacement may fit beside a failed bookie, but not beside that bookie's
    # replacement. Otherwise one after the other, as many as possible.
    for vacant in ([indices] if len(indices) > 1 else []) + [[index] for index in indices]:
        failed_at = {index: ensemble[index] for index in vacant}
        members = [None if index in failed_at else bookie for index, bookie in enumerate(present)]
        free = attrs.evolve(candidates, writable=spare - set(present))
        for pool in _pools(config, free, len(vacant)):
            found = _fill(needs, free, pool, members, rng, failed_at=failed_at)
            if found is not None:
                present = list(found)
                break
        if len(vacant) > 1 and present != list(ensemble):
            break
    chosen = {
        index: new for index in indices if (new := present[index]) is not None and new != ensemble[index]
    }
    missing = len(indices) - len(chosen)
    reason = None
    if missing and len(spare) > len(chosen):
        reason = f"no replacement for {missing} of its bookies: " + _explain(
            config, attrs.evolve(candidates, writable=spare), write_quorum, ack_quorum, regions_min
        )
    return chosen, reason


def _pools(config: PlacementConfig, candidates: Candidates, wanted: int) -> list[set[str]]:
    """The sets to choose from, in order: first without quarantined bookies, then with them."""
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


@attrs.frozen
class _Needs:
    """The conditions that the bookies of an ensemble must fulfil."""

    config: PlacementConfig
    write_quorum: int
    ack_quorum: int
    regions_min: int | None


def _fill(
    needs: _Needs,
    candidates: Candidates,
    pool: Collection[str],
    members: Sequence[str | None],
    rng: random.Random,
    *,
    failed_at: Mapping[int, str] | None = None,
    turn: int = 0,
) -> tuple[str, ...] | None:
    """``members`` with a bookie of the pool at each vacant index; None if the needs allow no choice."""
    topology, config = candidates.topology, needs.config
    order = draw_order(pool, candidates.weights, rng)
    penalties = dict.fromkeys(candidates.suspects, 1) | {
        bookie: 2 + number for number, bookie in enumerate(candidates.tried)
    }
    order.sort(key=lambda bookie: penalties.get(bookie, 0))
    prefers = _prefers(config, topology, order, penalties, failed_at or {}, turn)
    domain = topology.rack if config.policy is not PlacementPolicy.RANDOM else lambda bookie: ""
    wanted = racks_wanted(config, needs.write_quorum)
    for racks_min in (wanted,) if config.enforce_racks else range(wanted, 0, -1):
        found = fill_ensemble(
            members,
            order,
            write_quorum=needs.write_quorum,
            accepts=_accepts(config, topology, racks_min, needs.ack_quorum, needs.regions_min),
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
    penalties: Mapping[str, int],
    failed_at: Mapping[int, str],
    turn: int,
) -> Prefers:
    region_rank: dict[str, int] = {}
    if config.policy is PlacementPolicy.REGION_AWARE:
        regions = sorted({*config.regions, *map(topology.region, order)})
        region_rank = {region: 1 + (number - turn) % len(regions) for number, region in enumerate(regions)}
        if topology.local is not None:
            region_rank[topology.local.split("/", 2)[1]] = 0

    def prefers(index: int, bookie: str, in_rack: Mapping[str, int]) -> tuple[int, ...]:
        penalty = penalties.get(bookie, 0)
        if config.policy is PlacementPolicy.RANDOM:
            return (penalty,)
        rack, failed = topology.rack(bookie), failed_at.get(index)
        same_rack = in_rack.get(rack, 0)
        if config.policy is PlacementPolicy.RACK_AWARE:
            if failed is not None:
                elsewhere = int(topology.is_known(failed) and rack != topology.rack(failed))
            else:
                elsewhere = int(
                    not any(in_rack.values()) and topology.local is not None and rack != topology.local
                )
            return (penalty, elsewhere, same_rack)
        region = topology.region(bookie)
        elsewhere = int(failed is not None and region != topology.region(failed))
        same_region = sum(count for name, count in in_rack.items() if region_of(name) == region)
        rank = 0 if failed is not None else region_rank[region]
        return (penalty, elsewhere, same_region, rank, same_rack)

    return prefers


def _explain(
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
        topology.rack(bookie) if topology.is_known(bookie) else "unknown locations"
        for bookie in candidates.writable
    )
    available = ", ".join(f"{count} in {rack}" for rack, count in sorted(where.items()))
    if config.regions_disallowed:
        demands.append(f"avoid {', '.join(sorted(config.regions_disallowed))}")
    return (
        f"every write quorum of {write_quorum} must {' and '.join(demands) or 'be placed'};"
        f" to choose from: {available or 'none'}"
    )
