"""The machine of a log's writer, driven in any order, beside a shell that is as simple as can be.

The ledgers of this test are lists. They say at every moment what the log holds, so each outcome can be
compared with it.
"""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dlog.config import WriterConfig
from dlog.errors import LogFencedError, LogLockLostError, LogWriteError, RecordOutcome, WriterClosedError
from dlog.format.compression import Compression
from dlog.write.actions import WAIT, Action, Begin, Complete, End, Follow, Recover, Roll, Stop
from dlog.write.batcher import Batch
from dlog.write.writer_machine import WriterMachine
from dlog.write.writer_state import LEGAL, Intake, Phase
from ledger.errors import LedgerError, LedgerWriteError
from namespace.segments.segment import LogSegment
from tests.effort import examples

CONFIG = WriterConfig(segment_bytes_max=150, entry_bytes_target=50, bytes_in_flight_max=4500, linger_ms=10)

LONG_ENOUGH = 12  # records; what ends a history comes later


class Ledger:
    """A ledger as a list of entries; each is the numbers of its records."""

    bytes_in_flight = 0
    metadata = SimpleNamespace(custom={})

    def __init__(self, machine: WriterMachine) -> None:
        self.entries: list[list[int]] = []
        self.carried: list[int] = []  # the LAC in each entry
        self.lac, self.end = -1, -1
        self.is_settled = self.is_abandoned = False
        self.error: LedgerError | None = None
        self._machine = machine
        self._callback: Any = None

    @property
    def held(self) -> list[int]:
        """What readers find in the end: up to the end that was decided, or all that was sent."""
        entries = self.entries[: self.end + 1] if self.is_settled else self.entries
        return [number for entry in entries for number in entry]

    def submit(self, payload: bytes, *, hold: bool = False) -> int:
        assert not self.is_abandoned
        if self.error is not None:
            raise self.error
        numbers = [int(number) for number in re.findall(rb"<(\d+)>", payload)]
        assert self._machine.phase is Phase.RUNNING or (self._machine.phase is Phase.ROLLING and not numbers)
        self.entries.append(numbers)
        self.carried.append(self.lac)
        return len(self.entries) - 1

    def on_confirmed(self, callback: Any) -> None:
        self._callback = callback

    def confirm(self, count: int) -> None:
        self.lac = min(self.lac + count, len(self.entries) - 1)
        self._callback(self.lac, None)

    def fail(self, error: LedgerError) -> None:
        self.error = error
        self._callback(self.lac, error)

    def abandon(self) -> None:
        self.is_abandoned = True

    def send_now(self) -> None: ...

    send_soon = hint_now = send_now


class Writing(RuleBasedStateMachine):
    """A machine, its ledgers, and the shell, which is the action under way."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.machine = WriterMachine(CONFIG, self, clock=lambda: self.now_s, can_follow=True)
        self.ledgers: list[Ledger] = []
        self.batches: dict[int, tuple[Batch, int]] = {}  # with slots, by the record's number
        self.action: Action = WAIT
        self.is_awake, self.is_prepared, self.holds = True, False, False

    # What the machine tells.

    def wake(self) -> None:
        self.is_awake = True

    def hold(self) -> None:
        self.holds = True

    def want_visible(self) -> None: ...

    def free_capacity(self) -> None: ...

    # Callers and the world.

    @rule(count=st.integers(1, 4), waits=st.booleans())
    def take(self, count: int, waits: bool) -> None:
        if self.machine.refusal is not None:
            return
        for _ in range(count):
            number = len(self.batches)
            self.batches[number] = self.machine.batcher.add(b"<%d>" % number + b"." * (number % 30), number)
            self.machine.pump(waits=waits)

    @rule()
    def flush(self) -> None:
        self.machine.batcher.cut()
        self.machine.pump()

    @rule(seconds=st.sampled_from([0.001, 0.01, 1.0]))
    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        if self.holds and self.now_s >= self.machine.due_s:
            self.holds = False
            self.machine.pump()

    @rule()
    def a_control_record_is_due(self) -> None:
        if self.machine.in_use is not None:
            self.machine.send_if_last(self.machine.in_use.writer.entry_count)

    def ledger(self) -> Ledger | None:
        in_use: Any = self.machine.in_use
        return None if in_use is None or in_use.handle.is_abandoned else in_use.handle

    @rule(count=st.integers(1, 9))
    def acknowledge(self, count: int) -> None:
        ledger = self.ledger()
        if ledger is not None and ledger.error is None:
            ledger.confirm(count)

    @rule(at_once=st.booleans())
    def lose_bookies(self, at_once: bool) -> None:
        ledger = self.ledger()
        if ledger is not None and ledger.error is None:
            error = LedgerWriteError(1, "no ack quorum")
            if at_once:
                ledger.fail(error)
            else:
                ledger.error = error  # noticed by the next entry

    @precondition(lambda self: len(self.batches) > LONG_ENOUGH)
    @rule()
    def lose_the_lock(self) -> None:
        self.machine.stop(LogLockLostError("log", "in this test"))

    @precondition(lambda self: len(self.batches) > LONG_ENOUGH)
    @rule()
    def close(self) -> None:
        self.machine.close(WriterClosedError("log"))

    @rule()
    def change_the_log_elsewhere(self) -> None:
        self.machine.overtaken(LogFencedError("log", "in this test"))

    @precondition(lambda self: len(self.batches) > 2 * LONG_ENOUGH)
    @rule()
    def give_up(self) -> None:
        self.machine.give_up(LogWriteError("log", "in this test"))

    # The shell.

    @rule(count=st.integers(1, 6), works=st.booleans(), kept=st.integers(0, 9))
    def do_steps(self, count: int, works: bool, kept: int) -> None:
        for _ in range(count):
            self.do_a_step(works, kept)

    def do_a_step(self, works: bool, kept: int) -> None:
        machine = self.machine
        if self.action is WAIT:
            if not self.is_awake:
                return
            self.is_awake = False
            self.action = machine.next_action()
            return
        match self.action:
            case Begin():
                self._begin()
            case Roll(in_use):
                if not self.is_prepared and not works:
                    machine.roll_later(1.0)
                elif self._rolls(in_use):
                    return  # wait for acknowledgements
            case Recover(in_use):
                in_use.handle.abandon()
                self._settle(kept)
            case Complete():
                machine.completed()
            case Follow(cause):
                if not works:
                    machine.stop(cause)
                elif machine.stopped is None:
                    for each in machine.moved():
                        each.handle.abandon()
                    if machine.in_use is not None:
                        machine.in_use.handle.abandon()
                        self._settle(kept)
            case Stop(cause):
                machine.stop(cause)
            case End():
                return
        self.action, self.is_awake = WAIT, True

    def _begin(self) -> None:
        if self.machine.phase is not Phase.OPENING:
            return
        if self.ledgers:
            before = self.ledgers[-1]
            last = max((i for i, entry in enumerate(before.entries) if entry), default=-1)
            is_visible = max(before.carried[: before.lac + 1], default=-1) >= last
            assert before.is_settled or (before.lac == len(before.entries) - 1 and is_visible)
        ledger: Any = Ledger(self.machine)
        self.ledgers.append(ledger)
        number = len(self.ledgers)
        segment = LogSegment(segment_seqno=number, ledger_id=number, first_txid=0)
        self.machine.begin(ledger, segment, Compression.NONE)

    def _rolls(self, in_use: Any) -> bool:
        """Continue a roll; True if it waits."""
        if not self.is_prepared:
            self.is_prepared = self.machine.roll(in_use)
        if self.is_prepared and self.machine.phase is Phase.ROLLING:
            if not self.machine.finish():
                return True
            self._begin()
        self.is_prepared = False
        return False

    def _settle(self, kept: int) -> None:
        """A recovery ends the ledger in use after what is durable, and up to this many entries more."""
        in_use: Any = self.machine.in_use
        if in_use is None:
            return  # given up
        ledger = in_use.handle
        ledger.end = min(ledger.lac + kept, len(ledger.entries) - 1)
        ledger.is_settled = True
        self.machine.settle(ledger.end)

    # What is always true.

    @invariant()
    def the_states_are_legal(self) -> None:
        machine = self.machine
        assert (machine.intake, machine.phase) in LEGAL
        assert (machine.refusal is None) == (machine.intake is Intake.OPEN)
        assert (machine.stopped is not None) == (machine.intake is Intake.STOPPED)
        if machine.phase in (Phase.RUNNING, Phase.ROLLING, Phase.RECOVERING):
            assert machine.in_use is not None
        if machine.phase in (Phase.OPENING, Phase.ENDED):
            assert machine.in_use is None
        if machine.intake is Intake.STOPPED:
            assert not machine.batcher

    @invariant()
    def the_log_holds_each_record_at_most_once_and_in_order(self) -> None:
        held = [number for ledger in self.ledgers for number in ledger.held]
        assert held == sorted(set(held))

    @invariant()
    def each_outcome_is_true(self) -> None:
        outcomes = [batch.outcome for batch, _ in self.batches.values()]
        for number, (batch, slot) in self.batches.items():
            if batch.outcome is RecordOutcome.DURABLE:
                ledger = self.ledgers[batch.segment_seqno - 1]
                assert ledger.entries[batch.entry_id][slot] == number
                assert batch.entry_id <= (ledger.end if ledger.is_settled else ledger.lac)
            elif batch.outcome is RecordOutcome.NOT_WRITTEN:
                assert not any(number in ledger.held for ledger in self.ledgers)
        # No record is durable after one that is not.
        durable = outcomes.count(RecordOutcome.DURABLE)
        assert outcomes[:durable] == [RecordOutcome.DURABLE] * durable

    @invariant()
    def bytes_that_wait_are_those_of_records_without_an_outcome(self) -> None:
        waiting = {id(b): b.held_bytes for b, _ in self.batches.values() if not b.is_settled}
        assert self.machine.waiting_bytes == sum(waiting.values())

    @invariant()
    def a_task_that_waits_has_nothing_to_do(self) -> None:
        # A limit of the segment is looked at with the next acknowledgement.
        if self.action is WAIT and not self.is_awake:
            found = self.machine.next_action()
            assert found is WAIT or isinstance(found, Roll)

    def teardown(self) -> None:
        """Whatever happened: a writer that is closed comes to its end, and each record has an outcome."""
        self.machine.close(WriterClosedError("log"))
        for _ in range(1000):
            if isinstance(self.action, End):
                break
            self.do_a_step(True, 0)
            ledger = self.ledger()
            if ledger is not None and ledger.error is not None:
                ledger.fail(ledger.error)  # noticed at the latest now
            self.acknowledge(9)
            self.the_log_holds_each_record_at_most_once_and_in_order()
        assert self.machine.phase is Phase.ENDED
        assert not self.machine.old or self.machine.stopped is not None
        assert all(batch.is_settled for batch, _ in self.batches.values())
        self.each_outcome_is_true()


TestWriting = Writing.TestCase
TestWriting.settings = settings(max_examples=examples(150), stateful_step_count=60, deadline=None)
