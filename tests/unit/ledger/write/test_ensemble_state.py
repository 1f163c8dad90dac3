"""The table of an ensemble's states: the same in the docstring and in the data, and complete."""

from __future__ import annotations

import itertools

import pytest

from ledger.write import ensemble_state
from ledger.write.ensemble_state import TRANSITIONS, EnsembleEvent, EnsembleState, following


def documented() -> dict[tuple[EnsembleState, EnsembleEvent], EnsembleState]:
    """The table of the module's docstring."""
    rows = [line.split("|") for line in (ensemble_state.__doc__ or "").splitlines() if "|" in line]
    (_, header), _, *body = rows
    states = [EnsembleState[name] for name in header.split()]
    assert states == list(EnsembleState)
    assert [EnsembleEvent[event.strip()] for event, _ in body] == list(EnsembleEvent)
    return {
        (state, EnsembleEvent[event.strip()]): EnsembleState[name]
        for event, targets in body
        for state, name in zip(states, targets.split(), strict=True)
        if name != "-"
    }


def test_the_table_in_the_docstring_is_the_table_in_the_data() -> None:
    assert documented() == TRANSITIONS


def test_an_illegal_event_raises_and_names_event_and_state() -> None:
    pairs = list(itertools.product(EnsembleState, EnsembleEvent))
    illegal = [pair for pair in pairs if pair not in TRANSITIONS]
    assert len(pairs) == len(illegal) + len(TRANSITIONS)
    for state, event in illegal:
        with pytest.raises(AssertionError, match=f"{event.name} in state {state.name}"):
            following(state, event)
    for (state, event), target in TRANSITIONS.items():
        assert following(state, event) is target


def test_every_state_is_reached_from_a_healthy_ensemble() -> None:
    reached = {EnsembleState.HEALTHY}
    while True:
        more = {target for (state, _), target in TRANSITIONS.items() if state in reached} - reached
        if not more:
            break
        reached |= more
    assert reached == set(EnsembleState)


def test_only_one_ensemble_change_is_under_way() -> None:
    leaving = {event for (state, event), target in TRANSITIONS.items() if state is EnsembleState.CHANGING}
    assert leaving == {EnsembleEvent.BOOKIE_FAILED, EnsembleEvent.SETTLE_CHANGE, EnsembleEvent.END}
    assert following(EnsembleState.CHANGING, EnsembleEvent.BOOKIE_FAILED) is EnsembleState.CHANGING


def test_nothing_leads_out_of_the_end() -> None:
    assert {target for (state, _), target in TRANSITIONS.items() if state is EnsembleState.OVER} == {
        EnsembleState.OVER
    }
