"""What the answers of several bookies to one question mean together.

Inside: reading an entry from one replica after the other; asking an ensemble for the LAC.
Not inside: requests, sockets, time (``read_handle``); whether the entry may be read yet (likewise).
Always: "no such entry" is concluded only when every replica said so; a digest that does not match is an error
of that replica, never an answer; the LAC is believed only once no ack quorum can be silent.

Source: ReadOpBase.java, PendingReadOp.java, ReadLastConfirmedOp.java; reference sections 6.2, 6.5, 7.2, 7.3.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from ledger.digest import Entry
from ledger.errors import LedgerReadError, NoEntryRefusal, NoLedgerRefusal, NoSuchEntryError
from ledger.metadata import LedgerMetadata
from ledger.quorum import covers, write_set


def is_negative(error: Exception) -> bool:
    """The bookie knows that it was never given this entry. Errors, limbo and silence say nothing."""
    return isinstance(error, NoEntryRefusal | NoLedgerRefusal)


def replicas(metadata: LedgerMetadata, entry_id: int) -> list[str]:
    """The bookies that may hold an entry, in the order of its write set."""
    bookies = metadata.ensemble_for(entry_id).bookies
    return [bookies[index] for index in write_set(entry_id, len(bookies), metadata.write_quorum)]


def segment_stop(metadata: LedgerMetadata, entry_id: int) -> int | None:
    """The first entry behind ``entry_id`` that another ensemble holds; None if there is none."""
    for ensemble in metadata.ensembles:
        if ensemble.first_entry_id > entry_id:
            return ensemble.first_entry_id
    return None


def reading_order(
    bookies: Iterable[str],
    *,
    start: int,
    suspects: Collection[str],
    readonly: Collection[str],
    slow: Collection[str] = (),
    writable: Collection[str] | None = None,
    distance: Callable[[str], int] = lambda bookie: 0,
) -> list[str]:
    """Which replica to ask first: from ``start`` on in a circle, near ones first, doubtful ones at the end.

    Any order is correct; this one keeps to one replica, whose caches know the reader, and off failing ones.
    Read-only bookies are left to those who have no other, then come those that failed or were slow lately,
    last those that are not registered.

    Args:
        writable: None if it is not known who is registered.
    """
    circle = list(bookies)
    start %= len(circle) or 1
    circle = circle[start:] + circle[:start]

    def rank(bookie: str) -> tuple[bool, bool, bool, int]:
        is_away = writable is not None and bookie not in writable and bookie not in readonly
        is_doubtful = bookie in suspects or bookie in slow
        return is_away, is_doubtful, bookie in readonly, distance(bookie)

    return sorted(circle, key=rank)


class EntryRead:
    """The reading of one entry (or of a run that begins with it), replica after replica."""

    def __init__(self, ledger_id: int, entry_id: int, order: Sequence[str]) -> None:
        self._ledger_id, self._entry_id = ledger_id, entry_id
        self._left = list(order)
        self._reasons: dict[str, Exception] = {}

    def next_bookie(self) -> str | None:
        """Whom to ask now; None if all have failed."""
        return self._left.pop(0) if self._left else None

    def failed(self, bookie: str, reason: Exception) -> None:
        """This replica gave no good answer."""
        self._reasons[bookie] = reason

    def error(self) -> LedgerReadError:
        """What to raise when nobody is left to ask. One harder error outweighs all denials."""
        kind = LedgerReadError
        if self._reasons and all(is_negative(reason) for reason in self._reasons.values()):
            kind = NoSuchEntryError
        return kind(self._ledger_id, self._entry_id, self._reasons)


class LacQuery:
    """Asking the bookies of an ensemble how far the ledger is confirmed."""

    def __init__(self, ledger_id: int, bookies: Sequence[str], *, write_quorum: int, ack_quorum: int) -> None:
        self.lac = -1
        self.length_bytes = 0  # as the entry that carried ``lac`` has it: its own length, not the LAC's
        self._ledger_id = ledger_id
        self._bookies = list(bookies)
        self._quorums = (len(bookies), write_quorum, ack_quorum)
        self._known: set[int] = set()
        self._reasons: dict[str, Exception] = {}

    def answered(self, bookie: str, entry: Entry) -> None:
        """A bookie showed an entry, whose digest is good; it carries a LAC."""
        self.told(bookie, entry.lac, entry.length_bytes)

    def told(self, bookie: str, lac: int, length_bytes: int = 0) -> None:
        """A bookie showed, under a good digest, that entries up to ``lac`` are confirmed."""
        self._known.add(self._bookies.index(bookie))
        if lac > self.lac:
            self.lac, self.length_bytes = lac, length_bytes

    def failed(self, bookie: str, reason: Exception) -> None:
        """A bookie has nothing of the ledger, which is an answer; or it failed, which is none."""
        if is_negative(reason):
            self._known.add(self._bookies.index(bookie))
        else:
            self._reasons[bookie] = reason

    @property
    def is_covered(self) -> bool:
        """No entry can have been acknowledged by the bookies that gave no answer alone."""
        size, write_quorum, ack_quorum = self._quorums
        return covers(self._known, size, write_quorum, ack_quorum)

    @property
    def is_exhausted(self) -> bool:
        """All have answered or failed."""
        return len(self._known) + len(self._reasons) >= len(self._bookies)

    @property
    def reasons(self) -> dict[str, Exception]:
        """Why bookies gave no answer."""
        return self._reasons

    def error(self) -> LedgerReadError:
        """What to raise when all were asked and too few answered."""
        return LedgerReadError(self._ledger_id, -1, self._reasons)
