"""Which logs a member of a group claims and gives up: pure rules.

Inside: decisions of one member from one look at all of them. Not inside: looking and claiming (``member``).
Always: when no member comes or goes, each log is held, the members' numbers of logs differ by one at most,
and then no member gives up anything, after a bounded number of looks.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping


def to_claim(member: str, holders: Mapping[str, str | None], members: Collection[str]) -> list[str]:
    """The free logs that a member tries to claim now, in the order of its tries.

    Args:
        holders: Each log to the member that holds it; None if it is free.
        members: Those that live, and maybe this one.
    """
    everyone = {*members, member}
    fair_max = -(-len(holders) // len(everyone))
    count = sum(holder == member for holder in holders.values())
    free = [log for log, holder in holders.items() if holder is None]
    # Each member begins elsewhere, so that they do not all try the same log.
    free.sort(key=lambda log: zlib.crc32(f"{member} {log}".encode()))
    return free[: max(0, fair_max - count)]


def to_give_up(member: str, holders: Mapping[str, str | None], members: Collection[str]) -> str | None:
    """The log that a member gives up, so that a member with fewer logs gets one; None if it keeps all."""
    counts = dict.fromkeys(sorted({*members, member}), 0)
    for holder in holders.values():
        if holder in counts:
            counts[holder] += 1
    most = max(counts.values())
    if most - min(counts.values()) < 2 or any(holder is None for holder in holders.values()):
        return None  # fair, or a free log is about to go to the member with few
    first = next(each for each, count in counts.items() if count == most)
    if first != member:
        return None  # one log at a time: all members see the same, and one moves
    return max(log for log, holder in holders.items() if holder == member)
