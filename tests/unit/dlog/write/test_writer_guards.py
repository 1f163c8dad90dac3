"""Conditions of the writer's machine that nothing else needs: what comes late, twice or at the wrong moment.

Each test fails if its condition is taken out.
"""

from __future__ import annotations

import pytest

from dlog.errors import LogLockLostError, RecordOutcome
from dlog.format.hash_chain import chain_start
from dlog.write.actions import END, WAIT, Begin, Complete, Roll
from dlog.write.batcher import Batch
from dlog.write.writer_state import Intake, Phase
from tests.unit.dlog.write.test_writer_machine import CLOSED, FAILED, FENCED, LOST, Writer


def rolled(writer: Writer) -> None:
    """Bring the first segment to its end: its records are durable and visible, and no segment is in use."""
    action = writer.machine.next_action()
    assert isinstance(action, Roll)
    assert writer.machine.roll(action.in_use)
    writer.machine.finish()


def test_a_ledger_that_is_not_in_use_any_more_confirms_and_fails_nothing() -> None:
    writer = Writer(segment_bytes_max=1)
    writer.take()
    first = writer.begin()
    first.confirm(0)
    rolled(writer)
    first.confirm(1)
    assert writer.machine.finish()
    second = writer.begin(2)
    writer.take(txid=2)
    told, wakes = list(writer.told), writer.wakes
    first.confirm(1)
    assert writer.wakes == wakes, "it was at its limit, but it is not the one to roll"
    first.confirm(1, FAILED)
    assert writer.state == (Intake.OPEN, Phase.RUNNING)
    assert writer.machine.failure_count == 0
    assert writer.told == told, "the late call of an old ledger changes nothing"
    assert not second.is_abandoned


def test_the_failure_of_another_segment_is_none_of_the_one_in_use() -> None:
    writer = Writer(segment_bytes_max=1)
    writer.take()
    first = writer.begin()
    before = writer.machine.in_use
    assert before is not None
    first.confirm(0)
    rolled(writer)
    first.confirm(1)
    assert writer.machine.finish()
    writer.begin(2)
    writer.machine.fail(before, FAILED)
    assert (writer.machine.phase, writer.machine.failure_count) == (Phase.RUNNING, 0)


def test_a_writer_that_has_stopped_follows_no_promotion() -> None:
    writer = Writer(can_follow=True)
    batch = writer.take()
    ledger = writer.begin()
    writer.machine.stop(LOST)
    writer.machine.overtaken(FENCED)
    assert writer.machine.next_action() is WAIT, "what is in flight gets its outcome from the ledger"
    ledger.confirm(0)
    assert writer.machine.next_action() is END
    assert batch.outcome is RecordOutcome.DURABLE


def test_only_the_segment_in_use_is_rolled() -> None:
    writer = Writer(segment_bytes_max=1)
    writer.take()
    first = writer.begin()
    first.confirm(0)
    before = writer.machine.in_use
    assert before is not None
    rolled(writer)
    first.confirm(1)
    assert writer.machine.finish()
    writer.begin(2)
    assert not writer.machine.roll(before)
    assert writer.machine.phase is Phase.RUNNING


def test_a_failed_segment_takes_the_last_id_of_the_log_not_back() -> None:
    writer = Writer(segment_bytes_max=1)
    writer.take(txid=9)
    first = writer.begin()
    first.confirm(0)
    rolled(writer)
    first.confirm(1)
    assert writer.machine.finish()
    second = writer.begin(2)
    writer.take(txid=9)
    second.confirm(-1, FAILED)
    writer.machine.next_action()
    writer.machine.settle(-1)
    assert writer.machine._last_txid == 9


def test_the_id_of_a_record_that_the_ledger_lacks_is_not_taken_as_written() -> None:
    writer = Writer()
    writer.take(txid=1)
    ledger = writer.begin()
    ledger.confirm(0)
    writer.take(txid=50)
    ledger.confirm(0, FAILED)
    writer.machine.next_action()
    writer.machine.settle(0)
    assert writer.machine._last_txid == 1
    assert writer.machine.next_action() == Begin(50)


def test_a_move_that_is_found_out_while_a_ledger_is_recovered_ends_nothing_early() -> None:
    writer = Writer(can_follow=True)
    writer.take()
    writer.machine.overtaken(FENCED)
    writer.machine.next_action()
    assert writer.state == (Intake.OPEN, Phase.MOVING)
    writer.machine.stop(LOST)
    assert writer.state == (Intake.STOPPED, Phase.DRAINING)
    writer.machine.moved()
    assert writer.state == (Intake.STOPPED, Phase.DRAINING), "only the end of the writer is left"


def test_the_first_reason_to_refuse_records_stays_when_the_writer_is_closed() -> None:
    writer = Writer()
    writer.machine.stop(LOST)
    writer.machine.close(CLOSED)
    assert writer.machine.refusal is LOST
    assert isinstance(writer.machine.stopped, LogLockLostError)


def test_a_segment_without_a_record_is_not_rolled_by_its_age() -> None:
    writer = Writer(segment_age_s_max=10.0)
    writer.begin()
    writer.now_s = 11.0
    assert writer.machine.next_action() is WAIT
    writer.take()
    assert isinstance(writer.machine.next_action(), Roll)


def test_a_segment_at_its_limit_is_not_rolled_while_the_writer_closes() -> None:
    writer = Writer(segment_bytes_max=1)
    writer.take()
    ledger = writer.begin()
    writer.machine.close(CLOSED)
    assert writer.machine.next_action() is WAIT, "the record is in flight"
    ledger.confirm(0)
    assert isinstance(writer.machine.next_action(), Complete)


def test_no_control_record_is_sent_if_something_was_sent_since() -> None:
    writer = Writer()
    writer.take()
    ledger = writer.begin()
    ledger.confirm(0)
    writer.take(txid=2)
    ledger.confirm(1)
    assert not writer.machine.send_if_last(1), "two entries were sent, and only one was seen"
    assert ledger.entries == 2
    assert writer.machine.send_if_last(2)
    assert ledger.entries == 3


@pytest.mark.parametrize("seen", [(1, 1), None])
def test_control_records_of_timers_are_sent_only_while_the_segment_runs(seen: tuple[int, int] | None) -> None:
    writer = Writer(segment_bytes_max=1)
    writer.take()
    ledger = writer.begin()
    ledger.confirm(0)
    action = writer.machine.next_action()
    assert isinstance(action, Roll)
    assert writer.machine.roll(action.in_use)
    assert writer.machine.send_if_last(1)
    assert writer.machine.send_if_silent(seen, b"alive") == (1, 1)
    assert ledger.entries == 1, "the roll sends its own, when nothing is in flight"


def test_a_writer_is_not_silent_while_an_entry_is_in_flight() -> None:
    writer = Writer()
    writer.take()
    ledger = writer.begin()
    assert writer.machine.send_if_silent((1, 1), b"alive") == (1, 1)
    assert ledger.entries == 1
    ledger.confirm(0)
    assert writer.machine.send_if_silent((1, 1), b"alive") is None
    assert ledger.entries == 2


def test_the_hash_chain_continues_in_the_next_segment() -> None:
    writer = Writer(segment_bytes_max=1, hash_chain=True)
    writer.machine._chain = chain_start("log")
    writer.take()
    first = writer.begin()
    assert writer.machine.in_use is not None
    begun_with = writer.machine.in_use.writer.durable_chain
    first.confirm(0)
    rolled(writer)
    first.confirm(1)
    assert writer.machine.finish()
    ended_with = writer.machine.old[0].writer.durable_chain
    assert ended_with != begun_with
    writer.begin(2)
    assert writer.machine.in_use is not None
    assert writer.machine.in_use.writer.durable_chain == ended_with


@pytest.mark.parametrize("is_moved", [False, True])
def test_a_segment_that_is_completed_or_handed_over_is_over(is_moved: bool) -> None:
    writer = Writer(segment_bytes_max=1, can_follow=True)
    batch = writer.take()
    first = writer.begin()
    first.confirm(0)
    rolled(writer)
    first.confirm(1)
    assert writer.machine.finish()
    ended = writer.machine.moved()[0] if is_moved else writer.machine.completed()
    assert ended.writer.is_over
    assert batch.outcome is RecordOutcome.DURABLE


def test_the_shell_is_asked_once_until_it_looks_for_records_that_stay_invisible() -> None:
    writer = Writer()
    writer.take()
    ledger = writer.begin()
    for entry_id in range(3):
        ledger.confirm(entry_id)
        writer.take(txid=2 + entry_id)
    assert writer.told == ["visible"]
    writer.machine.wants_visible = False
    ledger.confirm(3)
    assert writer.told == ["visible", "visible"]


def test_a_batch_that_waits_counts_in_bytes_also_without_a_record() -> None:
    """So no batch is forgotten where the machine looks at bytes."""
    writer = Writer()
    end = writer.machine.batcher.end_stream()
    assert writer.machine.batcher
    writer.machine.batcher.take(idle=False)
    assert not writer.machine.batcher
    assert isinstance(end, Batch)
