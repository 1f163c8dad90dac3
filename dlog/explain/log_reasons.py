"""Why an append to a log waits or fails, and why a reader or a cursor of it stands still.

Inside: conclusions from facts. Not inside: the facts' collection.
Always: a log that no client writes, or one client writes, and whose ledgers have no fault, has no fault.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from dlog.explain.facts import CursorFacts, LogFacts, Reason
from dlog.explain.ledger_reasons import explain_ledger


def explain_log(facts: LogFacts) -> list[Reason]:
    """The reasons, those of writers first, then those of readers, then those of single cursors."""
    name = shlex.quote(facts.name)
    if facts.moved_to is not None:
        return [
            Reason(
                "the log was moved: its newer records are in another namespace",
                f"it continues at {facts.moved_to}",
                f"dlog log show {name} --uri {shlex.quote(facts.moved_to)}",
                is_fault=False,
            )
        ]
    reasons = [*_writers(facts, name), *_readers(facts, name)]
    for ledger in facts.ledgers:
        reasons += (each for each in explain_ledger(ledger) if each.is_fault)
    for cursor in facts.cursors:
        reasons += _cursor(facts, cursor, name)
    return reasons


def _writers(facts: LogFacts, name: str) -> Iterable[Reason]:
    show = f"dlog log show {name}"
    if facts.is_sealed:
        yield Reason(
            "an append is refused: the log is sealed", "its last segment is sealed", show, is_fault=False
        )
    if facts.denied:
        yield Reason(
            f"access control entries deny {', '.join(facts.denied)} to everyone",
            "they are stored below the namespace and hold for every client",
            "dlog access show",
        )
    writable = len(facts.cluster.writable)
    if writable < facts.bookies_min:
        yield Reason(
            "a new segment cannot be created, so an append waits or fails",
            f"it needs {facts.bookies_min} writable bookies, there are {writable}",
            "dlog bookies list",
        )
    elif writable < facts.ensemble_size:
        yield Reason(
            f"a new segment begins on {writable} of {facts.ensemble_size} bookies",
            f"no more are writable, and {facts.bookies_min} are enough to acknowledge records",
            "dlog bookies list",
        )
    if facts.lock:
        holder, waiting = facts.lock[0], len(facts.lock) - 1
        session = "" if holder.session_id is None else f" with session 0x{holder.session_id & (2**64 - 1):x}"
        age_s = max(0, facts.now_ms - holder.since_ms) // 1000
        yield Reason(
            f"the writer {holder.owner} holds the lock of the log"
            + (f", and {waiting} more wait for it" if waiting else ""),
            f"its node below <default>/lock is {age_s} s old{session}. Another writer waits until this one"
            " closes, or its session ends",
            show,
            is_fault=waiting > 0,
        )


def _readers(facts: LogFacts, name: str) -> Iterable[Reason]:
    if facts.unread is not None:
        yield Reason("the end of the log cannot be read now", facts.unread, f"dlog log check {name}")
    newest = facts.segments[-1] if facts.segments else None
    if newest is None or (facts.last_dlsn is None and facts.unread is None):
        yield Reason(
            "a reader ends at once: the log is sealed and has no record"
            if facts.is_sealed
            else "a reader waits: the log has no record yet",
            f"segments: {len(facts.segments)}",
            f"dlog log show {name}",
            is_fault=False,
        )
    elif not newest.is_completed and not facts.lock:
        yield Reason(
            "the last segment is in progress and no writer holds the lock",
            f"segment {newest.segment_seqno} in ledger {newest.ledger_id}: its writer is gone, or is opening"
            " the log. A reader stops at the last confirmed record; the next writer completes the segment",
            f"dlog log recover {name}",
        )
    elif facts.last_dlsn is not None:
        waits = "no later record will come" if facts.is_sealed else "a reader behind it waits for the writer"
        yield Reason(
            f"readers see records up to {facts.last_dlsn}",
            f"segments: {len(facts.segments)}; {waits}",
            f"dlog log show {name}",
            is_fault=False,
        )


def _cursor(facts: LogFacts, cursor: CursorFacts, name: str) -> Iterable[Reason]:
    label = f"cursor {cursor.name}"
    list_ = f"dlog cursor list {name}"
    if facts.first_dlsn is not None and cursor.position < facts.first_dlsn:
        yield Reason(
            f"{label} points before the first record that is kept",
            f"it is at {cursor.position}, the log begins at {facts.first_dlsn}",
            list_,
            is_fault=False,
        )
    if cursor.lag_records is None:
        yield Reason(
            f"the lag of {label} cannot be counted now", facts.unread or "a record cannot be read", list_
        )
    elif cursor.lag_records:
        yield Reason(
            f"{label} is {cursor.lag_records:,} records behind",
            f"it is at {cursor.position}; its readers are slow, stopped, or do not commit",
            list_,
            is_fault=False,
        )
    else:
        yield Reason(
            f"{label} has consumed everything",
            f"it is at {cursor.position}",
            list_,
            is_fault=False,
        )
