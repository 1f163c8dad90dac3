"""The properties of the system: one function each, whose name states the property.

Inside: checkers of single events (``EVENT_CHECKERS``, called for every event) and of the final state
(``FINAL_CHECKERS``). Each returns its complaint, or None. Not inside: observing events.
Always: a checker uses no code of the system's logic. Tests call each with good and bad histories.

The numbers of the invariants are those of the public TLA+ model of BookKeeper (docs/known-bugs.md 81).

Source: Vanlightly/bookkeeper-tlaplus; jepsen.tests.kafka for the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ledger.metadata import LedgerMetadata, LedgerState
from ledger.quorum import write_set
from tests.simulation.history import (
    Accepted,
    BookieStarted,
    Confirmed,
    Crashed,
    Denied,
    Ended,
    EndSeen,
    EntryRead,
    FinalState,
    History,
    LacSeen,
    MetadataWritten,
    Place,
    Replica,
    RepliedToRecovery,
    Submitted,
)

OPERATION_S_MAX = 90.0  # after faults have stopped


def replica_names(metadata: LedgerMetadata, entry_id: int) -> tuple[str, ...]:
    """The bookies that the metadata assign an entry to."""
    bookies = metadata.ensemble_for(entry_id).bookies
    return tuple(bookies[i] for i in write_set(entry_id, len(bookies), metadata.write_quorum))


def _too_few(
    metadata: LedgerMetadata, place: Place, holders: frozenset[str], damaged: frozenset[str]
) -> str | None:
    names = replica_names(metadata, place[1])
    good = [name for name in names if name in holders or name in damaged]
    if len(good) >= metadata.ack_quorum:
        return None
    return f"entry {place[0]}:{place[1]} is durable on {good} only, of {list(names)}"


# --- events ---------------------------------------------------------------------------------------


def an_acknowledged_entry_is_durable_on_an_ack_quorum(event: Confirmed, history: History) -> str | None:
    """TLA+ 3 at the moment of the acknowledgement, counting synced entries only (apache/bookkeeper#3979)."""
    return _too_few(event.metadata, event.place, event.holders, event.damaged)


def acknowledgements_come_in_order(event: Confirmed, history: History) -> str | None:
    ledger_id, entry_id = event.place
    expected = history.confirmed_lac.get(ledger_id, -1) + 1
    return None if entry_id == expected else f"entry {ledger_id}:{entry_id} confirmed, {expected} was next"


def a_closed_ledger_confirms_nothing_beyond_its_end(event: Confirmed, history: History) -> str | None:
    """TLA+ 2 for the writer: a fenced writer confirms no further entry."""
    ledger_id, entry_id = event.place
    end = history.ends.get(ledger_id)
    if end is None or entry_id <= end[0]:
        return None
    return f"entry {ledger_id}:{entry_id} confirmed to {event.client}; the ledger is closed at {end[0]}"


def an_entry_is_written_once(event: Submitted, history: History) -> str | None:
    other = history.submitted.get(event.place)
    return None if other is None else f"entry {event.place}: by {other.client} and by {event.client}"


def closing_keeps_every_acknowledged_entry(event: MetadataWritten, history: History) -> str | None:
    """TLA+ 2 for the client that closes."""
    if not event.after.is_closed:
        return None
    lac = history.confirmed_lac.get(event.ledger_id, -1)
    end = event.after.last_entry_id
    return None if lac <= end else f"ledger {event.ledger_id} closed at {end}; {lac} was acknowledged"


def the_end_of_a_closed_ledger_never_changes(event: MetadataWritten, history: History) -> str | None:
    """TLA+ 2: exactly one client closes a ledger."""
    before = history.ends.get(event.ledger_id)
    if before is None:
        return None
    now = (event.after.last_entry_id, event.after.length_bytes)
    return None if now == before else f"ledger {event.ledger_id}: its end was {before} and is {now}"


def metadata_names_the_bookies_that_have_the_acknowledged_entries(
    event: MetadataWritten, history: History
) -> str | None:
    """TLA+ 3 at each change of the ensemble. (apache/bookkeeper#1591, #4097)"""
    for entry_id, holders in event.holders.items():
        wrong = _too_few(event.after, (event.ledger_id, entry_id), holders, event.damaged)
        if wrong is not None:
            return f"after a change of metadata {wrong}"
    return None


def closed_metadata_is_complete(event: MetadataWritten, history: History) -> str | None:
    """The part of TLA+ 1 about metadata: segments ascend, and a segment names no bookie twice."""
    firsts = [ensemble.first_entry_id for ensemble in event.after.ensembles]
    if firsts != sorted(set(firsts)) or firsts[0] != 0:
        return f"ledger {event.ledger_id}: segments begin at {firsts}"
    for ensemble in event.after.ensembles:
        if len(set(ensemble.bookies)) != event.after.ensemble_size:
            return f"ledger {event.ledger_id}: ensemble {ensemble.bookies}"
    return None


def a_reader_sees_a_lac_only_once_it_is_on_an_ack_quorum(event: LacSeen, history: History) -> str | None:
    if event.place[1] < 0:
        return None
    wrong = _too_few(event.metadata, event.place, event.holders, event.damaged)
    return None if wrong is None else f"{event.client} sees LAC {event.place[1]}, but {wrong}"


def a_reader_gets_the_bytes_that_were_written(event: EntryRead, history: History) -> str | None:
    """A reader gets no entry that was not written, and no bytes of another entry."""
    written = history.submitted.get(event.place)
    if written is None:
        return f"{event.client} read entry {event.place}, which no client wrote"
    if written.payload != event.payload:
        return f"{event.client} read {event.payload[:40]!r} at {event.place}, not {written.payload[:40]!r}"
    return None


def all_clients_see_the_same_end(event: EndSeen, history: History) -> str | None:
    end = history.ends.get(event.ledger_id)
    seen = (event.last_entry_id, event.length_bytes)
    return None if end == seen else f"{event.client} saw ledger {event.ledger_id} end at {seen}; it is {end}"


def an_entry_carries_no_greater_lac_than_was_acknowledged(event: Accepted, history: History) -> str | None:
    ledger_id, entry_id = event.place
    if event.lac >= entry_id:
        return f"entry {ledger_id}:{entry_id} carries LAC {event.lac}"
    if not event.is_recovery and event.lac > history.confirmed_lac.get(ledger_id, -1):
        known = history.confirmed_lac.get(ledger_id, -1)
        return f"entry {ledger_id}:{entry_id} carries LAC {event.lac}; only {known} was confirmed"
    return None


def a_bookie_takes_no_adds_after_a_fence(event: Accepted, history: History) -> str | None:
    if event.is_recovery or not event.after_fence:
        return None
    return f"{event.bookie} replied to a fencing read of ledger {event.place[0]} and later took {event.place}"


def an_entry_denied_to_a_recovery_is_never_accepted(event: Accepted, history: History) -> str | None:
    """The rule of docs/protocol.md 7.4 (apache/bookkeeper#2614)."""
    if event.is_recovery or not event.after_denial:
        return None
    return f"{event.bookie} denied entry {event.place} to a recovery and later took it from its writer"


def a_bookie_fences_before_it_replies_to_a_recovery(event: RepliedToRecovery, history: History) -> str | None:
    """The rule of docs/protocol.md 7.4, checked before an entry is lost."""
    if event.is_fenced:
        return None
    return f"{event.bookie} replied to a recovery's read of {event.place} without a fence of the ledger"


def a_bookie_denies_no_entry_that_it_acknowledged(event: Denied, history: History) -> str | None:
    """A bookie that lost data may give no reply, or reply that it cannot tell (apache/bookkeeper#2612)."""
    if not event.had_acknowledged:
        return None
    return f"{event.bookie} denied entry {event.place}, which it had acknowledged"


def a_recovery_writes_only_to_the_last_segment(event: Accepted, history: History) -> str | None:
    """apache/bookkeeper#2615"""
    metadata = event.metadata
    if not event.is_recovery or metadata is None or metadata.state is not LedgerState.IN_RECOVERY:
        return None
    first = metadata.last_ensemble.first_entry_id
    if event.place[1] >= first:
        return None
    return f"a recovery wrote entry {event.place} to {event.bookie}; the last segment begins at {first}"


def a_bookie_forgets_no_fence(event: BookieStarted, history: History) -> str | None:
    lost = event.promised_fences - event.fenced
    return f"{event.bookie} started without its fence of ledgers {sorted(lost)}" if lost else None


def a_bookie_has_only_entries_that_were_sent_to_it(event: BookieStarted, history: History) -> str | None:
    """TLA+ 5, NoOutOfOrderEntries: id and body match on every bookie."""
    return f"{event.bookie} started with {event.wrong_entries[0]}" if event.wrong_entries else None


def once_faults_stop_every_operation_ends(event: Ended, history: History) -> str | None:
    if event.faults_ended_at is None:
        return None
    seconds = event.at - max(event.began_at, event.faults_ended_at)
    if seconds <= OPERATION_S_MAX:
        return None
    return f"{event.client}: {event.what} took {seconds:.0f} s without a fault"


def no_process_ends_by_a_bug(event: Crashed, history: History) -> str | None:
    return f"{event.process}: {event.error}"


# --- the final state ------------------------------------------------------------------------------


def every_acknowledged_entry_is_readable(state: FinalState, history: History) -> str | None:
    """TLA+ 3."""
    for place in sorted(history.confirmed):
        if place[0] not in state.metadata or place[0] in state.unclosed:
            continue
        got = state.read.get(place)
        if got != history.submitted[place].payload:
            return f"entry {place} was acknowledged; a reader gets {got!r}"
    return None


def a_closed_ledger_holds_every_acknowledged_entry(state: FinalState, history: History) -> str | None:
    """TLA+ 2."""
    for ledger_id, lac in sorted(history.confirmed_lac.items()):
        metadata = state.metadata.get(ledger_id)
        if metadata is not None and metadata.is_closed and metadata.last_entry_id < lac:
            return f"ledger {ledger_id} ends at {metadata.last_entry_id}; {lac} was acknowledged"
    return None


def a_closed_ledger_holds_every_entry_that_a_reader_saw_confirmed(
    state: FinalState, history: History
) -> str | None:
    for ledger_id, lac in sorted(history.seen_lac.items()):
        metadata = state.metadata.get(ledger_id)
        if metadata is not None and metadata.is_closed and metadata.last_entry_id < lac:
            return f"ledger {ledger_id} ends at {metadata.last_entry_id}; a reader saw LAC {lac}"
    return None


def every_entry_of_a_closed_ledger_is_on_an_ack_quorum(state: FinalState, history: History) -> str | None:
    """TLA+ 4."""
    for ledger_id, metadata in sorted(state.metadata.items()):
        if not metadata.is_closed or ledger_id in state.unclosed:
            continue
        for entry_id in range(metadata.last_entry_id + 1):
            found = state.replicas.get((ledger_id, entry_id), {})
            holders = frozenset(name for name, replica in found.items() if isinstance(replica, Replica))
            wrong = _too_few(metadata, (ledger_id, entry_id), holders, state.damaged)
            if wrong is not None:
                return wrong
    return None


def replicas_do_not_diverge(state: FinalState, history: History) -> str | None:
    """TLA+ 5: up to a closed ledger's end all replicas have the same bytes, except for the LAC in them."""
    for place, found in sorted(state.replicas.items()):
        metadata = state.metadata.get(place[0])
        if metadata is None or not metadata.is_closed or place[1] > metadata.last_entry_id:
            continue
        good = {name: replica for name, replica in found.items() if isinstance(replica, Replica)}
        kinds = {(replica.payload, replica.length_bytes) for replica in good.values()}
        if len(kinds) > 1:
            return f"entry {place} differs: {sorted(good)}"
    return None


def undamaged_replicas_are_readable(state: FinalState, history: History) -> str | None:
    """A bookie that lost no data can read every entry that it has."""
    for place, found in sorted(state.replicas.items()):
        for name, replica in sorted(found.items()):
            if isinstance(replica, str) and name not in state.damaged:
                return f"{name} cannot read entry {place}: {replica}"
    return None


def the_length_of_a_closed_ledger_is_that_of_its_entries(state: FinalState, history: History) -> str | None:
    for ledger_id, metadata in sorted(state.metadata.items()):
        if not metadata.is_closed or ledger_id in state.unclosed:
            continue
        places = [(ledger_id, entry_id) for entry_id in range(metadata.last_entry_id + 1)]
        if any(place not in history.submitted for place in places):
            return f"ledger {ledger_id} ends at {metadata.last_entry_id}; no client wrote so many entries"
        length = sum(len(history.submitted[place].payload) for place in places)
        if length != metadata.length_bytes:
            return f"ledger {ledger_id} has {length} bytes; its metadata says {metadata.length_bytes}"
    return None


def every_ledger_can_be_closed_after_the_faults(state: FinalState, history: History) -> str | None:
    """TLA+ 6, liveness."""
    for ledger_id, why in sorted(state.unclosed.items()):
        return f"ledger {ledger_id} cannot be recovered: {why}"
    return None


def a_full_disk_leaves_nothing_behind(state: FinalState, history: History) -> str | None:
    """A directory is at most 1.3 times as large as a new one with the same entries, however it was freed."""
    for name, size in sorted(state.sizes.items()):
        if size.log_bytes > 1.3 * size.entry_bytes + size.excused_bytes:
            return f"the entry logs of {name} are too large: {size}"
    return None


def every_operation_has_ended(state: FinalState, history: History) -> str | None:
    return f"still under way: {state.unfinished[0]}" if state.unfinished else None


def every_non_empty_ledger_is_in_its_log(state: FinalState, history: History) -> str | None:
    """TLA+ 7."""
    listed = {ledger_id for chain in state.chains.values() for ledger_id in chain}
    for ledger_id in sorted({place[0] for place in history.confirmed}):
        if ledger_id in state.metadata and ledger_id not in listed:
            return f"ledger {ledger_id} has acknowledged entries and is in no log"
    return None


def a_log_keeps_the_order_of_its_entries(state: FinalState, history: History) -> str | None:
    """TLA+ 8: an entry acknowledged before another one was written precedes it in the log."""
    for name, chain in sorted(state.chains.items()):
        latest, latest_place = -1.0, (-1, -1)
        for ledger_id in chain:
            metadata = state.metadata.get(ledger_id)
            if metadata is None or not metadata.is_closed:
                continue
            for entry_id in range(metadata.last_entry_id + 1):
                place = (ledger_id, entry_id)
                confirmed_at = history.confirmed.get(place)
                if confirmed_at is not None and confirmed_at < latest:
                    return (
                        f"log {name}: {place} was acknowledged before {latest_place} was written, but comes"
                        " after it"
                    )
                submitted = history.submitted.get(place)
                if submitted is not None and submitted.at > latest:
                    latest, latest_place = submitted.at, place
    return None


def only_the_last_ledger_of_a_log_may_be_open(state: FinalState, history: History) -> str | None:
    """TLA+ 9."""
    for name, chain in sorted(state.chains.items()):
        for ledger_id in chain[:-1]:
            metadata = state.metadata.get(ledger_id)
            if metadata is not None and metadata.state is LedgerState.OPEN:
                return f"log {name}: ledger {ledger_id} is open, but is not the last of {chain}"
    return None


EVENT_CHECKERS: dict[type, tuple[Callable[[Any, History], str | None], ...]] = {
    Confirmed: (
        an_acknowledged_entry_is_durable_on_an_ack_quorum,
        acknowledgements_come_in_order,
        a_closed_ledger_confirms_nothing_beyond_its_end,
    ),
    Submitted: (an_entry_is_written_once,),
    MetadataWritten: (
        closing_keeps_every_acknowledged_entry,
        the_end_of_a_closed_ledger_never_changes,
        metadata_names_the_bookies_that_have_the_acknowledged_entries,
        closed_metadata_is_complete,
    ),
    LacSeen: (a_reader_sees_a_lac_only_once_it_is_on_an_ack_quorum,),
    EntryRead: (a_reader_gets_the_bytes_that_were_written,),
    EndSeen: (all_clients_see_the_same_end,),
    Accepted: (
        an_entry_carries_no_greater_lac_than_was_acknowledged,
        a_bookie_takes_no_adds_after_a_fence,
        an_entry_denied_to_a_recovery_is_never_accepted,
        a_recovery_writes_only_to_the_last_segment,
    ),
    RepliedToRecovery: (a_bookie_fences_before_it_replies_to_a_recovery,),
    Denied: (a_bookie_denies_no_entry_that_it_acknowledged,),
    BookieStarted: (a_bookie_forgets_no_fence, a_bookie_has_only_entries_that_were_sent_to_it),
    Ended: (once_faults_stop_every_operation_ends,),
    Crashed: (no_process_ends_by_a_bug,),
}

# These hold even for ledgers of which a bookie lost entries without being able to detect it.
EVEN_IF_EXCUSED: frozenset[Callable[[Any, History], str | None]] = frozenset(
    {
        a_reader_gets_the_bytes_that_were_written,
        an_entry_is_written_once,
        the_end_of_a_closed_ledger_never_changes,
        all_clients_see_the_same_end,
    }
)

FINAL_CHECKERS: tuple[Callable[[FinalState, History], str | None], ...] = (
    every_operation_has_ended,
    a_full_disk_leaves_nothing_behind,
    every_ledger_can_be_closed_after_the_faults,
    a_closed_ledger_holds_every_acknowledged_entry,
    a_closed_ledger_holds_every_entry_that_a_reader_saw_confirmed,
    every_acknowledged_entry_is_readable,
    every_entry_of_a_closed_ledger_is_on_an_ack_quorum,
    replicas_do_not_diverge,
    undamaged_replicas_are_readable,
    the_length_of_a_closed_ledger_is_that_of_its_entries,
    every_non_empty_ledger_is_in_its_log,
    a_log_keeps_the_order_of_its_entries,
    only_the_last_ledger_of_a_log_may_be_open,
)
