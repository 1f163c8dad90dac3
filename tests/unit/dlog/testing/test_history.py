"""The judgement of made-up histories: each rule finds the history that breaks it, and no other."""

from __future__ import annotations

import pytest

from dlog import DLSN, Record, RecordOutcome
from dlog.testing.history import History, HistoryViolationError, LogHistory, Rule


def record(entry_id: int, payload: bytes, txid: int = 1) -> Record:
    return Record(DLSN(1, entry_id, 0), txid, payload, entry_id)


def acknowledged(log: LogHistory, *payloads: bytes) -> list[Record]:
    """Records that a writer submitted, one after the other, and that were acknowledged."""
    records = [record(entry_id, payload) for entry_id, payload in enumerate(payloads)]
    for each in records:
        log.settled(log.submitted(each.payload, each.txid), RecordOutcome.DURABLE, each.dlsn)
    return records


def rules(history: History) -> list[Rule]:
    return [problem.rule for problem in history.problems]


def test_a_correct_history_has_no_problem() -> None:
    history = History()
    log = history.log("orders")
    records = acknowledged(log, b"a", b"b", b"c")
    unknown = log.submitted(b"d", 1)
    log.settled(unknown, RecordOutcome.UNKNOWN)
    log.settled(log.submitted(b"e", 1), RecordOutcome.NOT_WRITTEN)
    reader = log.open_reader("r", records[1].dlsn)
    for each in records[1:]:
        reader.returned(each)
    log.judge([*records, record(3, b"d")])
    history.check()
    log.judge([records[2], record(3, b"d")], first_left=records[2].dlsn)  # the other records are truncated
    history.check()


def test_an_acknowledged_record_that_is_not_in_the_log_is_lost() -> None:
    history = History()
    log = history.log("orders")
    records = acknowledged(log, b"a", b"b")
    log.judge(records[:1])
    assert rules(history) == [Rule.NO_LOSS]
    with pytest.raises(HistoryViolationError, match=r"'orders': 1:1:0 are acknowledged"):
        history.check()


def test_a_record_that_a_reader_saw_and_the_log_lacks_is_a_problem() -> None:
    history = History()
    log = history.log("orders")
    log.settled(log.submitted(b"a", 1), RecordOutcome.UNKNOWN)
    log.open_reader("r").returned(record(0, b"a"))
    log.judge([])
    assert rules(history) == [Rule.ONE_SEQUENCE]


def test_a_record_may_not_be_stored_more_often_than_it_was_submitted() -> None:
    history = History()
    log = history.log("orders")
    records = acknowledged(log, b"a")
    log.judge([*records, record(1, b"a")])
    assert rules(history) == [Rule.NO_REPEAT]


def test_a_record_that_nobody_submitted_is_a_problem() -> None:
    history = History()
    history.log("orders").judge([record(0, b"x")])
    assert rules(history) == [Rule.NO_REPEAT]


def test_a_record_reported_as_not_written_may_not_be_in_the_log() -> None:
    history = History()
    log = history.log("orders")
    log.settled(log.submitted(b"a", 1), RecordOutcome.NOT_WRITTEN)
    log.judge([record(0, b"a")])
    assert rules(history) == [Rule.NOT_WRITTEN]


def test_a_record_to_be_stored_once_may_have_several_attempts_and_one_copy() -> None:
    history = History()
    log = history.log("orders")
    for _ in range(2):
        log.settled(log.submitted(b"a", 1, is_once=True), RecordOutcome.UNKNOWN)
    log.judge([record(0, b"a")])
    assert history.problems == []
    log.judge([record(0, b"a"), record(1, b"a")])
    assert rules(history) == [Rule.STORED_ONCE]


def test_an_atomic_batch_is_stored_whole_or_not_at_all() -> None:
    history = History()
    log = history.log("orders")
    group = object()
    for payload in (b"a", b"b"):
        log.settled(log.submitted(payload, 1, group=group), RecordOutcome.UNKNOWN)
    (first,) = acknowledged(log, b"before")
    log.judge([first])
    log.judge([first, record(1, b"a"), record(2, b"b")])
    assert history.problems == []
    other = History()
    log = other.log("orders")
    for payload in (b"a", b"b"):
        log.settled(log.submitted(payload, 1, group=group), RecordOutcome.UNKNOWN)
    log.judge([acknowledged(log, b"before")[0], record(1, b"a")])
    assert rules(other) == [Rule.ATOMIC]


def test_positions_strictly_increase_for_readers_and_in_the_log() -> None:
    history = History()
    log = history.log("orders")
    records = acknowledged(log, b"a", b"b")
    reader = log.open_reader("r")
    for each in reversed(records):
        reader.returned(each)
    assert rules(history) == [Rule.INCREASING]
    log.judge(list(reversed(records)))
    assert rules(history)[1] is Rule.INCREASING


def test_a_record_comes_after_those_acknowledged_before_its_submission() -> None:
    history = History()
    log = history.log("orders")
    late = log.submitted(b"early", 1)
    log.settled(log.submitted(b"a", 1), RecordOutcome.DURABLE, DLSN(1, 5, 0))
    log.settled(late, RecordOutcome.DURABLE, DLSN(1, 4, 0))
    assert history.problems == [], "both were in flight at the same time"
    log.settled(log.submitted(b"b", 1), RecordOutcome.DURABLE, DLSN(1, 3, 0))
    assert rules(history) == [Rule.ORDER]


def test_one_position_holds_one_record_for_everybody() -> None:
    history = History()
    log = history.log("orders")
    acknowledged(log, b"a", b"b")
    log.open_reader("r").returned(record(1, b"other"))
    assert rules(history) == [Rule.ONE_SEQUENCE]
    log.settled(log.submitted(b"c", 1), RecordOutcome.DURABLE, DLSN(1, 1, 0))
    assert Rule.ONE_SEQUENCE in rules(history)[1:]


def test_a_reader_leaves_out_no_record_from_its_start_to_its_last() -> None:
    history = History()
    log = history.log("orders")
    records = acknowledged(log, b"a", b"b", b"c", b"d")
    reader = log.open_reader("r")
    reader.returned(records[1])
    reader.returned(records[3])
    log.judge(records)
    assert rules(history) == [Rule.NO_GAP]
    log.open_reader("from a", records[0].dlsn).returned(records[1])
    log.judge(None)
    assert rules(history)[2:] == [Rule.NO_GAP]


def test_a_log_created_again_has_a_history_of_its_own() -> None:
    history = History()
    acknowledged(history.log("orders"), b"a", b"b")
    history.deleted("orders")
    again = history.log("orders")
    assert again is history.log("orders")
    again.judge(acknowledged(again, b"c"))
    history.check()


def test_a_durable_record_without_a_position_is_a_mistake_of_the_test() -> None:
    log = History().log("orders")
    with pytest.raises(ValueError, match="has a position"):
        log.settled(log.submitted(b"a", 1), RecordOutcome.DURABLE)
