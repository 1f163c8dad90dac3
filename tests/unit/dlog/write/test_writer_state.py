"""The tables of a writer's states: the same in the docstring and in the data, and complete."""

from __future__ import annotations

import itertools

import pytest

from dlog.write import writer_state
from dlog.write.writer_state import INTAKES, LEGAL, PHASES, Intake, Phase, WriterEvent, following


def tables() -> list[list[list[str]]]:
    """The tables of the module's docstring: rows of cells, each with the names of a row."""
    blocks = (writer_state.__doc__ or "").split("\n\n")
    return [[line.split("|") for line in block.splitlines()] for block in blocks if " | " in block]


def test_the_table_of_the_intake_is_the_one_in_the_data() -> None:
    (_, header), _, *body = tables()[0]
    assert [Intake[name] for name in header.split()] == list(Intake)
    assert {
        (intake, WriterEvent[event.strip()]): Intake[name]
        for event, targets in body
        for intake, name in zip(Intake, targets.split(), strict=True)
    } == INTAKES


def test_the_table_of_the_phases_is_the_one_in_the_data() -> None:
    (_, header), _, *body = tables()[1]
    assert [Phase[name] for name in header.split()] == list(Phase)
    events = [WriterEvent[event.strip()] for event, _ in body]
    assert {*events, WriterEvent.CLOSE} == set(WriterEvent)
    assert {
        (phase, event): Phase[name]
        for event, (_, targets) in zip(events, body, strict=True)
        for phase, name in zip(Phase, targets.split(), strict=True)
        if name != "-"
    } == PHASES


def test_the_legal_pairs_are_those_in_the_data() -> None:
    assert {
        (Intake[intake.strip()], Phase[name]) for intake, names in tables()[2] for name in names.split()
    } == LEGAL


def test_an_illegal_event_raises_and_names_event_and_phase() -> None:
    for phase, event in itertools.product(Phase, WriterEvent):
        if event is not WriterEvent.CLOSE and (phase, event) not in PHASES:
            with pytest.raises(AssertionError, match=f"{event.name} in phase {phase.name}"):
                following(Intake.OPEN, phase, event)


def test_an_open_writer_does_not_end() -> None:
    with pytest.raises(AssertionError, match=r"END in OPEN, OPENING leads to OPEN, ENDED"):
        following(Intake.OPEN, Phase.OPENING, WriterEvent.END)


def test_every_legal_pair_is_reached_from_the_first_and_no_other_pair_is() -> None:
    reached, seen = {(Intake.OPEN, Phase.OPENING)}, set[tuple[Intake, Phase]]()
    while reached - seen:
        seen |= reached
        for pair, event in itertools.product(list(seen), WriterEvent):
            # A recovery that ends after the writer has stopped is followed by STOP in the same moment.
            for events in ((event,), (event, WriterEvent.STOP)):
                try:
                    reached.add(following(*pair, *events))
                except AssertionError:
                    pass
    assert reached == LEGAL


def test_records_go_to_another_ledger_only_after_the_end_of_the_failed_one_is_decided() -> None:
    leaving = {event for (phase, event), target in PHASES.items() if phase is Phase.RECOVERING is not target}
    assert leaving == {WriterEvent.SETTLE, WriterEvent.GIVE_UP}
    assert [event for (phase, event), target in PHASES.items() if target is Phase.RUNNING] == [
        WriterEvent.BEGIN
    ]


def test_a_writer_that_stopped_never_sends_again_and_a_closed_one_never_takes() -> None:
    phases = {phase for intake, phase in LEGAL if intake is Intake.STOPPED}
    assert not phases & {Phase.OPENING, Phase.RUNNING, Phase.ROLLING, Phase.MOVING}
    assert {target for (intake, _), target in INTAKES.items() if intake is Intake.STOPPED} == {Intake.STOPPED}
    assert Intake.OPEN not in INTAKES.values()


def test_nothing_leads_out_of_the_end() -> None:
    assert {target for (phase, _), target in PHASES.items() if phase is Phase.ENDED} == {Phase.ENDED}
