"""Rules for reading from several replicas: their order, and the meaning of their replies together.

Inside: the order of replicas; one entry read from one replica after another; the LAC from an ensemble.
Not inside: requests, sockets, time (``read.handle``); whether the entry may be read yet (likewise).
Always: an entry is missing only if every replica denied it; a wrong digest is an error of that replica, not a
denial; a LAC counts only when no ack quorum can consist of bookies that did not reply.

Source: ReadOpBase.java, PendingReadOp.java, ReadLastConfirmedOp.java; docs/protocol.md 6.1, 6.4, 7.2, 7.3.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Collection, Iterable, Sequence

from ledger.digest import Entry
from ledger.errors import (
    LedgerReadError,
    NoEntryRefusal,
    NoLedgerRefusal,
    NoSuchEntryError,
    is_refusal,
)
from ledger.metadata import LedgerMetadata
from ledger.quorum import covers, write_set


def is_denial(error: Exception) -> bool:
    """True if the bookie knows that it never got the entry. Errors, limbo and silence prove nothing."""
    return isinstance(error, NoEntryRefusal | NoLedgerRefusal)


def replicas(metadata: LedgerMetadata, entry_id: int) -> list[str]:
    """The bookies that may hold an entry, in the order of its write set."""
    bookies = metadata.ensemble_for(entry_id).bookies
    return [bookies[index] for index in write_set(entry_id, len(bookies), metadata.write_quorum)]


def segment_stop(metadata: LedgerMetadata, entry_id: int) -> int | None:
    """The first entry after ``entry_id`` that another ensemble holds; None if there is none."""
    ensembles = metadata.ensembles
    place = bisect.bisect_right(ensembles, entry_id, key=lambda ensemble: ensemble.first_entry_id)
    return ensembles[place].first_entry_id if place < len(ensembles) else None


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
    """The order in which to try the replicas.

    Writable bookies come first, then read-only ones, then those that failed or were slow lately, then those
    that are not registered. Within each group near ones come first, then the circle from ``start`` on
    decides. Any order is correct. This one stays with one replica, whose caches then hold the reader's
    entries, avoids failing ones, and leaves read-only bookies to readers without a choice.

    Args:
        writable: The registered writable bookies; None if they are unknown.
    """
    circle = list(bookies)
    start %= len(circle) or 1
    circle = circle[start:] + circle[:start]

    def rank(bookie: str) -> tuple[bool, bool, bool, int]:
        is_away = writable is not None and bookie not in writable and bookie not in readonly
        is_unreliable = bookie in suspects or bookie in slow
        return is_away, is_unreliable, bookie in readonly, distance(bookie)

    return sorted(circle, key=rank)


def _refuses(reason: Exception | None) -> bool:
    return reason is not None and is_refusal(reason)


class EntryRead:
    """The read of one entry (or of a batch that begins with it) from one replica after another."""

    def __init__(self, ledger_id: int, entry_id: int, order: Sequence[str]) -> None:
        self._ledger_id, self._entry_id = ledger_id, entry_id
        self._left = list(order)
        self._reasons: dict[str, Exception] = {}

    def next_bookie(self) -> str | None:
        """The replica to try now; None if all were tried."""
        return self._left.pop(0) if self._left else None

    def on_failure(self, bookie: str, reason: Exception) -> None:
        """This replica did not return the entry."""
        self._reasons[bookie] = reason

    def error(self) -> LedgerReadError:
        """The error for a read that all replicas failed; ``NoSuchEntryError`` only if all denied the
        entry."""
        kind = LedgerReadError
        if self._reasons and all(is_denial(reason) for reason in self._reasons.values()):
            kind = NoSuchEntryError
        return kind(self._ledger_id, self._entry_id, self._reasons)


class LacQuery:
    """The LAC of a ledger, from the replies of an ensemble's bookies."""

    def __init__(self, ledger_id: int, bookies: Sequence[str], *, write_quorum: int, ack_quorum: int) -> None:
        self.lac = -1
        self.length_bytes = 0  # of the ledger up to the entry that carried ``lac``, not up to the LAC
        self._ledger_id = ledger_id
        self._index_of = {bookie: index for index, bookie in enumerate(bookies)}
        self._quorums = (len(bookies), write_quorum, ack_quorum)
        self._known: set[int] = set()
        self._reasons: dict[str, Exception] = {}

    def on_entry(self, bookie: str, entry: Entry) -> None:
        """A bookie returned an entry with a good digest; the entry carries a LAC."""
        self.on_lac(bookie, entry.lac, entry.length_bytes)

    def on_lac(self, bookie: str, lac: int, length_bytes: int = 0) -> None:
        """A bookie returned, with a good digest, that entries up to ``lac`` are confirmed."""
        self._known.add(self._index_of[bookie])
        if lac > self.lac:
            self.lac, self.length_bytes = lac, length_bytes

    def on_failure(self, bookie: str, reason: Exception) -> None:
        """A bookie returned no LAC. A denial (the bookie has no entry of the ledger) counts as a reply."""
        if is_denial(reason):
            self._known.add(self._index_of[bookie])
        else:
            self._reasons[bookie] = reason

    @property
    def is_covered(self) -> bool:
        """True if no entry can have been acknowledged only by bookies that did not reply."""
        size, write_quorum, ack_quorum = self._quorums
        return covers(self._known, size, write_quorum, ack_quorum)

    @property
    def is_exhausted(self) -> bool:
        """True if every bookie has replied or failed."""
        return len(self._known) + len(self._reasons) >= len(self._index_of)

    @property
    def is_refused(self) -> bool:
        """True if this client can never cover the ensemble, because bookies refuse it for good."""
        others = {i for name, i in self._index_of.items() if not _refuses(self._reasons.get(name))}
        return not covers(others, *self._quorums)

    @property
    def reasons(self) -> dict[str, Exception]:
        """For each bookie that failed, the reason."""
        return self._reasons

    def error(self) -> LedgerReadError:
        """The error for a query that too few bookies replied to."""
        return LedgerReadError(self._ledger_id, None, self._reasons)
