"""Adds of one ledger take turns by sink; what is owed is counted, and noticed when it stays out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ledger.add_lanes import SILENT_TICKS, AddLanes
from ledger.errors import WireError
from ledger.outbox import Outbox
from ledger.wire.codes import Code


class Sink:
    def adds_answered(self, bookie: str, code: Code, entry_ids: Sequence[int]) -> None:
        raise AssertionError("a machine tells nobody")

    def bookie_lost(self, bookie: str, cause: Exception) -> None:
        raise AssertionError("a machine tells nobody")


def made() -> tuple[AddLanes, Outbox]:
    outbox = Outbox()
    return AddLanes(outbox), outbox


def test_the_adds_of_a_second_sink_wait_until_the_first_has_all_its_answers() -> None:
    lanes, outbox = made()
    first, second = Sink(), Sink()
    lanes.post(1, [b"a0", b"a1"], [0, 1], first)
    lanes.post(1, [b"b0"], [0], second)
    lanes.post(1, [b"a2"], [2], first)  # behind the second's turn, or it would never come
    assert outbox.take() == [b"a0a1"]
    assert lanes.take_answers(1, Code.OK, [0]).lane.sink is first
    assert outbox.take() == []
    assert lanes.take_answers(1, Code.OK, [1]).lane.sink is first
    assert outbox.take() == [b"b0"]
    assert lanes.take_answers(1, Code.FENCED, [0]).lane.sink is second
    assert outbox.take() == [b"a2"]
    assert lanes.take_answers(1, Code.OK, [2]).lane.sink is first
    assert not lanes


def test_another_ledger_waits_for_nobody() -> None:
    lanes, outbox = made()
    lanes.post(1, [b"a"], [0], Sink())
    lanes.post(2, [b"b"], [0], Sink())
    assert outbox.take() == [b"ab"]


def test_a_forgotten_sink_s_turn_lasts_until_its_answers_are_in() -> None:
    lanes, outbox = made()
    first, second = Sink(), Sink()
    lanes.post(1, [b"a"], [0], first)
    lanes.forget(1, lambda sink: sink is first)
    lanes.post(1, [b"b"], [0], second)
    assert outbox.take() == [b"a"]
    assert lanes.take_answers(1, Code.FENCED, [0]).lane.sink is None
    assert outbox.take() == [b"b"]
    assert [lane.sink for lane in lanes.lose()] == [second]


def test_adds_that_wait_are_forgotten_unsent() -> None:
    lanes, outbox = made()
    lanes.post(1, [b"a"], [0], Sink())
    lanes.post(1, [b"b"], [0], waiting := Sink())
    lanes.forget(1, lambda sink: sink is waiting)
    lanes.take_answers(1, Code.OK, [0])
    assert outbox.take() == [b"a"]
    assert not lanes


def test_a_sink_forgotten_while_answers_are_told_gets_none_of_the_rest() -> None:
    lanes, _ = made()
    lanes.post(1, [b"a"], [0], Sink())
    answer = lanes.take_answers(1, Code.OK, [0])
    lanes.telling([answer.lane])
    lanes.forget(1, lambda _sink: True)
    assert answer.lane.sink is None


def test_more_answers_than_adds_are_an_error_and_take_nothing() -> None:
    lanes, _ = made()
    lanes.post(1, [b"a"], [0], Sink())
    for ledger_id, entry_ids in [(1, [0, 0]), (2, [0])]:
        with pytest.raises(WireError, match=f"ledger {ledger_id}"):
            lanes.take_answers(ledger_id, Code.OK, entry_ids)
    assert lanes.unanswered == 1


def test_a_loss_names_each_sink_once_with_each_of_its_ledgers() -> None:
    lanes, _ = made()
    first, second = Sink(), Sink()
    for sink in (first, second, first):
        lanes.post(1, [b"a"], [0], sink)
    lanes.post(2, [b"a"], [0], first)
    lost = lanes.lose()
    assert [(lane.ledger_id, lane.sink) for lane in lost] == [(1, first), (1, second), (2, first)]
    assert not lanes


def test_answers_that_stay_out_are_noticed_after_so_many_ticks_and_not_before() -> None:
    lanes, _ = made()
    lanes.post(1, [b"abc"], [0, 1, 2], Sink())
    assert lanes.tick() is None  # from now on the three are watched
    lanes.take_answers(1, Code.OK, [1])
    assert [lanes.tick() for _ in range(SILENT_TICKS - 1)] == [None] * (SILENT_TICKS - 1)
    assert lanes.tick() == "2 adds of ledger 1 are unanswered"


def test_one_ledger_s_answers_do_not_hide_the_silence_about_another() -> None:
    lanes, _ = made()
    lanes.post(1, [b"a"], [0], Sink())
    overdue = None
    for entry_id in range(2 * SILENT_TICKS):
        lanes.post(2, [b"b"], [entry_id], Sink())
        lanes.take_answers(2, Code.OK, [entry_id])
        overdue = overdue or lanes.tick()
    assert overdue == "1 adds of ledger 1 are unanswered"


def test_a_bookie_that_is_always_behind_but_never_for_long_is_not_silent() -> None:
    lanes, _ = made()
    sink = Sink()
    lanes.post(1, [b"ab"], [0, 1], sink)
    for entry_id in range(10 * SILENT_TICKS):
        lanes.post(1, [b"c"], [entry_id + 2], sink)
        assert lanes.tick() is None
        lanes.take_answers(1, Code.OK, [entry_id])
