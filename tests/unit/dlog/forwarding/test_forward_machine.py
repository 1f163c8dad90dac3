"""A shared writer as a machine: what is sent to which owner, what is sent again, and what becomes of it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from dlog.errors import LogWriteError, RecordOutcome, TxidOutOfOrderError, WriteError, WriterClosedError
from dlog.forwarding import forward_machine
from dlog.forwarding.forward_machine import PHASES, ForwardEvent, ForwardMachine, ForwardPhase, Group
from dlog.forwarding.frames import Records
from namespace.dlsn import DLSN, INVALID_DLSN

ONE, TWO, THREE = DLSN(1, 0, 0), DLSN(1, 1, 0), DLSN(1, 2, 0)


class Owner:
    """A link that remembers what it was given."""

    def __init__(self) -> None:
        self.got: list[Records] = []

    def send(self, records: Records) -> None:
        self.got.append(records)

    @property
    def numbers(self) -> list[tuple[int, bool]]:
        return [(each.first, each.is_again) for each in self.got]


def machine_of(bytes_max: int = 100) -> ForwardMachine:
    return ForwardMachine("log", bytes_max, clock=lambda: 7.0, on_change=lambda: None)


def take(machine: ForwardMachine, *payloads: bytes, sequence: int | None = None) -> Group:
    size_bytes = sum(map(len, payloads))
    return machine.take(list(payloads), None, None, sequence=sequence, size_bytes=size_bytes)


def forwarding(machine: ForwardMachine) -> Owner:
    owner = Owner()
    machine.attached(owner, ForwardEvent.WELCOME)
    return owner


def lose(machine: ForwardMachine, owner: Owner) -> None:
    machine.lost(owner)
    machine.follow(ForwardEvent.SEEK)


def outcomes(groups: Sequence[Group]) -> list[RecordOutcome]:
    return [each.outcome for each in groups]


def test_the_table_of_the_docstring_is_the_one_in_the_data() -> None:
    blocks = (forward_machine.__doc__ or "").split("\n\n")
    (block,) = [each for each in blocks if " | " in each]
    (_, header), _, *body = [line.split("|") for line in block.splitlines()]
    assert [ForwardPhase[name] for name in header.split()] == list(ForwardPhase)
    assert {
        (phase, ForwardEvent[event.strip()]): ForwardPhase[name]
        for event, targets in body
        for phase, name in zip(ForwardPhase, targets.split(), strict=True)
        if name != "-"
    } == PHASES
    assert {event for _, event in PHASES} == set(ForwardEvent)


def test_an_illegal_event_raises_and_names_event_and_phase() -> None:
    for phase, event in itertools.product(ForwardPhase, ForwardEvent):
        if (phase, event) not in PHASES:
            machine = machine_of()
            machine.phase = phase
            with pytest.raises(AssertionError, match=f"{event.name} in phase {phase.name}"):
                machine.follow(event)


def test_records_gather_until_there_is_an_owner_and_are_sent_in_order() -> None:
    machine = machine_of()
    first, second = take(machine, b"a", b"b"), take(machine, b"c")
    owner = forwarding(machine)
    third = take(machine, b"d")
    assert owner.numbers == [(0, False), (2, False), (3, False)]
    machine.answered(owner, 2, [THREE])
    assert outcomes([first, second, third]) == [
        RecordOutcome.PENDING,
        RecordOutcome.DURABLE,
        RecordOutcome.PENDING,
    ]
    machine.answered(owner, 0, [ONE, TWO])
    assert (first.dlsn(1), second.dlsn(0), first.positions(0, 2)) == (TWO, THREE, [ONE, TWO])
    assert machine.waiting_bytes == 1 + forward_machine.GROUP_HELD_BYTES  # of "d"


def test_the_next_owner_gets_what_has_no_answer_with_the_same_numbers_and_before_newer_ones() -> None:
    machine = machine_of()
    old = forwarding(machine)
    take(machine, b"a"), take(machine, b"b")
    machine.answered(old, 0, [ONE])
    lose(machine, old)
    take(machine, b"c")
    new = forwarding(machine)
    take(machine, b"d")
    assert new.numbers == [(1, True), (2, False), (3, False)]
    assert [each.payloads for each in new.got] == [[b"b"], [b"c"], [b"d"]]


def test_an_owner_that_answers_late_changes_nothing() -> None:
    machine = machine_of()
    old = forwarding(machine)
    group = take(machine, b"a")
    lose(machine, old)
    new = forwarding(machine)
    machine.answered(old, 0, [ONE])
    machine.refused(old, 0, TxidOutOfOrderError("log", 1, 2))
    assert group.outcome is RecordOutcome.PENDING
    machine.lost(old)
    assert machine.link is new
    machine.answered(new, 0, [TWO])
    assert group.dlsn(0) == TWO


def test_the_floor_lies_before_all_that_an_owner_may_have_stored_without_an_answer() -> None:
    machine = machine_of()
    assert machine.floor == INVALID_DLSN
    owner = forwarding(machine)
    take(machine, b"a")
    machine.answered(owner, 0, [ONE])
    assert machine.floor == ONE
    take(machine, b"b"), take(machine, b"c")  # sent when only ONE was known
    machine.answered(owner, 2, [THREE])
    lose(machine, owner)
    assert machine.floor == ONE
    machine.answered(forwarding(machine), 1, [TWO])
    assert machine.floor == THREE


def test_a_refused_record_gets_its_error_and_the_others_go_on() -> None:
    machine = machine_of()
    owner = forwarding(machine)
    bad, good = take(machine, b"a"), take(machine, b"b")
    machine.refused(owner, 0, TxidOutOfOrderError("log", 1, 2))
    machine.answered(owner, 1, [ONE])
    with pytest.raises(TxidOutOfOrderError):
        bad.dlsn(0)
    assert good.dlsn(0) == ONE
    assert list(machine.failed) == [bad]


def test_records_that_no_owner_answers_are_unknown_and_those_never_sent_are_not_written() -> None:
    machine = machine_of()
    owner = forwarding(machine)
    sent = take(machine, b"a")
    lose(machine, owner)
    kept = take(machine, b"b")
    machine.expire("nobody owns it")
    assert outcomes([sent, kept]) == [RecordOutcome.UNKNOWN, RecordOutcome.NOT_WRITTEN]
    assert isinstance(sent.error, LogWriteError)
    assert (machine.waiting_bytes, machine.is_idle) == (0, True)
    after = take(machine, b"c")
    assert [*forwarding(machine).numbers] == [(2, False)]
    assert after.outcome is RecordOutcome.PENDING


def test_a_writer_that_stopped_takes_nothing_and_says_why() -> None:
    machine = machine_of()
    owner = forwarding(machine)
    group = take(machine, b"a")
    machine.stop(LogWriteError("log", "it is gone"))
    assert group.outcome is RecordOutcome.UNKNOWN
    with pytest.raises(LogWriteError, match="it is gone") as caught:
        take(machine, b"b")
    assert caught.value.outcome is RecordOutcome.NOT_WRITTEN
    machine.answered(owner, 0, [ONE])
    assert machine.phase is ForwardPhase.CLOSED


def test_a_writer_that_is_closed_takes_nothing_and_still_gets_its_answers() -> None:
    machine = machine_of()
    owner = forwarding(machine)
    group = take(machine, b"a")
    machine.close()
    with pytest.raises(WriterClosedError):
        take(machine, b"b")
    machine.answered(owner, 0, [ONE])
    machine.end()
    assert (group.outcome, machine.phase) == (RecordOutcome.DURABLE, ForwardPhase.CLOSED)


def test_an_owner_that_stops_during_the_sending_gets_no_more() -> None:
    machine = machine_of()
    take(machine, b"a"), take(machine, b"b")

    class Stops(Owner):
        def send(self, records: Records) -> None:
            super().send(records)
            machine.lost(self)

    owner = Stops()
    machine.attached(owner, ForwardEvent.WELCOME)
    assert owner.numbers == [(0, False)]


def test_numbers_that_a_caller_gives_are_kept_and_may_repeat_those_of_an_earlier_program() -> None:
    machine = machine_of()
    owner = forwarding(machine)
    machine.next_sequence = 8  # the window of the owner has seven
    take(machine, b"a", sequence=5)
    machine.answered(owner, 5, [ONE])
    take(machine, b"b")
    assert owner.numbers == [(5, False), (8, False)]
    for sequence in (8, 7):
        with pytest.raises(ValueError, match="records up to 8 are in flight"):
            take(machine, b"c", sequence=sequence)
    with pytest.raises(ValueError, match="2\\*\\*63"):
        take(machine, b"c", sequence=-1)
    with pytest.raises(TypeError):
        take(machine, b"c", sequence=True)
    take(machine, b"c", sequence=20)
    assert machine.next_sequence == 21


def test_bytes_without_an_outcome_count_against_the_limit() -> None:
    machine = machine_of(bytes_max=3 + 2 * forward_machine.GROUP_HELD_BYTES)
    owner = forwarding(machine)
    seen = []
    for payload in (b"ab", b"c"):
        take(machine, payload)
        seen.append(machine.is_over_limit)
    machine.answered(owner, 0, [ONE])
    assert [*seen, machine.is_over_limit] == [False, True, False]


def test_only_so_many_errors_are_kept_and_none_that_a_caller_has_got() -> None:
    machine = machine_of()
    owner = forwarding(machine)
    for number in range(forward_machine.FAILED_MAX + 1):
        take(machine, b"")
        machine.refused(owner, number, WriteError("bad"))
    assert len(machine.failed) == forward_machine.FAILED_MAX
    for group in machine.failed:
        group.error_was_seen = True
    last = take(machine, b"")
    machine.refused(owner, forward_machine.FAILED_MAX + 1, WriteError("bad"))
    assert list(machine.failed) == [last]
