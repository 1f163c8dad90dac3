"""Filling the vacant indices of an ensemble so that every write set is acceptable.

Inside: the search. Not inside: the rules of acceptance and preference (``placement.spread_policy``).
Always: in a returned ensemble, each write set that the search completed is acceptable. If the search fails
although an ensemble exists, it gave up after ``STEPS_MAX`` steps, which takes more fault domains than
clusters have.

The rule does not distinguish bookies of one fault domain, so the search goes by domains: its depth is the
number of vacant indices, its breadth the number of domains.

Source: the rules of TopologyAwareEnsemblePlacementPolicy.java (its greedy choice can miss an ensemble that
exists); docs/protocol.md 11.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ledger.quorum import write_sets

STEPS_MAX = 5_000

Accepts = Callable[[Sequence[str]], bool]
"""Whether these bookies may be a write set. The result may depend only on their domains."""

Prefers = Callable[[int, str, Sequence[str | None]], tuple[int, ...]]
"""From ``(index, candidate, ensemble so far)`` to a sort key; smaller is better."""


def fill_ensemble(
    members: Sequence[str | None],
    candidates: Iterable[str],
    *,
    write_quorum: int,
    accepts: Accepts,
    prefers: Prefers,
    domain: Callable[[str], str],
) -> tuple[str, ...] | None:
    """The ensemble with each None replaced by a candidate; None if the search fails.

    Args:
        candidates: In the order in which they are chosen if ``prefers`` gives the same key.
    """
    sets = write_sets(len(members), write_quorum)
    sets_with = [[indices for indices in sets if index in indices] for index in range(len(members))]
    taken = {bookie for bookie in members if bookie is not None}
    by_domain: dict[str, list[tuple[int, str]]] = {}
    for rank, bookie in enumerate(candidates):
        if bookie not in taken:
            by_domain.setdefault(domain(bookie), []).append((rank, bookie))
    ensemble = list(members)
    vacant = [index for index, bookie in enumerate(members) if bookie is None]
    steps = 0

    def fits(index: int) -> bool:
        for indices in sets_with[index]:
            write_set = [member for other in indices if (member := ensemble[other]) is not None]
            if len(write_set) == len(indices) and not accepts(write_set):
                return False
        return True

    def search(depth: int) -> bool:
        nonlocal steps
        if depth == len(vacant):
            return True
        index = vacant[depth]
        # The first candidate of each domain stands for all of them.
        choices = [
            (prefers(index, ranked[0][1], ensemble), ranked[0], ranked)
            for ranked in by_domain.values()
            if ranked
        ]
        choices.sort(key=lambda choice: choice[:2])
        for _, first, ranked in choices:
            steps += 1
            if steps > STEPS_MAX:
                return False
            ranked.pop(0)
            ensemble[index] = first[1]
            if fits(index) and search(depth + 1):
                return True
            ensemble[index] = None
            ranked.insert(0, first)
        return False

    if sum(map(len, by_domain.values())) < len(vacant) or not search(0):
        return None
    return tuple(bookie for bookie in ensemble if bookie is not None)
