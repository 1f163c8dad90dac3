"""Filling the vacant indices of an ensemble so that every write set is acceptable.

Inside: the search. Not inside: the rules of acceptance and preference (``placement.spread_policy``).
Always: in a returned ensemble, each write set that the search completed is acceptable. If the search fails
although an ensemble exists, it gave up after ``WORK_MAX``, which takes more fault domains, or larger write
sets, than clusters have. It does not hold the loop for longer, whatever a ledger's metadata name.

The rule does not distinguish bookies of one fault domain, so the search goes by domains: its depth is the
number of vacant indices, its breadth the number of domains.

Source: the rules of TopologyAwareEnsemblePlacementPolicy.java (its greedy choice can miss an ensemble that
exists); docs/protocol.md 11.4.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

WORK_MAX = 500_000  # domains that a choice looks at, and members that a check of a write set looks at
VACANT_MAX = 500  # the depth of the search, in calls of Python

Accepts = Callable[[Sequence[str]], bool]
"""Whether these bookies may be a write set. The result may depend only on their domains."""

Prefers = Callable[[int, str, Mapping[str, int]], tuple[int, ...]]
"""From ``(index, candidate, members so far in each domain)`` to a sort key; smaller is better."""


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
    size = len(members)
    taken = {bookie for bookie in members if bookie is not None}
    by_domain: dict[str, list[tuple[int, str]]] = {}
    for rank, bookie in enumerate(candidates):
        if bookie not in taken:
            by_domain.setdefault(domain(bookie), []).append((rank, bookie))
    ensemble = list(members)
    vacant = [index for index, bookie in enumerate(members) if bookie is None]
    counts = Counter(map(domain, taken))
    work = 0

    def fits(index: int) -> bool:
        nonlocal work
        for first in range(index - write_quorum + 1, index + 1):  # the write sets that hold the index
            work += write_quorum
            write_set = [
                member
                for other in range(first, first + write_quorum)
                if (member := ensemble[other % size]) is not None
            ]
            if len(write_set) == write_quorum and not accepts(write_set):
                return False
        return True

    def search(depth: int) -> bool:
        nonlocal work
        if depth == len(vacant):
            return True
        index = vacant[depth]
        # The first candidate of each domain stands for all of them.
        choices = [
            (prefers(index, ranked[0][1], counts), ranked[0], name, ranked)
            for name, ranked in by_domain.items()
            if ranked
        ]
        choices.sort(key=lambda choice: choice[:2])
        work += len(choices)
        for _, first, name, ranked in choices:
            if work > WORK_MAX:
                return False
            ranked.pop(0)
            ensemble[index] = first[1]
            counts[name] += 1
            if fits(index) and search(depth + 1):
                return True
            ensemble[index] = None
            counts[name] -= 1
            ranked.insert(0, first)
        return False

    if len(vacant) > VACANT_MAX or sum(map(len, by_domain.values())) < len(vacant) or not search(0):
        return None
    return tuple(bookie for bookie in ensemble if bookie is not None)
