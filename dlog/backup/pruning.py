"""Which backups are kept.

Inside: the choice. Not inside: deleting (``store``).
Always: the newest one is kept.

Source: our own; docs/backup.md.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from dlog.backup.format import ManifestName

Keep = datetime.timedelta | int
# A replica keeps each of the last hour, one of each minute of the last day, one of each hour before.
_STEPS_MS = ((3_600_000, 0), (86_400_000, 60_000))
_OLD_STEP_MS = 3_600_000


def check_keep(keep: Keep) -> None:
    """Raise ValueError unless it is a positive number of backups, or a positive age."""
    least = datetime.timedelta(0) if isinstance(keep, datetime.timedelta) else 0
    if isinstance(keep, bool) or keep <= least:  # type: ignore[operator]
        raise ValueError(f"keep {keep!r}: give a positive number of backups, or a positive timedelta")


def kept_by(names: Sequence[ManifestName], keep: Keep, now_ms: int) -> list[ManifestName]:
    """The backups to keep.

    Args:
        names: The oldest first.
        keep: A number: the newest ones. An age: with those that are younger the one before them, so that each
            moment of that time can be restored.
    """
    if not isinstance(keep, datetime.timedelta):
        return list(names[-keep:])
    limit_ms = now_ms - keep // datetime.timedelta(milliseconds=1)
    older = sum(name.cut_ms < limit_ms for name in names)
    return list(names[max(0, older - 1) :])


def thinned(names: Sequence[ManifestName], now_ms: int) -> list[ManifestName]:
    """The backups of a replica that are kept: the last of each step, and steps grow with the age."""
    last_of_step: dict[tuple[int, int], ManifestName] = {}
    for name in names:
        age_ms = now_ms - name.cut_ms
        step_ms = next((step for limit, step in _STEPS_MS if age_ms <= limit), _OLD_STEP_MS) or 1
        last_of_step[step_ms, name.cut_ms // step_ms] = name
    return sorted(last_of_step.values())
