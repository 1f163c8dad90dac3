"""The events of a world, which the checkers judge.

Inside: frozen events; ``History``, which keeps what the checkers compare later events with.
Not inside: judging (``checkers``), observing (``bookies``, ``clients``, ``world``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import attrs

from ledger.metadata import LedgerMetadata

Place = tuple[int, int]  # ledger id, entry id


@attrs.frozen
class Submitted:
    """A writer submitted an entry, which thereby has its id."""

    at: float
    client: str
    place: Place
    payload: bytes


@attrs.frozen
class Confirmed:
    """A writer's handle confirmed an entry."""

    at: float
    client: str
    place: Place
    metadata: LedgerMetadata  # in the store at that moment
    holders: frozenset[str]  # bookies that would still have the entry after a power cut at that moment
    damaged: frozenset[str]  # bookies that have lost synced data


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
class LacSeen:
    """A reader's handle shows a LAC."""

    at: float
    client: str
    place: Place  # the last confirmed entry
    metadata: LedgerMetadata
    holders: frozenset[str]
    damaged: frozenset[str]


@attrs.frozen
class EntryRead:
    """A reader read an entry."""

    at: float
    client: str
    place: Place
    payload: bytes


@attrs.frozen
class EndSeen:
    """A client saw the end of a closed ledger."""

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
    lac: int  # that the entry carries
    after_fence: bool  # the add arrived after the bookie had replied to a fencing read of the ledger
    after_denial: bool  # the add arrived after the bookie had denied this entry to a recovery
    metadata: LedgerMetadata | None  # in the store at that moment; only for adds of a recovery


@attrs.frozen
class RepliedToRecovery:
    """A bookie replied to a recovery's read: the entry, or that it has none."""

    at: float
    bookie: str
    place: Place
    is_fenced: bool  # whether the bookie has the ledger fenced at that moment


@attrs.frozen
class Denied:
    """A bookie replied that it never stored an entry."""

    at: float
    bookie: str
    place: Place
    had_acknowledged: bool  # since the machine exists, by this process or an earlier one


@attrs.frozen
class BookieStarted:
    """A bookie has started: what its storage holds, and what its earlier processes promised."""

    at: float
    bookie: str
    promised_fences: frozenset[int]
    fenced: frozenset[int]
    wrong_entries: tuple[str, ...]  # entries in its storage that no client sent to it


@attrs.frozen
class Ended:
    """An operation of a client has ended, with success or not."""

    at: float
    client: str
    what: str
    began_at: float
    faults_ended_at: float | None


@attrs.frozen
class Crashed:
    """A process ended by an error that its package does not announce."""

    at: float
    process: str
    error: str


Event = (
    Submitted
    | Confirmed
    | MetadataWritten
    | LacSeen
    | EntryRead
    | EndSeen
    | Accepted
    | RepliedToRecovery
    | Denied
    | BookieStarted
    | Ended
    | Crashed
)


def ledger_of(event: Event) -> int | None:
    """The ledger of an event, or None."""
    match event:
        case MetadataWritten() | EndSeen():
            return event.ledger_id
        case BookieStarted() | Ended() | Crashed():
            return None
        case _:
            return event.place[0]


@attrs.frozen
class Replica:
    """One bookie's copy of an entry at the end of a world."""

    payload: bytes
    length_bytes: int
    lac: int


@attrs.frozen
class Size:
    """What a bookie's entry logs take, after a collection of garbage."""

    log_bytes: int
    entry_bytes: int  # of what can be read from it
    excused_bytes: int  # open logs, and what was written twice because the process was killed


@attrs.frozen
class FinalState:
    """The world after faults have stopped, every ledger was recovered and every bookie was read."""

    metadata: Mapping[int, LedgerMetadata]
    unclosed: Mapping[int, str]  # ledgers that could not be recovered, and why
    replicas: Mapping[Place, Mapping[str, Replica | str]]  # by bookie; a string is the error of the read
    read: Mapping[Place, bytes | str]  # payloads that an ordinary reader got; a string is an error
    damaged: frozenset[str]
    chains: Mapping[str, tuple[int, ...]]  # the ledgers of each log, in order
    unfinished: tuple[str, ...]  # operations that did not end
    sizes: Mapping[str, Size] = attrs.field(factory=dict)  # of bookies whose disk was full


@attrs.define
class History:
    """The past that the checkers compare an event with. Call ``note`` after the event was checked."""

    submitted: dict[Place, Submitted] = attrs.field(factory=dict)
    confirmed: dict[Place, float] = attrs.field(factory=dict)
    confirmed_lac: dict[int, int] = attrs.field(factory=dict)
    seen_lac: dict[int, int] = attrs.field(factory=dict)  # the greatest that any reader saw
    ends: dict[int, tuple[int, int]] = attrs.field(factory=dict)  # closed ledgers: last entry id, length
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
            case LacSeen():
                ledger_id, entry_id = event.place
                self.seen_lac[ledger_id] = max(self.seen_lac.get(ledger_id, -1), entry_id)
            case MetadataWritten() if event.after.is_closed:
                self.ends.setdefault(event.ledger_id, (event.after.last_entry_id, event.after.length_bytes))
            case _:
                pass
