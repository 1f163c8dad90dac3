"""The machine of a log's writer, tested by calling it: actions in each state, and the rule of each event.

``tests/property/test_dlog_writer_machine.py`` drives it in any order.
"""

# covers: dlog/write/actions.py

from __future__ import annotations

import ast
import inspect
from types import SimpleNamespace
from typing import Any

import pytest

from dlog.config import WriterConfig
from dlog.errors import LogFencedError, LogLockLostError, LogWriteError, RecordOutcome, WriterClosedError
from dlog.format.compression import Compression
from dlog.write import actions, writer_machine, writer_state
from dlog.write.actions import END, WAIT, Begin, Complete, Follow, Recover, Roll, Stop
from dlog.write.batcher import Batch
from dlog.write.writer_machine import WriterMachine
from dlog.write.writer_state import Intake, Phase
from ledger.errors import LedgerClosedError, LedgerWriteError
from namespace.segments.segment import LogSegment

CLOSED, LOST = WriterClosedError("log"), LogLockLostError("log", "in this test")
FENCED, FAILED = LogFencedError("log", "in this test"), LedgerWriteError(1, "no ack quorum")


class Ledger:
    """Stands in for ``ledger.handle.WriteHandle``; the test acknowledges."""

    def __init__(self, asked: int | None = None) -> None:
        custom = {} if asked is None else {"asked": b"%d" % asked}
        self.metadata, self.bytes_in_flight = SimpleNamespace(custom=custom), 0
        self.entries, self.sent, self.is_abandoned, self.is_full = 0, 0, False, False
        self._callback: Any = None

    def submit(self, payload: bytes, *, hold: bool = False) -> int:
        if self.is_full:
            raise FAILED
        self.entries += 1
        return self.entries - 1

    def on_confirmed(self, callback: Any) -> None:
        self._callback = callback

    def confirm(self, lac: int, error: BaseException | None = None) -> None:
        self._callback(lac, error)

    def send_now(self) -> None:
        self.sent = self.entries

    def abandon(self) -> None:
        self.is_abandoned = True

    def send_soon(self) -> None: ...

    def hint_now(self) -> None: ...


class Writer:
    """A machine, and what it tells its shell."""

    def __init__(self, *, can_follow: bool = False, **config: Any) -> None:
        self.now_s, self.wakes, self.told = 0.0, 0, list[str]()
        self.machine = WriterMachine(
            WriterConfig(**config), self, clock=lambda: self.now_s, can_follow=can_follow
        )

    def wake(self) -> None:
        self.wakes += 1

    def want_visible(self) -> None:
        self.told.append("visible")

    def hold(self) -> None:
        self.told.append("hold")

    def free_capacity(self) -> None:
        self.told.append("capacity")

    def take(self, payload: bytes = b"record", txid: int = 1, *, waits: bool = False) -> Batch:
        batch, _ = self.machine.batcher.add(payload, txid)
        self.machine.batcher.cut()
        self.machine.pump(waits=waits)
        return batch

    def begin(self, number: int = 1) -> Ledger:
        ledger: Any = Ledger()
        segment = LogSegment(segment_seqno=number, ledger_id=number, first_txid=1)
        self.machine.begin(ledger, segment, Compression.NONE)
        return ledger  # type: ignore[no-any-return]

    @property
    def state(self) -> tuple[Intake, Phase]:
        return self.machine.intake, self.machine.phase


def test_the_machine_and_its_states_import_nothing_that_waits() -> None:
    for module in (actions, writer_machine, writer_state):
        nodes = list(ast.walk(ast.parse(inspect.getsource(module))))
        names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        assert not names & {"trio", "time", "os", "logging"}
        assert not [node for node in nodes if isinstance(node, ast.AsyncFunctionDef | ast.Await)]


def test_the_first_record_asks_for_a_segment_and_goes_into_it() -> None:
    writer = Writer()
    assert writer.machine.next_action() is WAIT
    batch = writer.take(txid=7)
    assert writer.wakes == 1
    assert writer.machine.next_action() == Begin(7)
    ledger = writer.begin()
    assert writer.state == (Intake.OPEN, Phase.RUNNING)
    assert ledger.entries == 1
    ledger.confirm(0)
    assert batch.outcome is RecordOutcome.DURABLE
    assert writer.told == ["visible"], "readers do not see the last record yet"


def test_the_age_of_the_oldest_record_counts_from_its_taking_until_its_outcome() -> None:
    writer = Writer()

    def age() -> float:
        return writer.machine.oldest_pending_s

    assert age() == 0.0
    writer.take()
    writer.now_s = 3.0
    assert age() == 3.0, "it waits for a segment"
    ledger = writer.begin()
    writer.take()
    writer.now_s = 7.0
    assert age() == 7.0, "no bookie has acknowledged it"
    ledger.confirm(0)
    assert age() == 4.0, "the second one is the oldest now"
    ledger.confirm(0, FAILED)
    writer.machine.settle(0)
    writer.now_s = 9.0
    assert age() == 6.0, "it waits for the next segment, and is as old as before"
    writer.machine.batcher.add_many([b"x"] * 3, [1] * 3)
    assert age() == 6.0
    writer.machine.stop(LogWriteError("log", "for the test"))
    assert age() == 0.0


@pytest.mark.parametrize("add", ["add", "add_many", "add_together", "add_mixed", "end_stream", "large"])
def test_the_age_is_known_however_a_record_was_added(add: str) -> None:
    writer = Writer()
    batcher = writer.machine.batcher
    match add:
        case "add":
            batcher.add(b"x", 1)
        case "large":
            batcher.add(b"x" * 2_000_000, 1)
        case "end_stream":
            batcher.end_stream()
        case _:
            getattr(batcher, add)([b"x"], [1])
    writer.now_s = 2.0
    assert writer.machine.oldest_pending_s == 2.0


def test_a_caller_that_waits_has_the_ledger_send_at_once_what_it_holds() -> None:
    writer = Writer()
    writer.take()
    ledger = writer.begin()
    writer.take()
    writer.take()
    assert (ledger.entries, ledger.sent) == (3, 1)
    writer.take(waits=True)
    assert (ledger.entries, ledger.sent) == (4, 4)


def test_a_segment_at_its_limit_is_rolled_only_when_its_records_are_durable_and_visible() -> None:
    writer = Writer(segment_bytes_max=100)
    writer.take(bytes(100))
    first = writer.begin()
    first.confirm(0)
    action = writer.machine.next_action()
    assert isinstance(action, Roll)
    during = writer.take()
    assert first.entries == 2, "records are sent until the next ledger is there"
    assert writer.machine.roll(action.in_use)
    later = writer.take()
    assert first.entries == 2
    assert not writer.machine.finish()
    first.confirm(1)
    assert not writer.machine.finish(), "a control record makes the last record visible"
    assert first.entries == 3
    first.confirm(2)
    assert writer.machine.finish()
    second = writer.begin(2)
    assert (during.segment_seqno, later.segment_seqno, second.entries) == (1, 2, 1)
    assert writer.machine.next_action() == Complete(action.in_use)
    assert writer.machine.completed() is action.in_use
    assert writer.machine.next_action() is WAIT


def test_a_roll_waits_after_a_failure_and_is_none_without_a_record() -> None:
    writer = Writer(segment_age_s_max=10.0)
    writer.take()
    writer.begin().confirm(0)
    assert writer.machine.next_action() is WAIT
    writer.now_s = 10.0
    assert isinstance(writer.machine.next_action(), Roll)
    writer.machine.roll_later(5.0)
    assert writer.machine.next_action() is WAIT
    writer.now_s = 15.0
    assert isinstance(writer.machine.next_action(), Roll)
    empty = Writer(segment_age_s_max=10.0)
    empty.begin()
    empty.now_s = 99.0
    assert empty.machine.next_action() is WAIT


def test_a_segment_on_too_few_bookies_is_rolled_when_the_others_are_there() -> None:
    writer = Writer()
    writer.take()
    writer.begin().confirm(0)
    writer.machine.full_ensemble_is_there()
    assert writer.wakes == 2
    assert isinstance(writer.machine.next_action(), Roll)
    assert not writer.machine.roll_is_due(), "only for the bookies: without them it is not rolled"
    writer.machine.roll_later(0.0)
    assert writer.machine.next_action() is WAIT


def test_records_of_a_failed_ledger_wait_for_its_end_and_those_it_lacks_go_to_the_next() -> None:
    writer = Writer()
    batches = [writer.take(txid=number) for number in range(1, 4)]
    first = writer.begin()
    first.confirm(0, FAILED)
    assert writer.state == (Intake.OPEN, Phase.RECOVERING)
    writer.take(txid=4)
    assert first.entries == 3
    first.confirm(2, LedgerClosedError(1))  # only the first failure counts
    action = writer.machine.next_action()
    assert isinstance(action, Recover)
    assert action.cause is FAILED
    writer.machine.settle(2)
    assert [each.outcome.value for each in batches] == ["durable"] * 3
    assert writer.machine.next_action() == Begin(4)
    assert writer.begin(2).entries == 1


def test_records_that_a_failed_ledger_lacks_keep_their_order_before_later_ones() -> None:
    writer = Writer()
    batches = [writer.take(txid=number) for number in range(1, 4)]
    writer.begin().confirm(-1, FAILED)
    batches.append(writer.take(txid=4))
    writer.machine.settle(0)
    writer.begin(2)
    places = [(each.segment_seqno, each.entry_id) for each in batches]
    assert places == [(1, 0), (2, 0), (2, 1), (2, 2)]


@pytest.mark.parametrize("event", ["fails", "stops"])
def test_a_segment_that_ends_while_the_next_ledger_is_made_is_not_rolled(event: str) -> None:
    writer = Writer(segment_bytes_max=1)
    writer.take()
    ledger = writer.begin()
    action = writer.machine.next_action()
    assert isinstance(action, Roll)
    if event == "fails":
        ledger.confirm(-1, FAILED)
    else:
        writer.machine.stop(LOST)
    before = writer.state
    assert not writer.machine.roll(action.in_use)
    assert writer.state == before


def test_an_entry_that_the_ledger_refuses_is_kept_for_the_next_one() -> None:
    writer = Writer()
    ledger = writer.begin()
    ledger.is_full = True
    writer.take()
    assert writer.state == (Intake.OPEN, Phase.RECOVERING)
    writer.machine.settle(-1)
    assert writer.begin(2).entries == 1


def test_segments_that_end_without_an_entry_for_the_retry_timeout_are_too_many() -> None:
    writer = Writer(retry_timeout_s=30.0)
    assert not writer.machine.is_barren_for_too_long(-1)
    writer.now_s = 29.0
    assert not writer.machine.is_barren_for_too_long(-1)
    writer.now_s = 30.0
    assert writer.machine.is_barren_for_too_long(-1)
    assert not writer.machine.is_barren_for_too_long(0)
    assert not writer.machine.is_barren_for_too_long(-1), "counted from now"


def test_a_writer_that_stops_sends_nothing_more_and_waits_for_what_is_in_flight() -> None:
    writer = Writer(bytes_in_flight_max=1)
    sent = writer.take()
    ledger = writer.begin()
    never_sent = writer.take()
    before = writer.wakes
    writer.machine.stop(LOST)
    assert writer.wakes == before + 1, "the shell may have been waiting for a reason to act"
    writer.machine.stop(LogWriteError("log", "a later error"))
    assert writer.state == (Intake.STOPPED, Phase.DRAINING)
    assert writer.machine.stopped is LOST
    assert never_sent.outcome is RecordOutcome.NOT_WRITTEN
    assert not sent.is_settled
    assert writer.machine.next_action() is WAIT
    ledger.confirm(0)
    assert sent.outcome is RecordOutcome.DURABLE
    assert writer.machine.next_action() is END
    assert ledger.is_abandoned


def test_records_that_a_recovery_does_not_find_fail_if_the_writer_has_stopped() -> None:
    writer = Writer()
    found, lost = writer.take(b"1", 1), writer.take(b"2", 2)
    writer.begin().confirm(-1, FAILED)
    writer.machine.stop(LOST)
    assert isinstance(writer.machine.next_action(), Recover)
    writer.machine.settle(0)
    assert (found.outcome, lost.outcome) == (RecordOutcome.DURABLE, RecordOutcome.NOT_WRITTEN)
    assert writer.machine.failed == [lost]
    assert writer.machine.next_action() is END


def test_records_in_flight_of_a_writer_that_gives_up_have_an_unknown_outcome() -> None:
    writer = Writer(bytes_in_flight_max=1)
    sent = writer.take()
    ledger = writer.begin()
    never_sent = writer.take()
    writer.machine.give_up(LogWriteError("log", "in this test"))
    assert (sent.outcome, never_sent.outcome) == (RecordOutcome.UNKNOWN, RecordOutcome.NOT_WRITTEN)
    assert ledger.is_abandoned
    assert writer.machine.next_action() is END


@pytest.mark.parametrize("is_durable", [False, True])
def test_a_writer_that_closes_writes_what_it_took_completes_its_segment_and_ends(is_durable: bool) -> None:
    writer = Writer()
    writer.take()
    ledger = writer.begin()
    if is_durable:
        ledger.confirm(0)
    writer.machine.close(CLOSED)
    assert writer.machine.refusal is CLOSED
    if not is_durable:
        assert writer.machine.next_action() is WAIT
        ledger.confirm(0)
    assert isinstance(writer.machine.next_action(), Complete)
    writer.machine.completed()
    assert writer.machine.next_action() is END
    assert writer.state == (Intake.CLOSING, Phase.ENDED)
    assert writer.machine.stopped is None


def test_the_end_of_the_stream_is_the_last_entry() -> None:
    writer = Writer()
    ledger = writer.begin()
    record = writer.take()
    end = writer.machine.seal(WriterClosedError("log", "it is sealed", "write to another log"))
    assert ledger.entries == 2
    ledger.confirm(1)
    assert (record.entry_id, end.entry_id, end.outcome) == (0, 1, RecordOutcome.DURABLE)


def test_a_log_that_another_program_has_changed_is_followed_or_the_writer_stops() -> None:
    writer = Writer(can_follow=True)
    in_flight = writer.take()
    ledger = writer.begin()
    writer.machine.overtaken(FENCED)
    assert writer.machine.next_action() == Follow(FENCED)
    writer.take(b"later", 2)
    assert ledger.entries == 1, "records gather until the log is found"
    assert writer.machine.moved() == []
    writer.machine.settle(-1)
    assert in_flight.outcome is RecordOutcome.PENDING
    assert writer.machine.next_action() == Begin(1)
    assert writer.begin(2).entries == 2
    alone = Writer()
    alone.machine.overtaken(FENCED)
    assert alone.machine.next_action() == Stop(FENCED)
    closed = Writer(can_follow=True)
    closed.machine.close(CLOSED)
    closed.machine.overtaken(FENCED)
    assert closed.machine.next_action() == Stop(FENCED), "nothing is left to write elsewhere"


def test_a_writer_that_stops_while_it_follows_fails_what_its_ledger_lacks() -> None:
    writer = Writer(can_follow=True)
    batch = writer.take()
    writer.begin()
    writer.machine.overtaken(FENCED)
    writer.machine.next_action()
    writer.machine.moved()
    writer.machine.stop(LOST)
    writer.machine.settle(-1)
    assert batch.outcome is RecordOutcome.NOT_WRITTEN
    assert writer.machine.next_action() is END


def test_a_forked_child_is_refused_and_settles_nothing() -> None:
    writer = Writer()
    batch = writer.take()
    writer.machine.refuse(CLOSED)
    assert writer.machine.refusal is CLOSED
    assert not batch.is_settled
