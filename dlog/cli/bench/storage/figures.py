"""What a part measured, and the bar it has to reach.

Pure. Always: a bar is judged by the figure of the same run, and a ratio by the floor of the same run.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

MIB = 1 << 20
GIB = 1 << 30


@attrs.frozen
class Bar:
    """What a figure must reach: ``least`` or ``most``, of the figure itself or of its ratio to the floor."""

    least: float | None = None
    most: float | None = None
    of_ratio: bool = False

    def is_met(self, value: float, ratio: float | None) -> bool:
        """Whether it is reached. A ratio that was not measured reaches nothing."""
        judged = ratio if self.of_ratio else value
        if judged is None:
            return False
        return (self.least is None or judged >= self.least) and (self.most is None or judged <= self.most)

    def __str__(self) -> str:
        limits = [("at least", self.least), ("at most", self.most)]
        said = " and ".join(f"{word} {limit:,g}" for word, limit in limits if limit is not None)
        return f"{said} of the floor" if self.of_ratio else said


@attrs.frozen(kw_only=True)
class Figure:
    """One part's result."""

    part: str  # adds, writes, reads, replay, rebuild or compaction
    value: float
    unit: str
    bar: Bar
    floor: float | None = None  # in the same unit, by a plain loop in the same run
    details: Mapping[str, float] = attrs.field(factory=dict)

    @property
    def ratio(self) -> float | None:
        """The value by the floor."""
        return self.value / self.floor if self.floor else None

    @property
    def is_met(self) -> bool:
        """Whether the bar is reached."""
        return self.bar.is_met(self.value, self.ratio)

    def document(self) -> dict[str, object]:
        """What ``--json`` prints of it."""
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
