"""Counters per second between two looks at them.

Always: a counter that was not seen before, or became smaller, has no rate: a rate is never invented.
"""

from __future__ import annotations

from collections.abc import Mapping

WINDOW_S = 1.0  # the shortest time between two looks that gives a rate


class Rates:
    """The rates of named counters."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, int]] = {}
        self._rates: dict[str, float | None] = {}

    def update(self, now_s: float, counters: Mapping[str, int]) -> dict[str, float | None]:
        """The rate of each counter, per second; None if it is not known yet. Other counters are forgotten."""
        for name in self._seen.keys() - counters.keys():
            del self._seen[name]
            self._rates.pop(name, None)
        for name, value in counters.items():
            before = self._seen.get(name)
            if before is not None and now_s - before[0] < WINDOW_S:
                continue  # too short; the last rate stays
            is_known = before is not None and value >= before[1]
            self._rates[name] = (value - before[1]) / (now_s - before[0]) if before and is_known else None
            self._seen[name] = (now_s, value)
        return {name: self._rates.get(name) for name in counters}
