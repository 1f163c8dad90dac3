"""From facts to reasons, by calling the rules."""

# covers: dlog/explain/bookie_reasons.py
# covers: dlog/explain/cluster_reasons.py
# covers: dlog/explain/facts.py
# covers: dlog/explain/ledger_reasons.py
# covers: dlog/explain/log_reasons.py
# covers: dlog/explain/reasons.py

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

import attrs
import click
import pytest

from dlog.cli.main import program
from dlog.description import SegmentDescription
from dlog.explain.facts import (
    BookieFacts,
    ClusterFacts,
    CursorFacts,
    LedgerFacts,
    LockMember,
    LogFacts,
    Reason,
)
from dlog.explain.reasons import explain
from ledger.metadata import Ensemble, LedgerMetadata, LedgerState
from ledger.policy import LogMark
from ledger.replication_asked import AskedReplication
from namespace.dlsn import DLSN
from namespace.segments.segment import TruncationStatus

FOUR = frozenset({"b1:1", "b2:1", "b3:1", "b4:1"})
CLUSTER = ClusterFacts(writable=FOUR, with_cookie=FOUR, auditor="b1:1")
ONE_AWAY = attrs.evolve(CLUSTER, writable=FOUR - {"b1:1"})


def metadata(state: LedgerState = LedgerState.CLOSED, ack_quorum: int = 2) -> LedgerMetadata:
    return LedgerMetadata(
        ensemble_size=3,
        write_quorum=3,
        ack_quorum=ack_quorum,
        ensembles=(Ensemble(0, ("b1:1", "b2:1", "b3:1")),),
        state=state,
        last_entry_id=9 if state is LedgerState.CLOSED else -1,
        length_bytes=100 if state is LedgerState.CLOSED else 0,
    )


CLOSED = LedgerFacts(ledger_id=7, cluster=CLUSTER, metadata=metadata())
OPEN = LedgerFacts(
    ledger_id=7,
    cluster=CLUSTER,
    metadata=metadata(LedgerState.OPEN),
    lacs={"b1:1": 5, "b2:1": 6, "b3:1": 4},
)
SHORT = attrs.evolve(CLOSED, cluster=ONE_AWAY)
SEGMENT = SegmentDescription(
    segment_seqno=1,
    ledger_id=7,
    is_completed=False,
    first_txid=1,
    last_txid=None,
    record_count=None,
    last_entry_id=-1,
    last_slot_id=-1,
    start_sequence_id=None,
    completed_ms=None,
    truncation=TruncationStatus.ACTIVE,
)
WRITER = LockMember(owner="host/12", session_id=255, since_ms=0)
LOG = LogFacts(
    name="orders",
    cluster=CLUSTER,
    segments=(SEGMENT,),
    first_dlsn=DLSN(1, 0, 0),
    last_dlsn=DLSN(1, 6, 0),
    lock=(WRITER,),
    ensemble_size=3,
    bookies_min=2,
    ledgers=(OPEN,),
    now_ms=5_000,
)
BOOKIE = BookieFacts(bookie="b1:1", cluster=CLUSTER, total_bytes=1_000, free_bytes=900)


def faults(facts: LogFacts | LedgerFacts | BookieFacts) -> list[str]:
    return [each.what for each in explain(facts) if each.is_fault]


def evidence(facts: LogFacts | LedgerFacts | BookieFacts) -> str:
    return "\n".join(f"{each.what}: {each.evidence}" for each in explain(facts))


@pytest.mark.parametrize("facts", [CLOSED, OPEN, LOG, BOOKIE], ids=["closed", "open", "log", "bookie"])
def test_what_is_sound_has_reasons_and_no_fault(facts: LogFacts | LedgerFacts | BookieFacts) -> None:
    assert explain(facts)
    assert faults(facts) == []


def test_a_ledger_that_does_not_exist_is_said_to_be_gone() -> None:
    assert faults(attrs.evolve(CLOSED, metadata=None)) == ["ledger 7 does not exist"]


@pytest.mark.parametrize(
    ("cluster", "why", "next_command"),
    [
        ({"is_recovery_enabled": False}, "switched off", "dlog autorecovery enable"),
        ({"auditor": None}, "no process restores", "dlog autorecovery status"),
        ({"delay_s": 120}, "waits 120 s", "dlog autorecovery audit"),
        ({}, "has not marked", "dlog autorecovery audit"),
        ({"writable": FOUR - {"b1:1", "b4:1"}}, "no other bookie", "dlog bookies list --rw"),
    ],
)
def test_a_ledger_without_a_replica_says_why_it_is_not_restored(
    cluster: dict[str, Any], why: str, next_command: str
) -> None:
    found = explain(attrs.evolve(SHORT, cluster=attrs.evolve(ONE_AWAY, **cluster)))
    assert "a bookie is away: b1:1" in found[0].what
    assert [each.next_command for each in found if why in each.what] == [next_command]


def test_a_mark_says_for_whom_and_since_when_and_a_lock_says_that_it_is_restored() -> None:
    marked = attrs.evolve(SHORT, marked_missing=("b1:1",), marked_ms=1_000, now_ms=181_000)
    assert "no worker has it yet: it was marked 3 min ago for b1:1" in evidence(marked)
    assert faults(attrs.evolve(marked, is_being_restored=True))[1:] == [
        "a worker has taken the ledger: it restores replicas, or waits before its next attempt"
    ]


def test_a_worker_that_has_nowhere_to_copy_to_does_not_hide_it() -> None:
    cluster = attrs.evolve(ONE_AWAY, writable=frozenset({"b2:1", "b3:1"}))
    stuck = attrs.evolve(SHORT, cluster=cluster, marked_missing=("b1:1",), is_being_restored=True)
    assert "there is no other bookie to copy the entries to" in faults(stuck)


def test_entries_without_any_registered_bookie_are_the_first_reason() -> None:
    alone = attrs.evolve(CLUSTER, writable=frozenset({"b4:1"}))
    assert "cannot be read" in faults(attrs.evolve(CLOSED, cluster=alone))[0]
    striped = attrs.evolve(metadata(), write_quorum=2)
    two_away = attrs.evolve(CLUSTER, writable=FOUR - {"b2:1", "b3:1"})
    found = evidence(attrs.evolve(CLOSED, metadata=striped, cluster=two_away))
    assert "entries from 0 on with remainder 1 modulo 3 are on b2:1, b3:1 only" in found


def test_a_bookie_without_a_cookie_is_to_be_recovered() -> None:
    cluster = attrs.evolve(ONE_AWAY, with_cookie=FOUR - {"b1:1"})
    assert explain(attrs.evolve(CLOSED, cluster=cluster))[0].next_command == "dlog bookie recover b1:1"


def test_appends_wait_when_the_ack_quorum_cannot_be_reached_and_no_bookie_is_spare() -> None:
    lacs: dict[str, int | str] = {"b1:1": "connection refused", "b2:1": "connection refused", "b3:1": 4}
    cluster = attrs.evolve(CLUSTER, writable=frozenset({"b1:1", "b2:1", "b3:1"}))
    found = evidence(attrs.evolve(OPEN, cluster=cluster, lacs=lacs))
    assert "cannot replace b1:1, b2:1 in the ensemble, so its appends wait" in found
    assert "b1:1: connection refused; b2:1: connection refused" in found
    lacs["b2:1"] = 5
    assert "so its appends continue with fewer" in evidence(attrs.evolve(OPEN, cluster=cluster, lacs=lacs))
    # With another bookie the writer replaces the lost one.
    assert "cannot replace" not in evidence(attrs.evolve(OPEN, lacs=lacs))


def test_an_open_ledger_says_how_far_readers_see_on_each_bookie() -> None:
    assert "up to 6: last confirmed entry per bookie: b1:1: 5; b2:1: 6; b3:1: 4" in evidence(OPEN)
    silent: dict[str, int | str] = dict.fromkeys(("b1:1", "b2:1", "b3:1"), "no reply within 3 s")
    assert "readers do not see how far they may read" in faults(attrs.evolve(OPEN, lacs=silent))
    stopped = attrs.evolve(OPEN, metadata=metadata(LedgerState.IN_RECOVERY))
    assert explain(stopped)[-1].next_command == "dlog ledger read 7 --recover"


def test_a_waiting_writer_learns_who_holds_the_lock() -> None:
    waiting = attrs.evolve(LOG, lock=(WRITER, attrs.evolve(WRITER, owner="other/1")))
    assert "the writer host/12 holds the lock of the log, and 1 more wait for it" in faults(waiting)
    assert "5 s old with session 0xff" in evidence(waiting)


def test_an_append_waits_for_bookies_when_there_are_too_few_for_a_segment() -> None:
    found = evidence(attrs.evolve(LOG, ensemble_size=5, bookies_min=5, ledgers=()))
    assert "a new segment cannot be created" in found
    assert "it needs 5 writable bookies, there are 4" in found


def test_a_segment_may_begin_on_fewer_bookies_and_then_its_ledger_says_so() -> None:
    found = evidence(attrs.evolve(LOG, ensemble_size=5, ledgers=()))
    assert "a new segment begins on 4 of 5 bookies: no more are writable, and 2 are enough" in found
    began = attrs.evolve(metadata(), custom=AskedReplication(5, 4, 2).custom)
    found = evidence(attrs.evolve(LOG, ledgers=(attrs.evolve(CLOSED, metadata=began),)))
    assert "ledger 7 began on 3 bookies instead of 5" in found
    assert "each entry has 3 copies instead of 4" in found
    marked = attrs.evolve(began, custom={**began.custom, **LogMark("/shop", "orders").custom})
    for changed, command in (
        (began, "dlog ledger show 7"),
        (marked, "dlog log heal orders"),
        (attrs.evolve(metadata(LedgerState.OPEN), custom=marked.custom), "dlog ledger show 7"),
        (attrs.evolve(marked, custom={**began.custom, "dlog.log": b"x"}), "dlog ledger show 7"),
    ):
        (reason,) = (each for each in explain(attrs.evolve(CLOSED, metadata=changed)) if "began" in each.what)
        assert reason.next_command == command


def test_a_segment_in_progress_without_a_writer_is_to_be_recovered() -> None:
    assert [each.next_command for each in explain(attrs.evolve(LOG, lock=())) if each.is_fault] == [
        "dlog log recover orders"
    ]


def test_a_log_that_cannot_be_read_to_its_end_says_why() -> None:
    unread = attrs.evolve(LOG, last_dlsn=None, unread="ledger 7: 2 of 3 bookies did not reply")
    assert "the end of the log cannot be read now: ledger 7: 2 of 3 bookies did not reply" in evidence(unread)


def test_a_log_shows_the_faults_of_its_ledgers() -> None:
    assert "a bookie is away: b1:1" in faults(attrs.evolve(LOG, ledgers=(SHORT,)))


def test_denied_operations_a_seal_and_a_promotion_are_reasons() -> None:
    assert "access control entries deny write to everyone" in faults(attrs.evolve(LOG, denied=("write",)))
    assert "an append is refused: the log is sealed" in evidence(attrs.evolve(LOG, is_sealed=True))
    for facts in (LOG, attrs.evolve(LOG, segments=(), last_dlsn=None, ledgers=())):
        assert "waits" not in evidence(attrs.evolve(facts, is_sealed=True, lock=()))
    moved = explain(attrs.evolve(LOG, moved_to="distributedlog://zk1/shop"))
    assert [each.next_command for each in moved] == ["dlog log show orders --uri distributedlog://zk1/shop"]
    assert "no record yet" in evidence(attrs.evolve(LOG, segments=(), last_dlsn=None, ledgers=()))


def test_a_cursor_says_how_far_behind_it_is() -> None:
    def cursor(position: DLSN, lag: int | None) -> LogFacts:
        return attrs.evolve(LOG, cursors=(CursorFacts(name="c", position=position, lag_records=lag),))

    assert "cursor c is 1,200 records behind" in evidence(cursor(DLSN(1, 2, 0), 1_200))
    assert "cursor c has consumed everything" in evidence(cursor(DLSN(1, 6, 1), 0))
    assert "points before the first record that is kept" in evidence(cursor(DLSN(0, 2, 0), 3))
    assert faults(cursor(DLSN(1, 2, 0), None)) == ["the lag of cursor c cannot be counted now"]


def test_a_bookie_says_why_it_takes_no_entries() -> None:
    assert faults(attrs.evolve(BOOKIE, bookie="b9:1")) == ["b9:1 is no bookie of this cluster"]
    away = attrs.evolve(BOOKIE, cluster=ONE_AWAY, marked_ledgers=2)
    assert faults(away) == ["a bookie is away: b1:1", "2 ledgers miss a replica of this bookie"]
    full = attrs.evolve(CLUSTER, writable=FOUR - {"b1:1"}, readonly=frozenset({"b1:1"}))
    assert "is read-only" in faults(attrs.evolve(BOOKIE, cluster=full))[0]
    assert faults(attrs.evolve(BOOKIE, free_bytes=10)) == ["the disks of the bookie are nearly full"]
    assert faults(attrs.evolve(BOOKIE, silence="refused")) == ["the bookie does not reply"]


def all_reasons() -> Sequence[Reason]:
    changes: list[dict[str, Any]] = [
        {"is_recovery_enabled": False},
        {"auditor": None},
        {"writable": frozenset()},
        {"with_cookie": frozenset()},
    ]
    short = [attrs.evolve(SHORT, cluster=attrs.evolve(ONE_AWAY, **change)) for change in changes]
    cursor = CursorFacts(name="c", position=DLSN(0, 0, 0), lag_records=None)
    facts: list[LogFacts | LedgerFacts | BookieFacts] = [
        *short,
        SHORT,
        attrs.evolve(SHORT, marked_missing=("b1:1",)),
        attrs.evolve(SHORT, is_being_restored=True),
        attrs.evolve(CLOSED, metadata=None),
        attrs.evolve(OPEN, lacs={"b1:1": "silent"}, cluster=attrs.evolve(CLUSTER, writable=frozenset())),
        attrs.evolve(OPEN, metadata=metadata(LedgerState.IN_RECOVERY)),
        OPEN,
        attrs.evolve(LOG, cursors=(cursor,), is_sealed=True, denied=("write",), ensemble_size=9, unread="x"),
        attrs.evolve(LOG, lock=(), name="a b"),
        attrs.evolve(LOG, moved_to="distributedlog://zk1/shop"),
        attrs.evolve(BOOKIE, bookie="b9:1"),
        attrs.evolve(BOOKIE, marked_ledgers=1, silence="x", free_bytes=0),
        attrs.evolve(BOOKIE, cluster=attrs.evolve(CLUSTER, readonly=frozenset({"b1:1"}))),
    ]
    return [reason for each in facts for reason in explain(each)]


def test_every_next_command_is_one_of_the_program() -> None:
    for reason in all_reasons():
        words = shlex.split(reason.next_command)
        assert words[0] == "dlog"
        found: click.Command = program
        while isinstance(found, click.Group):
            below = found.get_command(click.Context(found), words.pop(1))
            assert below is not None, reason.next_command
            found = below
        found.make_context("dlog", words[1:])  # raises for an unknown option or a missing argument
