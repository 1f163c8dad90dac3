"""How far a promotion is."""

from __future__ import annotations

from collections.abc import Callable

import attrs


@attrs.frozen
class PromotionProgress:
    """Where a running promotion is."""

    log: str
    step: str
    segments_copied: int
    segments: int
    bytes_copied: int  # by this call


@attrs.frozen
class PromotionStatus:
    """The state of a promotion, from both sides."""

    log: str
    target: str
    phase: str  # of the source: copying, handed over, done, undoing
    is_purged: bool
    segments: int  # at the source
    segments_copied: int  # of them, at the target
    takes_records: str | None  # the URI of the side that does; None in the middle of the hand-over


OnProgress = Callable[[PromotionProgress], None]


def no_report(_: PromotionProgress) -> None:
    """Report nothing."""
