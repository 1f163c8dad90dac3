"""Warnings that peers cause, in a number of log lines that no peer can raise.

Inside: one line at once for the first event of each kind, then one line with the count for each interval.
Not inside: which events there are (``server``, ``connection``).
Always: however many connections misbehave, each kind gets at most one line at once and one for each interval,
and there are at most ``KINDS_MAX`` kinds.
"""

from __future__ import annotations

import enum
import logging

import attrs

from ledger.runtime.log_lines import get_logger

log = get_logger(__name__)

INTERVAL_S = 60.0
KINDS_MAX = 64  # in an interval; later reasons count as those without one
_TEXT_MAX = 300  # characters of one warning; a part of it may be the peer's


class PeerEvent(enum.Enum):
    """The kinds of events; each has a line of its own."""

    PROTOCOL = "connections closed by a protocol error"
    TLS = "TLS handshakes that failed"
    AUTHENTICATION = "connections closed because authentication failed"
    REJECTED = "connections whose every request is refused"
    STALLED = "connections closed because the peer stalled"
    OVERDUE = "connections closed because no whole frame came"
    NO_PLACE = "connections refused or closed because all places are taken (maxConnections)"
    NO_DESCRIPTOR = "times no connection could be accepted"
    FAULT = "connections or rounds of the server ended by a fault in the bookie; please report it"
    BUDGET = "requests refused with TOOMANYREQUESTS"


@attrs.define
class _Counted:
    since_s: float
    count: int = 0  # since the last line
    last: str = ""


class PeerWarnings:
    """See the module. On the loop."""

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._counted: dict[tuple[PeerEvent, str], _Counted] = {}

    def note(
        self,
        event: PeerEvent,
        text: str,
        now_s: float,
        *,
        reason: str = "",
        error: BaseException | None = None,
    ) -> None:
        """Log the event, or count it for the next line.

        Args:
            text: The event.
            now_s: The loop's clock.
            reason: Events of one sort and different reasons have lines of their own.
            error: Logged with its traceback, if the event gets a line of its own.
        """
        key = (event, reason)
        if key not in self._counted and len(self._counted) >= KINDS_MAX:
            key = (event, "")
        counted = self._counted.get(key)
        if counted is None:
            self._counted[key] = _Counted(now_s)
            level = logging.WARNING if error is None else logging.ERROR
            log.log(level, "%s: %s", event.value, text[:_TEXT_MAX], exc_info=error)
            return
        counted.count += 1
        counted.last = text[:_TEXT_MAX]
        if now_s - counted.since_s >= self._interval_s:
            self._write(event, counted, now_s)

    def flush(self, now_s: float) -> None:
        """Write the counts of all kinds whose interval has ended."""
        for key, counted in list(self._counted.items()):
            event, _ = key
            if now_s - counted.since_s < self._interval_s:
                continue
            if counted.count:
                self._write(event, counted, now_s)
            else:
                del self._counted[key]  # a quiet interval: the next event gets a line at once

    def _write(self, event: PeerEvent, counted: _Counted, now_s: float) -> None:
        log.warning(
            "%s: %d more in %.0f s; the last: %s",
            event.value,
            counted.count,
            now_s - counted.since_s,
            counted.last,
        )
        counted.count, counted.since_s = 0, now_s
