"""The measurement of a part, and the bar that it has to reach.

Pure. Always: value and floor come from the same execution, so that their ratio compares like with like.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

MIB = 1 << 20
GIB = 1 << 30


@attrs.frozen
class Bar:
    """The bounds ``least`` and ``most`` of a value, or of its ratio to the floor."""

    least: float | None = None
    most: float | None = None
    of_ratio: bool = False

    def is_met(self, value: float, ratio: float | None) -> bool:
        """True if the bounds hold. False if the bar is for a ratio and there is none."""
        number = ratio if self.of_ratio else value
        if number is None:
            return False
        return (self.least is None or number >= self.least) and (self.most is None or number <= self.most)

    def __str__(self) -> str:
        limits = [("at least", self.least), ("at most", self.most)]
        text = " and ".join(f"{word} {limit:,g}" for word, limit in limits if limit is not None)
        return f"{text} of the floor" if self.of_ratio else text


@attrs.frozen(kw_only=True)
class Measurement:
    """One part's result."""

    part: str  # adds, writes, reads, replay, rebuild or compaction
    value: float
    unit: str
    bar: Bar
    floor: float | None = None  # the result of a plain loop, in the same unit
    details: Mapping[str, float] = attrs.field(factory=dict)

    @property
    def ratio(self) -> float | None:
        """The value divided by the floor; None without a floor."""
        return self.value / self.floor if self.floor else None

    @property
    def is_met(self) -> bool:
        """True if the bar is reached."""
        return self.bar.is_met(self.value, self.ratio)

    def document(self) -> dict[str, object]:
        """The JSON document of this measurement."""
        return {
            "value": _rounded(self.value),
            "unit": self.unit,
            "floor": None if self.floor is None else _rounded(self.floor),
            "ratio_to_floor": None if self.ratio is None else round(self.ratio, 4),
            "bar": str(self.bar),
            "met": self.is_met,
            **{name: _rounded(number) for name, number in self.details.items()},
        }


def _rounded(number: float) -> float:
    return round(number, 1 if abs(number) >= 1000 else 4)
