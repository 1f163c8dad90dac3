"""Drawing bookies with a probability that grows with their free disk space.

Inside: weights from free bytes; a weighted random order. Not inside: requesting free bytes (``placer``), the
rules of placement (``placement.spread_policy``).
Always: no weight is zero, so no bookie is excluded by it; the same seed gives the same order.

Source: WeightedRandomSelectionImpl.java; docs/protocol.md 11.6. The order is drawn by the algorithm of
Efraimidis and Spirakis: its first k are a draw of k without replacement.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping


def weights_of_free_bytes(free_bytes: Mapping[str, int], multiple_max: float) -> dict[str, float]:
    """The weight of each bookie: its free bytes, at most ``multiple_max`` times the median.

    A bookie that reports 0 gets the smallest weight of the others; if all report 0, all weights are equal.
    """
    positive = [free for free in free_bytes.values() if free > 0]
    if not positive:
        return dict.fromkeys(free_bytes, 1.0)
    smallest = min(positive)
    weights = {bookie: float(free if free > 0 else smallest) for bookie, free in free_bytes.items()}
    ceiling = multiple_max * _median(weights.values())
    return {bookie: min(weight, ceiling) for bookie, weight in weights.items()}


def draw_order(bookies: Collection[str], weights: Mapping[str, float], rng: random.Random) -> list[str]:
    """All bookies in a weighted random order; a bookie without a weight gets the median weight."""
    known = [weights[bookie] for bookie in bookies if bookie in weights]
    default = _median(known) if known else 1.0
    # Sorted before drawing: the order of a set of strings differs between processes.
    drawn = {bookie: rng.expovariate(1.0) / weights.get(bookie, default) for bookie in sorted(bookies)}
    return sorted(drawn, key=drawn.__getitem__)


def _median(values: Iterable[float]) -> float:
    """As ``statistics.median``, whose module would load the decimal numbers and fractions of Python."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
