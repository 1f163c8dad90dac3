"""The fragments of a ledger, and the changes of its metadata after a fragment was copied.

A fragment is the part of a ledger that one ensemble holds. It is final if no entry can be added to it: then
copies of its entries can replace a lost bookie.

Inside: fragments, the entries of each member, the change that puts copies in place. Not inside: requests
(``ledger_check``, ``fragment_copy``).
Always: the last fragment of a ledger that is not closed is never final; a copy replaces a bookie only where
that bookie still is, and never puts a bookie into an ensemble twice.

Source: LedgerChecker.java, LedgerFragment.java, LedgerFragmentReplicator.java; docs/autorecovery.md.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping

import attrs

from ledger.metadata import LedgerMetadata

VERIFIED_MAX = 100_000  # entries of one fragment that are read from one bookie, whatever share is asked for


@attrs.frozen
class Fragment:
    """The entries from ``first`` to ``last``, both inclusive; empty if ``last < first``."""

    first: int  # the key of the ensemble in the metadata
    last: int
    bookies: tuple[str, ...]
    write_quorum: int
    is_final: bool

    def holds(self, index: int, entry_id: int) -> bool:
        """True if an entry of the fragment belongs on the bookie at this index."""
        return (index - entry_id) % len(self.bookies) < self.write_quorum

    def ends_at(self, index: int) -> tuple[int, int] | None:
        """The first and the last entry that belong on the bookie at this index; None if there is none."""
        # Of ``size`` entries the bookie holds ``write_quorum``; the last one is ``index`` modulo ``size``.
        size, write_quorum = len(self.bookies), self.write_quorum
        before = (index - self.first) % size
        first = self.first + max(0, before - write_quorum + 1)
        after = (self.last - index) % size
        last = self.last if (size - after) % size < write_quorum else self.last - after
        return (first, last) if first <= last else None

    def to_verify(self, index: int, percentage: int, rng: random.Random) -> list[int]:
        """The entries to read from the bookie at this index: its first, its last, and a share between."""
        ends = self.ends_at(index)
        if ends is None:
            return []
        first, last = ends
        count = min((last - first + 1) * min(percentage, 100) // 100, VERIFIED_MAX)
        between = rng.sample(range(first, last + 1), count) if count else []
        return sorted({first, last} | {entry for entry in between if self.holds(index, entry)})

    def ranges(self, indices: Collection[int]) -> Iterator[tuple[int, int]]:
        """The consecutive entries that belong on any bookie of these indices: first and last of each
        range."""
        if not indices or self.last < self.first:
            return
        if len(self.bookies) == self.write_quorum:
            yield self.first, self.last
            return
        residues = [any(self.holds(index, entry) for index in indices) for entry in range(len(self.bookies))]
        if all(residues):  # each entry belongs on one of them, however many there are
            yield self.first, self.last
            return
        begin: int | None = None
        for entry in range(self.first, self.last + 1):  # at most two rounds of the ensemble for each range
            if residues[entry % len(residues)]:
                begin = entry if begin is None else begin
            elif begin is not None:
                yield begin, entry - 1
                begin = None
        if begin is not None:
            yield begin, self.last


def fragments_of(metadata: LedgerMetadata, lac: int) -> list[Fragment]:
    """The fragments of a ledger, in the order of their entries.

    Args:
        lac: The last entry of a closed ledger, or the LAC of another one.
    """
    last_entry = metadata.last_entry_id if metadata.is_closed else lac
    found = []
    for number, ensemble in enumerate(metadata.ensembles):
        is_last = number == len(metadata.ensembles) - 1
        last = last_entry if is_last else metadata.ensembles[number + 1].first_entry_id - 1
        # In front of the last ensemble entries are confirmed before the next one begins. But a writer's LAC
        # may have reached too few bookies yet, and a recovery reads from the LAC on: such a fragment waits.
        is_final = metadata.is_closed or (not is_last and lac >= last)
        found.append(
            Fragment(ensemble.first_entry_id, last, ensemble.bookies, metadata.write_quorum, is_final)
        )
    return found


def needs_closing(metadata: LedgerMetadata, lac: int, writable: Collection[str]) -> bool:
    """True if only a recovery can restore the replicas: an open end lies on a bookie that takes no writes."""
    if metadata.is_closed:
        return False
    ends = [metadata.last_ensemble]
    if len(metadata.ensembles) > 1 and lac < metadata.last_ensemble.first_entry_id - 1:
        ends.append(metadata.ensembles[-2])
    return any(bookie not in writable for ensemble in ends for bookie in ensemble.bookies)


@attrs.frozen
class ReplaceReplicas:
    """The entries of one fragment are durable on the new bookies: the change of the metadata."""

    fragment: Fragment
    replacements: Mapping[int, str] = attrs.field(hash=False)  # index in the ensemble to the new bookie

    def apply(self, metadata: LedgerMetadata) -> LedgerMetadata | None:
        """The metadata with the new bookies; None if they no longer fit, or are in place already.

        They do not fit if the fragment is gone or now has other members or another end. Then the copies are
        useless, and the bookies delete them later.
        """
        fragment = self.fragment
        ensembles = metadata.ensembles
        place = next((n for n, one in enumerate(ensembles) if one.first_entry_id == fragment.first), None)
        if place is None or ensembles[place].bookies != fragment.bookies:
            return None
        is_last = place == len(ensembles) - 1
        if is_last and not metadata.is_closed:
            return None
        last = metadata.last_entry_id if is_last else ensembles[place + 1].first_entry_id - 1
        if last != fragment.last:
            return None
        changed = list(fragment.bookies)
        for index, bookie in self.replacements.items():
            changed[index] = bookie
        if len(set(changed)) != len(changed):
            return None
        return metadata.with_replicas(fragment.first, changed)

    def is_in_place(self, metadata: LedgerMetadata) -> bool:
        """True if the metadata name the new bookies at their places."""
        return any(
            ensemble.first_entry_id == self.fragment.first
            and all(ensemble.bookies[index] == new for index, new in self.replacements.items())
            for ensemble in metadata.ensembles
        )
