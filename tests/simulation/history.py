"""What was observed in a world: the events that checkers judge.

Inside: frozen events, and ``History``, which keeps what later events are compared with.
Not inside: judging (``checkers``), how events are observed (``bookies``, ``clients``, ``world``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import attrs

from ledger.metadata import LedgerMetadata

Place = tuple[int, int]  # ledger id, entry id


@attrs.frozen
class Submitted:
    """A writer gave an entry its place."""

    at: float
    client: str
    place: Place
    payload: bytes


@attrs.frozen
class Confirmed:
    """A writer was told that an entry is durable."""

    at: float
    client: str
    place: Place
    metadata: LedgerMetadata  # as the store has it at that moment
    holders: frozenset[str]  # bookies that would still have it after a power cut at that moment
    damaged: frozenset[str]  # bookies that have lost data, which is beyond what they can promise


@attrs.frozen
class MetadataWritten:
    """A ledger's metadata changed."""

    at: float
    ledger_id: int
    before: LedgerMetadata | None
    after: LedgerMetadata
    holders: Mapping[int, frozenset[str]]  # of each confirmed entry in the last segment
    damaged: frozenset[str]


@attrs.frozen
class LacTold:
    """A reader learnt how far a ledger is confirmed."""

    at: float
    client: str
    place: Place  # of the last confirmed entry
    metadata: LedgerMetadata
    holders: frozenset[str]
    damaged: frozenset[str]


@attrs.frozen
class EntryRead:
    """A reader got an entry."""

    at: float
    client: str
    place: Place
    payload: bytes


@attrs.frozen
class EndSeen:
    """Somebody saw a closed ledger's end."""

    at: float
    client: str
    ledger_id: int
    last_entry_id: int
    length_bytes: int


@attrs.frozen
class Accepted:
    """A bookie acknowledged an add."""

    at: float
    bookie: str
    place: Place
    is_recovery: bool
    lac: int  # inside the entry
    after_fence: bool  # it came after the bookie had answered a fencing read of the ledger
    after_denial: bool  # it came after the bookie had denied this very entry to a recovery
    metadata: LedgerMetadata | None  # as the store has it at that moment


@attrs.frozen
class AnsweredRecovery:
    """A bookie told a recovery what it has of an entry."""

    at: float
    bookie: str
    place: Place
    is_fenced: bool  # whether the ledger is fenced there at that moment


@attrs.frozen
class Denied:
    """A bookie told somebody that it never stored an entry."""

    at: float
    bookie: str
    place: Place
    had_acknowledged: bool  # in this life or an earlier one


@attrs.frozen
class BookieStarted:
    """A bookie serves again; what it knows against what it had promised in its lives before."""

    at: float
    bookie: str
    promised_fences: frozenset[int]
    fenced: frozenset[int]
    wrong_entries: tuple[str, ...]  # entries it has that nobody sent to it


@attrs.frozen
class Ended:
    """An operation of a client is over."""

    at: float
    client: str
    what: str
    began_at: float
    faults_ended_at: float | None


@attrs.frozen
class Crashed:
    """A process ended by an error that nobody should ever see."""

    at: float
    process: str
    error: str


Event = (
    Submitted
    | Confirmed
    | MetadataWritten
    | LacTold
    | EntryRead
    | EndSeen
    | Accepted
    | AnsweredRecovery
    | Denied
    | BookieStarted
    | Ended
    | Crashed
)


def ledger_of(event: Event) -> int | None:
    """The ledger that an event is about, if it is about one."""
    match event:
        case MetadataWritten() | EndSeen():
            return event.ledger_id
        case BookieStarted() | Ended() | Crashed():
            return None
        case _:
            return event.place[0]


@attrs.frozen
class Replica:
    """What a bookie has of an entry when all is over."""

    payload: bytes
    length_bytes: int
    lac: int


@attrs.frozen
class FinalState:
    """The world when faults have stopped, every ledger was recovered and every bookie asked."""

    metadata: Mapping[int, LedgerMetadata]
    unclosed: Mapping[int, str]  # ledgers that could not be recovered, and why
    replicas: Mapping[Place, Mapping[str, Replica | str]]  # by bookie; a string is an error that was answered
    read: Mapping[Place, bytes | str]  # what an ordinary reader got
    damaged: frozenset[str]
    chains: Mapping[str, tuple[int, ...]]  # of each log the ledgers, in order
    unfinished: tuple[str, ...]  # operations that did not end


@attrs.define
class History:
    """What later events are compared with. ``note`` an event after it was judged."""

    submitted: dict[Place, Submitted] = attrs.field(factory=dict)
    confirmed: dict[Place, float] = attrs.field(factory=dict)
    confirmed_lac: dict[int, int] = attrs.field(factory=dict)
    told_lac: dict[int, int] = attrs.field(factory=dict)
    ends: dict[int, tuple[int, int]] = attrs.field(factory=dict)  # of closed ledgers: last entry, length
    last_confirmed_at: dict[int, float] = attrs.field(factory=dict)
    order: defaultdict[str, list[Place]] = attrs.field(factory=lambda: defaultdict(list))

    def note(self, event: Event) -> None:
        match event:
            case Submitted():
                self.submitted[event.place] = event
            case Confirmed():
                ledger_id, entry_id = event.place
                self.confirmed[event.place] = event.at
                self.confirmed_lac[ledger_id] = max(self.confirmed_lac.get(ledger_id, -1), entry_id)
            case LacTold():
                ledger_id, entry_id = event.place
                self.told_lac[ledger_id] = max(self.told_lac.get(ledger_id, -1), entry_id)
            case MetadataWritten() if event.after.is_closed:
                self.ends.setdefault(event.ledger_id, (event.after.last_entry_id, event.after.length_bytes))
            case _:
                pass
