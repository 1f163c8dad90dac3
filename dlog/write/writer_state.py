"""The states of a log's writer, and the events that lead from one to the other.

Two things have a state. The *intake* is what the callers meet:

    event   | OPEN     CLOSING  STOPPED
    ------- | --------------------------
    CLOSE   | CLOSING  CLOSING  STOPPED
    STOP    | STOPPED  STOPPED  STOPPED
    GIVE_UP | STOPPED  STOPPED  STOPPED

The *phase* is what happens to the records that were taken:

    event   | OPENING   RUNNING     ROLLING     RECOVERING  MOVING      DRAINING    ENDED
    ------- | ----------------------------------------------------------------------------
    BEGIN   | RUNNING   -           -           -           -           -           -
    ROLL    | -         ROLLING     -           -           -           -           -
    RETIRE  | -         OPENING     OPENING     -           -           -           -
    FAIL    | -         RECOVERING  RECOVERING  RECOVERING  RECOVERING  RECOVERING  -
    MOVE    | MOVING    MOVING      -           RECOVERING  -           -           -
    SETTLE  | -         -           -           OPENING     OPENING     DRAINING    -
    STOP    | DRAINING  DRAINING    DRAINING    RECOVERING  DRAINING    DRAINING    ENDED
    END     | ENDED     -           -           -           -           ENDED       -
    GIVE_UP | ENDED     ENDED       ENDED       ENDED       ENDED       ENDED       ENDED

A dash is an event that is illegal in that phase: it means a bug, and ``following`` raises. CLOSE changes no
phase. Not every pair is legal; ``LEGAL`` names those that are:

    OPEN     | OPENING   RUNNING     ROLLING     RECOVERING  MOVING
    CLOSING  | OPENING   RUNNING     ROLLING     RECOVERING  MOVING                  ENDED
    STOPPED  |                                   RECOVERING              DRAINING    ENDED

Inside: the states, the events, the tables. Not inside: what a state allows and the causes of the events
(``writer_machine``), the work in a state (``writer_shell``).
Always: STOPPED and ENDED are final; a batch is sent to another ledger only after SETTLE, so never while the
end of the ledger that failed is unknown.

Source: our own.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType


class Intake(enum.Enum):
    """The state that decides what happens to a record that a caller gives."""

    OPEN = "it is taken"
    CLOSING = "it is refused; those that were taken are written"
    STOPPED = "it is refused, and nothing more is sent"


class Phase(enum.Enum):
    """The state that decides what happens to the records that were taken."""

    OPENING = "no segment is in use; records gather until there is one"
    RUNNING = "they are sent to the segment in use"
    ROLLING = "they gather; what the segment in use holds becomes durable and visible"
    RECOVERING = "they gather; the ledger in use has failed, and its end is not decided"
    MOVING = "they gather; another program has changed the log, perhaps by moving it to another namespace"
    DRAINING = "none is sent; those in flight get their outcome from the ledger"
    ENDED = "each has its outcome"


class WriterEvent(enum.Enum):
    """An event that may change a state."""

    BEGIN = "a segment is in use"
    ROLL = "the segment in use has reached a limit, and the ledger of the next one is there"
    RETIRE = "all records of the segment in use are durable; it gets no more entries"
    FAIL = "the ledger in use has failed"
    MOVE = "another program has changed the log, so this writer looks for it elsewhere"
    SETTLE = "no segment is in use any more, and the end of its ledger is decided"
    CLOSE = "a caller closes the writer"
    STOP = "the writer cannot continue"
    END = "the writer has nothing left to do"
    GIVE_UP = "the outcome of the records in flight stays unknown"


INTAKES: Mapping[tuple[Intake, WriterEvent], Intake] = MappingProxyType(
    {
        (Intake.OPEN, WriterEvent.CLOSE): Intake.CLOSING,
        (Intake.CLOSING, WriterEvent.CLOSE): Intake.CLOSING,
        (Intake.STOPPED, WriterEvent.CLOSE): Intake.STOPPED,
        **{(intake, WriterEvent.STOP): Intake.STOPPED for intake in Intake},
        **{(intake, WriterEvent.GIVE_UP): Intake.STOPPED for intake in Intake},
    }
)

_PHASES: dict[WriterEvent, dict[Phase, Phase]] = {
    WriterEvent.BEGIN: {Phase.OPENING: Phase.RUNNING},
    WriterEvent.ROLL: {Phase.RUNNING: Phase.ROLLING},
    WriterEvent.RETIRE: {Phase.RUNNING: Phase.OPENING, Phase.ROLLING: Phase.OPENING},
    WriterEvent.FAIL: {
        Phase.RUNNING: Phase.RECOVERING,
        Phase.ROLLING: Phase.RECOVERING,
        Phase.RECOVERING: Phase.RECOVERING,
        Phase.MOVING: Phase.RECOVERING,
        Phase.DRAINING: Phase.RECOVERING,
    },
    WriterEvent.MOVE: {
        Phase.OPENING: Phase.MOVING,
        Phase.RUNNING: Phase.MOVING,
        Phase.RECOVERING: Phase.RECOVERING,  # the ledger's end must be decided, wherever the log is
    },
    WriterEvent.SETTLE: {
        Phase.RECOVERING: Phase.OPENING,
        Phase.MOVING: Phase.OPENING,
        Phase.DRAINING: Phase.DRAINING,  # the writer stopped while it followed the log
    },
    WriterEvent.STOP: {
        Phase.OPENING: Phase.DRAINING,
        Phase.RUNNING: Phase.DRAINING,
        Phase.ROLLING: Phase.DRAINING,
        Phase.RECOVERING: Phase.RECOVERING,
        Phase.MOVING: Phase.DRAINING,
        Phase.DRAINING: Phase.DRAINING,
        Phase.ENDED: Phase.ENDED,
    },
    WriterEvent.END: {Phase.OPENING: Phase.ENDED, Phase.DRAINING: Phase.ENDED},
    WriterEvent.GIVE_UP: dict.fromkeys(Phase, Phase.ENDED),
}

PHASES: Mapping[tuple[Phase, WriterEvent], Phase] = MappingProxyType(
    {(phase, event): target for event, targets in _PHASES.items() for phase, target in targets.items()}
)

_TAKING = (Phase.OPENING, Phase.RUNNING, Phase.ROLLING, Phase.RECOVERING, Phase.MOVING)

LEGAL: frozenset[tuple[Intake, Phase]] = frozenset(
    [
        *((Intake.OPEN, phase) for phase in _TAKING),
        *((Intake.CLOSING, phase) for phase in (*_TAKING, Phase.ENDED)),
        *((Intake.STOPPED, phase) for phase in (Phase.RECOVERING, Phase.DRAINING, Phase.ENDED)),
    ]
)


def following(intake: Intake, phase: Phase, *events: WriterEvent) -> tuple[Intake, Phase]:
    """The states after events at one moment; AssertionError if an event, or the last pair, is illegal."""
    at = intake, phase
    for event in events:
        intake = INTAKES.get((intake, event), intake)
        if event is WriterEvent.CLOSE:
            continue
        target = PHASES.get((phase, event))
        if target is None:
            raise AssertionError(f"{event.name} in phase {phase.name}, which is a bug of this writer")
        phase = target
    if (intake, phase) not in LEGAL:
        names = ", ".join(event.name for event in events)
        raise AssertionError(f"{names} in {at[0].name}, {at[1].name} leads to {intake.name}, {phase.name}")
    return intake, phase
