"""Which entries of a ledger lack replicas, by the lists of entries that its bookies give.

A check that reads the first and the last entry of each fragment misses a hole between them. A list of entries
costs one request for each bookie and shows every hole.

Inside: the counting, as a machine. Not inside: the requests (``entry_lists``), which ledgers are checked,
marking (``auditor``).
Always: an entry counts as held only by bookies of its write set. The work grows with the bytes of the lists,
never with the number of entries that the metadata or a list names: a hostile bookie may name any. A list says
what a bookie's index has; damage is found by reading.

Source: AuditorReplicasCheckTask.java; docs/protocol.md 3.6; docs/autorecovery.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import attrs

from ledger.catalog.availability import Availability
from ledger.fragments.fragments import Fragment

RANGE_ENTRIES_MAX = 4096  # counted between two checkpoints of the loop
LOOKED_MAX = 1_000_000  # entries of one ledger, besides those that each new part of a list needs
NOTHING = Availability(())


@attrs.define
class ReplicaFindings:
    """The result of one check of all ledgers. A ledger may count in several lines."""

    ledgers: int = 0  # closed ledgers that were looked at
    unknown: int = 0  # a bookie gave no list
    without_replica: int = 0  # ledgers with an entry that no bookie has
    below_ack_quorum: int = 0
    below_write_quorum: int = 0
    marked: int = 0
    at_ms: int = 0  # the end of the check, epoch milliseconds


@attrs.define
class ReplicaCount:
    """The count of one ledger's replicas, range by range. A machine."""

    fragments: Sequence[Fragment]
    ack_quorum: int
    held: Mapping[str, Availability]
    is_without_replica: bool = False
    is_below_ack_quorum: bool = False
    is_below_write_quorum: bool = False
    lacking: set[str] = attrs.field(factory=set)  # bookies that lack an entry

    def ranges(self) -> Iterator[tuple[Fragment, int, int]]:
        """What ``count`` is to be called with: a fragment, a first and a last entry.

        Each other entry repeats one of these. After ``LOOKED_MAX`` entries, more than ordinary lists need,
        only one round of the ensemble is looked at in each part of the lists.
        """
        left = LOOKED_MAX
        for fragment in self.fragments:
            lists = [self.held[bookie] for bookie in fragment.bookies]
            for first, last, period in parts_of(fragment, lists):
                count = min(last - first + 1, period, max(left, len(lists)))
                left -= count
                for part in in_ranges(first, first + count - 1):
                    yield fragment, *part

    def count(self, fragment: Fragment, first: int, last: int) -> None:
        """Count the replicas of some consecutive entries of a fragment."""
        missing = Counter[int]()
        for index, bookie in enumerate(fragment.bookies):
            lost = lacked(fragment, index, self.held[bookie], first, last)
            missing.update(lost)
            if lost:
                self.lacking.add(bookie)
        fewest = fragment.write_quorum - max(missing.values(), default=0)
        self.is_without_replica |= fewest == 0
        self.is_below_ack_quorum |= fewest < self.ack_quorum
        self.is_below_write_quorum |= fewest < fragment.write_quorum


def parts_of(fragment: Fragment, lists: Sequence[Availability]) -> Iterator[tuple[int, int, int]]:
    """The parts of a fragment: first entry, last entry, and after how many entries all lists and the write
    sets repeat.
    """
    first = fragment.first
    while first <= fragment.last:
        found = [one.repeats(first) for one in lists]
        last = min([fragment.last, *(end for end, _ in found if end is not None)])
        yield first, last, math.lcm(len(fragment.bookies), *(period for _, period in found))
        first = last + 1


def in_ranges(first: int, last: int) -> Iterator[tuple[int, int]]:
    """The entries in ranges that are short enough to be counted between two checkpoints of the loop."""
    for start in range(first, last + 1, RANGE_ENTRIES_MAX):
        yield start, min(last, start + RANGE_ENTRIES_MAX - 1)


def lacked(fragment: Fragment, index: int, held: Availability, first: int, last: int) -> list[int]:
    """The entries from ``first`` to ``last`` that belong on the bookie at this index and that it lacks."""
    if held.covers(first, last):
        return []
    return [one for one in range(first, last + 1) if fragment.holds(index, one) and one not in held]
