"""The progress of a pipeline: what it reports after each step that a restart need not repeat.

Always: the counts hold what earlier attempts have finished, so a restarted pipeline continues where the last
one stopped; they never go down within an attempt. A report is made after the step is durable.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs


@attrs.frozen(kw_only=True)
class Progress:
    """How far a pipeline is."""

    pipeline: str  # such as archive
    log: str
    step: str  # what it does now, such as "writing segments"
    records: int = 0  # finished, also by earlier attempts
    records_before: int = 0  # of them, finished by earlier attempts
    records_total: int | None = None  # None: not known yet
    size_bytes: int = 0  # written by this attempt

    def as_document(self) -> dict[str, object]:
        """The fields as JSON values."""
        return attrs.asdict(self)


Report = Callable[[Progress], None]


def ignore_progress(_progress: Progress) -> None:
    """A ``Report`` that does nothing."""
