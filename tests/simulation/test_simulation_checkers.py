"""Each checker reports a bad made-up history and accepts a good one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from ledger.metadata import Ensemble, LedgerMetadata
from tests.simulation import checkers
from tests.simulation.checkers import EVENT_CHECKERS, FINAL_CHECKERS
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
    Replica,
    RepliedToRecovery,
    Size,
    Submitted,
)

A, B, C, D = "a:1", "b:1", "c:1", "d:1"
NO_BOOKIES: frozenset[str] = frozenset()
OPEN = LedgerMetadata(ensemble_size=3, write_quorum=3, ack_quorum=2, ensembles=(Ensemble(0, (A, B, C)),))
RECOVERING = OPEN.in_recovery()
CLOSED = RECOVERING.closed(1, 6)


def history() -> History:
    """Entries 1:0 and 1:1 were written, 1:0 was confirmed, and a reader saw that."""
    past = History()
    past.note(Submitted(1.0, "w", (1, 0), b"one"))
    past.note(Submitted(1.1, "w", (1, 1), b"two"))
    past.note(confirmed())
    past.note(LacSeen(2.0, "r", (1, 0), OPEN, frozenset({A, B}), NO_BOOKIES))
    return past


def closed_history() -> History:
    past = history()
    past.note(written(CLOSED))
    return past


def confirmed(
    entry_id: int = 0, holders: tuple[str, ...] = (A, B), damaged: tuple[str, ...] = ()
) -> Confirmed:
    return Confirmed(1.5, "w", (1, entry_id), OPEN, frozenset(holders), frozenset(damaged))


def written(
    after: LedgerMetadata,
    holders: dict[int, frozenset[str]] | None = None,
    damaged: frozenset[str] = NO_BOOKIES,
) -> MetadataWritten:
    return MetadataWritten(3.0, 1, OPEN, after, holders or {}, damaged)


def accepted(entry_id: int = 1, **changes: Any) -> Accepted:
    return attrs.evolve(Accepted(2.0, A, (1, entry_id), False, 0, False, False, None), **changes)


def started(**changes: Any) -> BookieStarted:
    return attrs.evolve(BookieStarted(4.0, A, frozenset({1}), frozenset({1}), ()), **changes)


MOVED = OPEN.with_ensemble(1, (A, B, D))

EVENTS: list[tuple[Callable[..., str | None], Any, Any, Callable[[], History]]] = [
    # the checker, an event that it must accept, one that it must report, the history before
    (
        checkers.an_acknowledged_entry_is_durable_on_an_ack_quorum,
        confirmed(holders=(A,), damaged=(B,)),
        confirmed(holders=(A,)),
        history,
    ),
    (
        checkers.an_acknowledged_entry_is_durable_on_an_ack_quorum,
        confirmed(),
        confirmed(holders=(A, D)),
        history,
    ),
    (checkers.acknowledgements_come_in_order, confirmed(1), confirmed(2), history),
    (
        checkers.a_closed_ledger_confirms_nothing_beyond_its_end,
        confirmed(1),
        confirmed(2),
        closed_history,
    ),
    (
        checkers.an_entry_is_written_once,
        Submitted(5.0, "w", (1, 2), b"three"),
        Submitted(5.0, "v", (1, 1), b"two"),
        history,
    ),
    (
        checkers.closing_keeps_every_acknowledged_entry,
        written(CLOSED),
        written(RECOVERING.closed(-1, 0)),
        history,
    ),
    (
        checkers.the_end_of_a_closed_ledger_never_changes,
        written(CLOSED),
        written(RECOVERING.closed(0, 3)),
        closed_history,
    ),
    (
        checkers.metadata_names_the_bookies_that_have_the_acknowledged_entries,
        written(MOVED, {1: frozenset({A, D})}),
        written(MOVED, {1: frozenset({A, C})}),
        history,
    ),
    (
        checkers.a_reader_sees_a_lac_only_once_it_is_on_an_ack_quorum,
        LacSeen(2.0, "r", (1, 1), OPEN, frozenset({B, C}), NO_BOOKIES),
        LacSeen(2.0, "r", (1, 1), OPEN, frozenset({B}), NO_BOOKIES),
        history,
    ),
    (
        checkers.a_reader_gets_the_bytes_that_were_written,
        EntryRead(2.0, "r", (1, 0), b"one"),
        EntryRead(2.0, "r", (1, 0), b"two"),
        history,
    ),
    (
        checkers.a_reader_gets_the_bytes_that_were_written,
        EntryRead(2.0, "r", (1, 1), b"two"),
        EntryRead(2.0, "r", (7, 0), b"one"),
        history,
    ),
    (
        checkers.all_clients_see_the_same_end,
        EndSeen(5.0, "r", 1, 1, 6),
        EndSeen(5.0, "r", 1, 0, 3),
        closed_history,
    ),
    (
        checkers.an_entry_carries_no_greater_lac_than_was_acknowledged,
        accepted(),
        accepted(entry_id=2, lac=1),
        history,
    ),
    (
        checkers.an_entry_carries_no_greater_lac_than_was_acknowledged,
        accepted(lac=-1),
        accepted(lac=1, is_recovery=True),
        history,
    ),
    (
        checkers.a_bookie_takes_no_adds_after_a_fence,
        accepted(after_fence=True, is_recovery=True),
        accepted(after_fence=True),
        history,
    ),
    (
        checkers.an_entry_denied_to_a_recovery_is_never_accepted,
        accepted(after_denial=True, is_recovery=True),
        accepted(after_denial=True),
        history,
    ),
    (
        checkers.a_recovery_writes_only_to_the_last_segment,
        accepted(entry_id=1, is_recovery=True, metadata=MOVED.in_recovery()),
        accepted(entry_id=0, is_recovery=True, metadata=MOVED.in_recovery()),
        history,
    ),
    (
        checkers.a_bookie_fences_before_it_replies_to_a_recovery,
        RepliedToRecovery(2.0, A, (1, 1), True),
        RepliedToRecovery(2.0, A, (1, 1), False),
        history,
    ),
    (
        checkers.a_bookie_denies_no_entry_that_it_acknowledged,
        Denied(2.0, A, (1, 1), False),
        Denied(2.0, A, (1, 1), True),
        history,
    ),
    (checkers.a_bookie_forgets_no_fence, started(), started(fenced=NO_BOOKIES), history),
    (
        checkers.a_bookie_has_only_entries_that_were_sent_to_it,
        started(),
        started(wrong_entries=("entry 1:0, torn",)),
        history,
    ),
    (
        checkers.once_faults_stop_every_operation_ends,
        Ended(200.0, "w", "close", 10.0, None),
        Ended(200.0, "w", "close", 10.0, 50.0),
        history,
    ),
]


@pytest.mark.parametrize(
    ("check", "good", "bad", "past"), EVENTS, ids=[f"{row[0].__name__}-{n}" for n, row in enumerate(EVENTS)]
)
def test_a_checker_of_events_accepts_good_and_reports_bad(
    check: Callable[..., str | None], good: Any, bad: Any, past: Callable[[], History]
) -> None:
    assert check(good, past()) is None
    assert check(bad, past()) is not None


def test_segments_out_of_order_and_repeated_bookies_are_reported() -> None:
    class Broken:
        ensemble_size = 3

        def __init__(self, *ensembles: Ensemble) -> None:
            self.ensembles = ensembles

    check = checkers.closed_metadata_is_complete
    for ensembles in (
        (Ensemble(0, (A, B, C)), Ensemble(0, (A, B, D))),
        (Ensemble(1, (A, B, C)),),
        (Ensemble(0, (A, B, B)),),
    ):
        event = MetadataWritten(3.0, 1, OPEN, Broken(*ensembles), {}, NO_BOOKIES)  # type: ignore[arg-type]
        assert check(event, history()) is not None
    assert check(written(MOVED), history()) is None


def test_every_crash_is_a_violation() -> None:
    assert checkers.no_process_ends_by_a_bug(Crashed(1.0, "w", "KeyError: 1"), history()) is not None


def final(**changes: Any) -> FinalState:
    """Ledger 1 is closed at 1, A and B have both entries, both were read; no other ledger is in the log."""
    state = FinalState(
        metadata={1: CLOSED},
        unclosed={},
        replicas={
            (1, 0): {A: Replica(b"one", 3, -1), B: Replica(b"one", 3, -1)},
            (1, 1): {A: Replica(b"two", 6, 0), B: Replica(b"two", 6, -1)},
        },
        read={(1, 0): b"one", (1, 1): b"two"},
        damaged=NO_BOOKIES,
        chains={"log": (1,)},
        unfinished=(),
    )
    return attrs.evolve(state, **changes)


def replicas(entry_id: int, **found: Replica | str) -> dict[Any, Any]:
    names = {"a": A, "b": B, "c": C}
    return {**final().replicas, (1, entry_id): {names[name]: replica for name, replica in found.items()}}


def _two_ledgers(first_open: bool) -> FinalState:
    return final(metadata={1: OPEN if first_open else CLOSED, 2: OPEN}, chains={"log": (1, 2)})


FINALS: list[tuple[Callable[..., str | None], FinalState]] = [
    (checkers.every_operation_has_ended, final(unfinished=("w: close 1",))),
    (checkers.a_full_disk_leaves_nothing_behind, final(sizes={A: Size(1_401, 1_000, 100)})),
    (checkers.every_ledger_can_be_closed_after_the_faults, final(unclosed={1: "too few bookies"})),
    (checkers.a_closed_ledger_holds_every_acknowledged_entry, final(metadata={1: RECOVERING.closed(-1, 0)})),
    (
        checkers.a_closed_ledger_holds_every_entry_that_a_reader_saw_confirmed,
        final(metadata={1: RECOVERING.closed(-1, 0)}),
    ),
    (checkers.every_acknowledged_entry_is_readable, final(read={(1, 1): b"two"})),
    (checkers.every_acknowledged_entry_is_readable, final(read={(1, 0): "NoSuchEntryError"})),
    (
        checkers.every_entry_of_a_closed_ledger_is_on_an_ack_quorum,
        final(replicas=replicas(1, a=Replica(b"two", 6, 0))),
    ),
    (
        checkers.replicas_do_not_diverge,
        final(replicas=replicas(1, a=Replica(b"two", 6, 0), b=Replica(b"2", 6, 0))),
    ),
    (
        checkers.replicas_do_not_diverge,
        final(replicas=replicas(1, a=Replica(b"two", 6, 0), b=Replica(b"two", 5, 0))),
    ),
    (
        checkers.undamaged_replicas_are_readable,
        final(replicas=replicas(1, a=Replica(b"two", 6, 0), b="CorruptEntryError")),
    ),
    (
        checkers.the_length_of_a_closed_ledger_is_that_of_its_entries,
        final(metadata={1: RECOVERING.closed(1, 7)}),
    ),
    (
        checkers.the_length_of_a_closed_ledger_is_that_of_its_entries,
        final(metadata={1: RECOVERING.closed(2, 6)}),
    ),
    (checkers.every_non_empty_ledger_is_in_its_log, final(chains={"log": (2,)})),
    (checkers.only_the_last_ledger_of_a_log_may_be_open, _two_ledgers(first_open=True)),
]


@pytest.mark.parametrize(
    ("check", "bad"), FINALS, ids=[f"{row[0].__name__}-{number}" for number, row in enumerate(FINALS)]
)
def test_a_checker_of_the_final_state_accepts_good_and_reports_bad(
    check: Callable[..., str | None], bad: FinalState
) -> None:
    assert check(final(), closed_history()) is None
    assert check(bad, closed_history()) is not None


def test_an_open_last_ledger_is_accepted() -> None:
    assert (
        checkers.only_the_last_ledger_of_a_log_may_be_open(_two_ledgers(first_open=False), history()) is None
    )


def test_two_ledgers_in_the_wrong_order_are_reported() -> None:
    past = closed_history()
    past.note(Submitted(9.0, "v", (2, 0), b"later"))
    later = RECOVERING.closed(0, 5)
    good = final(metadata={1: CLOSED, 2: later}, chains={"log": (1, 2)})
    bad = attrs.evolve(good, chains={"log": (2, 1)})
    assert checkers.a_log_keeps_the_order_of_its_entries(good, past) is None
    assert checkers.a_log_keeps_the_order_of_its_entries(bad, past) is not None


def test_a_damaged_bookie_may_have_lost_its_replica() -> None:
    state = final(replicas=replicas(1, a=Replica(b"two", 6, 0)), damaged=frozenset({B}))
    assert checkers.every_entry_of_a_closed_ledger_is_on_an_ack_quorum(state, closed_history()) is None


def test_every_checker_is_tested() -> None:
    tested = {row[0] for row in EVENTS} | {row[0] for row in FINALS}
    tested |= {
        checkers.closed_metadata_is_complete,
        checkers.no_process_ends_by_a_bug,
        checkers.a_log_keeps_the_order_of_its_entries,
    }
    used = {check for checks in EVENT_CHECKERS.values() for check in checks} | set(FINAL_CHECKERS)
    assert tested == used
