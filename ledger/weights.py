"""Drawing bookies with a chance that grows with their free disk space.

Inside: free bytes to weights; a weighted order. Not inside: asking for free bytes (``placer``), which of them
may be taken (``placement_policy``).
Always: nobody's weight is zero, so nobody is shut out by it; the same seed gives the same order.

Source: WeightedRandomSelectionImpl.java; reference on operations 1.7. The order is drawn as Efraimidis and
Spirakis do it: its first k are a draw of k without putting back.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Collection, Mapping


def weights_of_free_bytes(free_bytes: Mapping[str, int], multiple_max: float) -> dict[str, float]:
    """The weight of each bookie: its free bytes, at most ``multiple_max`` times the median.

    One that reports 0 counts as the smallest of the others; if all do, all count the same.
    """
    positive = [free for free in free_bytes.values() if free > 0]
    if not positive:
        return dict.fromkeys(free_bytes, 1.0)
    smallest = min(positive)
    weights = {bookie: float(free if free > 0 else smallest) for bookie, free in free_bytes.items()}
    ceiling = multiple_max * statistics.median(weights.values())
    return {bookie: min(weight, ceiling) for bookie, weight in weights.items()}


def draw_order(bookies: Collection[str], weights: Mapping[str, float], rng: random.Random) -> list[str]:
    """All bookies in an order drawn by weight; one whose weight is not known counts as the median one."""
    known = [weights[bookie] for bookie in bookies if bookie in weights]
    usual = statistics.median(known) if known else 1.0
    # Sorted before drawing: sets of strings have another order in each process.
    drawn = {bookie: rng.expovariate(1.0) / weights.get(bookie, usual) for bookie in sorted(bookies)}
    return sorted(drawn, key=drawn.__getitem__)
