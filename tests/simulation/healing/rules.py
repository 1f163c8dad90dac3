"""The rules of auto-recovery: one function each, whose name states the rule.

Inside: rules of single events and of the end. Each returns its complaint, or None. Not inside: observing
(``world``), the rules of ledgers, which hold here too (``tests.simulation.checkers``): no ensemble has a
bookie twice, no acknowledged entry is lost or changed, no ledger ends before a LAC that was seen.
Always: a rule uses no code of auto-recovery. Tests call each with good and bad events.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from ledger.metadata import LedgerMetadata, LedgerState
from tests.simulation.checkers import replica_names
from tests.simulation.history import Accepted, FinalState, History, Replica


@attrs.frozen
class WorkerChanged:
    """A worker changed the metadata of a ledger."""

    at: float
    worker: str
    ledger_id: int
    before: LedgerMetadata
    after: LedgerMetadata
    locked_at: float | None  # since when its session holds the lock of the ledger; None: it does not
    lacking: tuple[str, ...]  # replicas that it moved, and that are not durable in their new place
    spares: frozenset[str] = frozenset()  # outside the last ensemble, registered since the lock was taken


@attrs.frozen
class Unmarked:
    """A worker deleted the mark of a ledger."""

    at: float
    worker: str
    ledger_id: int
    named: frozenset[str]  # the bookies that hold entries of the ledger, by its metadata
    gone: frozenset[str]  # lost for good, and no longer registered when the worker took its lock


@attrs.frozen
class CookieDeleted:
    """A bookie left the cluster."""

    bookie: str
    ledger_ids: tuple[int, ...]  # the ledgers that name it


@attrs.frozen
class HealedState:
    """The world after repair has come to rest."""

    state: FinalState
    lost: frozenset[str]  # for good
    marks: tuple[str, ...]
    locks: tuple[str, ...]


def _is_move(event: WorkerChanged) -> bool:
    """True if replicas moved: not the change of a recovery, which may replace a bookie of the open end."""
    return event.before.state is event.after.state and event.before.state is not LedgerState.IN_RECOVERY


def a_fragment_is_copied_before_its_metadata_change(event: WorkerChanged) -> str | None:
    if not event.lacking:
        return None
    return f"{event.worker} moved replicas of ledger {event.ledger_id} without {event.lacking[0]}"


def metadata_change_only_under_the_lock(event: WorkerChanged) -> str | None:
    if event.locked_at is not None or not _is_move(event):
        return None
    return f"{event.worker} moved replicas of ledger {event.ledger_id} without its lock"


def the_open_end_is_left_to_its_writer(event: WorkerChanged) -> str | None:
    """Only a recovery, which fences the writer, may change the last ensemble."""
    if not _is_move(event) or event.before.is_closed:
        return None
    if event.before.last_ensemble == event.after.last_ensemble:
        return None
    return f"{event.worker} changed the open end of ledger {event.ledger_id} while its writer may add to it"


def an_open_ledger_is_closed_only_after_the_grace(event: WorkerChanged, grace_s: float) -> str | None:
    if event.before.state is not LedgerState.OPEN or event.after.state is LedgerState.OPEN:
        return None
    if event.locked_at is not None and event.at - event.locked_at >= grace_s:
        return None
    return f"{event.worker} closed ledger {event.ledger_id} before the {grace_s} s of grace were over"


def only_confirmed_entries_are_copied(copy: Accepted, history: History) -> str | None:
    """A worker may not spread an entry of an open ledger that its writer did not confirm."""
    ledger_id, entry_id = copy.place
    if entry_id <= history.confirmed_lac.get(ledger_id, -1):
        return None
    return f"entry {copy.place} was copied to {copy.bookie} before it was confirmed"


def an_open_ledger_is_closed_only_for_a_replacement(event: WorkerChanged) -> str | None:
    """Without another bookie nothing can be copied, and a fence stops a writer that has its quorum."""
    if event.before.state is not LedgerState.OPEN or event.after.state is LedgerState.OPEN or event.spares:
        return None
    return f"{event.worker} closed ledger {event.ledger_id}, and no bookie is outside its ensemble"


def a_mark_goes_only_after_the_lost_bookie(event: Unmarked) -> str | None:
    """A mark that goes too early leaves a ledger that no worker restores."""
    left = sorted(event.named & event.gone)
    if not left:
        return None
    return f"{event.worker} removed the mark of ledger {event.ledger_id}, which still names {left[0]}, lost"


def a_cookie_goes_only_without_ledgers(event: CookieDeleted) -> str | None:
    if not event.ledger_ids:
        return None
    return f"the cookie of {event.bookie} is gone; ledgers {list(event.ledger_ids)} name it"


# --- the end --------------------------------------------------------------------------------------


def no_ledger_names_a_lost_bookie(healed: HealedState, history: History) -> str | None:
    for ledger_id, metadata in sorted(healed.state.metadata.items()):
        for entry_id in range(metadata.last_entry_id + 1 if metadata.is_closed else 0):
            left = healed.lost.intersection(replica_names(metadata, entry_id))
            if left:
                return f"entry {entry_id} of ledger {ledger_id} belongs to {sorted(left)}, lost for good"
    return None


def every_replica_is_where_the_metadata_say(healed: HealedState, history: History) -> str | None:
    """Every entry of a closed ledger is on its whole write quorum, with the bytes that were written."""
    state = healed.state
    for ledger_id, metadata in sorted(state.metadata.items()):
        if not metadata.is_closed or ledger_id in state.unclosed:
            continue
        for entry_id in range(metadata.last_entry_id + 1):
            place = (ledger_id, entry_id)
            for name in replica_names(metadata, entry_id):
                replica = state.replicas.get(place, {}).get(name)
                written = history.submitted.get(place)
                if not isinstance(replica, Replica):
                    return f"entry {place} is not on {name}: {replica}"
                if written is None or replica.payload != written.payload:
                    return f"entry {place} on {name} is {replica.payload[:40]!r}"
    return None


def no_mark_is_left(healed: HealedState, history: History) -> str | None:
    return f"still marked: {healed.marks[0]}" if healed.marks else None


def no_lock_is_left(healed: HealedState, history: History) -> str | None:
    return f"still locked: {healed.locks[0]}" if healed.locks else None


MOVE_RULES: tuple[Callable[[WorkerChanged], str | None], ...] = (
    a_fragment_is_copied_before_its_metadata_change,
    metadata_change_only_under_the_lock,
    the_open_end_is_left_to_its_writer,
    an_open_ledger_is_closed_only_for_a_replacement,
)

HEALED_RULES: tuple[Callable[[HealedState, History], Any], ...] = (
    no_ledger_names_a_lost_bookie,
    every_replica_is_where_the_metadata_say,
    no_mark_is_left,
    no_lock_is_left,
)
