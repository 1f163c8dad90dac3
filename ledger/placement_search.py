"""Filling the empty places of an ensemble so that every write set is acceptable.

Inside: the search. Not inside: what is acceptable and what is preferred (``placement_policy``).
Always: if it gives an ensemble, each write set that it completed is acceptable; if it gives none although one
exists, it gave up after ``STEPS_MAX`` places tried, which takes more fault domains than clusters have.

Bookies of one fault domain are interchangeable to the rule, so the search goes by domains: depth is the
number of empty places, breadth the number of domains.

Source: the rules of TopologyAwareEnsemblePlacementPolicy.java (its greedy choice can miss an ensemble that
exists); reference on operations 1.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ledger.quorum import write_sets

STEPS_MAX = 5_000

Accepts = Callable[[Sequence[str]], bool]
"""Whether these bookies, which are a whole write set, may be one. May ask for their domains only."""

Prefers = Callable[[int, str, Sequence[str | None]], tuple[int, ...]]
"""``(place, candidate, ensemble so far)`` to a sort key: smaller is better."""


def fill_places(
    places: Sequence[str | None],
    candidates: Iterable[str],
    *,
    write_quorum: int,
    accepts: Accepts,
    prefers: Prefers,
    domain: Callable[[str], str],
) -> tuple[str, ...] | None:
    """The ensemble with every None replaced by a candidate; None if that is not possible.

    Args:
        candidates: In the order in which they are taken where ``prefers`` makes no difference.
    """
    sets = write_sets(len(places), write_quorum)
    sets_at = [[indices for indices in sets if place in indices] for place in range(len(places))]
    taken = {bookie for bookie in places if bookie is not None}
    rows: dict[str, list[tuple[int, str]]] = {}
    for rank, bookie in enumerate(candidates):
        if bookie not in taken:
            rows.setdefault(domain(bookie), []).append((rank, bookie))
    ensemble = list(places)
    holes = [place for place, bookie in enumerate(places) if bookie is None]
    steps = 0

    def fits(place: int) -> bool:
        for indices in sets_at[place]:
            members = [member for index in indices if (member := ensemble[index]) is not None]
            if len(members) == len(indices) and not accepts(members):
                return False
        return True

    def search(depth: int) -> bool:
        nonlocal steps
        if depth == len(holes):
            return True
        place = holes[depth]
        heads = [(prefers(place, row[0][1], ensemble), row[0], row) for row in rows.values() if row]
        heads.sort(key=lambda head: head[:2])
        for _, head, row in heads:
            steps += 1
            if steps > STEPS_MAX:
                return False
            row.pop(0)
            ensemble[place] = head[1]
            if fits(place) and search(depth + 1):
                return True
            ensemble[place] = None
            row.insert(0, head)
        return False

    if sum(map(len, rows.values())) < len(holes) or not search(0):
        return None
    return tuple(bookie for bookie in ensemble if bookie is not None)
