"""The states of one writer's ensemble, and the events that lead from one to the other.

    event          | HEALTHY   DEGRADED  CHOOSING  CHANGING  WAITING   PROBING   OVER
    -------------- | ----------------------------------------------------------------
    BOOKIE_FAILED  | DEGRADED  DEGRADED  CHOOSING  CHANGING  WAITING   PROBING   OVER
    CHOOSE         | -         CHOOSING  -         -         -         -         -
    BEGIN_CHANGE   | -         CHANGING  CHANGING  -         -         -         -
    SETTLE_CHANGE  | -         -         -         DEGRADED  -         -         -
    WAIT           | -         WAITING   WAITING   -         -         -         -
    PROBE          | -         -         -         -         PROBING   -         -
    LOOK_AGAIN     | -         -         -         -         DEGRADED  DEGRADED  -
    HEAL           | HEALTHY   HEALTHY   -         -         -         -         -
    END            | OVER      OVER      OVER      OVER      OVER      OVER      OVER

A dash is an event that is illegal in that state: it means a bug, and ``following`` raises. A bookie may fail
at any time; the state changes only if no other bookie was failing, and a repair that is under way takes the
new failure into account at its next step.

Inside: the states, the events, the table. Not inside: the effect of a state on adds (``writer``), the causes
of the events (``repair``).
Always: one ensemble change at a time, because only SETTLE_CHANGE and END leave CHANGING; OVER is final.

Source: LedgerHandle.java (ensembleChangeLoop); docs/protocol.md 5.6; docs/known-bugs.md 5, 6.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType


class EnsembleState(enum.Enum):
    """The condition of the ensemble that entries are written to."""

    HEALTHY = "no bookie of the ensemble is failing"
    DEGRADED = "a bookie has failed, and the next step is not decided"
    CHOOSING = "the placement policy chooses bookies to replace the failing ones"
    CHANGING = "an ensemble change is on its way to the metadata store"
    WAITING = "no bookie is replaced now; after a pause the writer tries the failing ones again"
    PROBING = "the writer asks failing bookies whether they are alive"
    OVER = "the writer has ended, or is being closed"


class EnsembleEvent(enum.Enum):
    """An event that may change the state."""

    BOOKIE_FAILED = "a bookie that was not failing refused an entry, or its connection broke"
    CHOOSE = "bookies shall be replaced"
    BEGIN_CHANGE = "the new ensemble goes to the metadata store"
    SETTLE_CHANGE = "the metadata store has the new ensemble, or certainly never gets it"
    WAIT = "no bookie can, or should, be replaced now"
    PROBE = "the pause is over"
    LOOK_AGAIN = "all probes are answered, or another bookie failed during the pause"
    HEAL = "no bookie of the ensemble is failing any more"
    END = "the writer sends and confirms nothing more"


_TABLE: dict[EnsembleEvent, dict[EnsembleState, EnsembleState]] = {
    EnsembleEvent.BOOKIE_FAILED: {
        EnsembleState.HEALTHY: EnsembleState.DEGRADED,
        EnsembleState.DEGRADED: EnsembleState.DEGRADED,
        EnsembleState.CHOOSING: EnsembleState.CHOOSING,
        EnsembleState.CHANGING: EnsembleState.CHANGING,
        EnsembleState.WAITING: EnsembleState.WAITING,
        EnsembleState.PROBING: EnsembleState.PROBING,
        EnsembleState.OVER: EnsembleState.OVER,
    },
    EnsembleEvent.CHOOSE: {EnsembleState.DEGRADED: EnsembleState.CHOOSING},
    EnsembleEvent.BEGIN_CHANGE: {
        EnsembleState.DEGRADED: EnsembleState.CHANGING,  # a recovery chooses without waiting
        EnsembleState.CHOOSING: EnsembleState.CHANGING,
    },
    EnsembleEvent.SETTLE_CHANGE: {EnsembleState.CHANGING: EnsembleState.DEGRADED},
    EnsembleEvent.WAIT: {
        EnsembleState.DEGRADED: EnsembleState.WAITING,
        EnsembleState.CHOOSING: EnsembleState.WAITING,
    },
    EnsembleEvent.PROBE: {EnsembleState.WAITING: EnsembleState.PROBING},
    EnsembleEvent.LOOK_AGAIN: {
        EnsembleState.WAITING: EnsembleState.DEGRADED,
        EnsembleState.PROBING: EnsembleState.DEGRADED,
    },
    EnsembleEvent.HEAL: {
        EnsembleState.HEALTHY: EnsembleState.HEALTHY,
        EnsembleState.DEGRADED: EnsembleState.HEALTHY,
    },
    EnsembleEvent.END: dict.fromkeys(EnsembleState, EnsembleState.OVER),
}

TRANSITIONS: Mapping[tuple[EnsembleState, EnsembleEvent], EnsembleState] = MappingProxyType(
    {(state, event): target for event, targets in _TABLE.items() for state, target in targets.items()}
)


def following(state: EnsembleState, event: EnsembleEvent) -> EnsembleState:
    """The state after an event; AssertionError if the event is illegal in this state."""
    target = TRANSITIONS.get((state, event))
    if target is None:
        raise AssertionError(f"{event.name} in state {state.name}, which is a bug of this writer")
    return target
