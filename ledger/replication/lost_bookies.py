"""The decision when to look for the ledgers of lost bookies.

A bookie is lost if it was registered, or has a cookie, and is neither writable nor read-only. One lost bookie
may only restart, so the audit waits for the delay of the cluster; a second one ends the wait.

Inside: the bookies known and lost, as a machine. Not inside: the audit, time, the store (``auditor``).
Always: each lost bookie leads to an audit, unless it comes back before.

Source: Auditor.java, AuditorBookieCheckTask.java; docs/autorecovery.md.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs


@attrs.frozen
class AuditNow:
    """Audit the ledgers of all bookies at once; no audit is pending any more."""


@attrs.frozen
class ScheduleAudit:
    """Call ``on_delay_over`` after this time, unless ``CancelAudit`` or ``AuditNow`` comes first."""

    delay_s: int


@attrs.frozen
class CancelAudit:
    """Forget the pending audit."""


Action = AuditNow | ScheduleAudit | CancelAudit


class LostBookies:
    """The bookies that one auditor knows."""

    def __init__(self, known: Iterable[str], delay_s: int) -> None:
        """``known``: the bookies with a cookie."""
        self._known = set(known)
        self._lost: set[str] = set()  # an audit for them is pending
        self._delay_s = delay_s
        self._is_pending = False

    @property
    def is_pending(self) -> bool:
        """True while an audit is scheduled."""
        return self._is_pending

    def on_bookies(self, available: Iterable[str]) -> list[Action]:
        """These bookies are writable or read-only now."""
        available = set(available)
        actions: list[Action] = []
        self._known |= available
        if self._lost and self._lost <= self._known:
            actions += self._cancel()
            self._lost.clear()
        self._lost |= self._known - available
        self._known &= available
        if not self._lost:
            return actions
        if self._delay_s == 0 or len(self._lost) > 1:
            return self._audit()
        if not self._is_pending:
            self._is_pending = True
            actions.append(ScheduleAudit(self._delay_s))
        return actions

    def on_delay_set(self, delay_s: int) -> list[Action]:
        """An operator wrote the delay. The same value again means: audit now."""
        is_audit = delay_s in (0, self._delay_s)
        self._delay_s = delay_s
        if is_audit:
            return self._audit()
        actions = self._cancel()
        if self._lost:
            self._is_pending = True
            actions.append(ScheduleAudit(delay_s))
        return actions

    def on_delay_over(self) -> list[Action]:
        """The time of the last ``ScheduleAudit`` is over."""
        return self._audit() if self._is_pending else []

    def _audit(self) -> list[Action]:
        self._is_pending = False
        self._lost.clear()
        return [AuditNow()]

    def _cancel(self) -> list[Action]:
        was_pending, self._is_pending = self._is_pending, False
        return [CancelAudit()] if was_pending else []
