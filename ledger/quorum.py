"""Quorum rules: the bookies of an entry, and the conclusion from the replies of some bookies.

Inside: pure functions over indices of an ensemble. Not inside: bookie names, requests, time.
Always: ``1 <= ack_quorum <= write_quorum <= ensemble_size``; indices count from 0; entry ids have 64 bits
(Java's writers since 4.16 truncate them to 32 bits when sending; Java's readers do not).

Source: RoundRobinDistributionSchedule.java; docs/protocol.md 5.2, 7.2, 7.3.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

AckRule = Callable[[Collection[str]], bool]
"""True if the bookies that acknowledged an entry are in enough fault domains (``placer``). The writer caches
the result for a set of bookies until ``reevaluate``."""


def check_quorums(ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
    """Raise ``ValueError`` unless the three sizes fit together."""
    if not 1 <= ack_quorum <= write_quorum <= ensemble_size:
        raise ValueError(
            f"ensemble_size={ensemble_size}, write_quorum={write_quorum}, ack_quorum={ack_quorum}: "
            "must be ensemble_size >= write_quorum >= ack_quorum >= 1"
        )


def write_set(entry_id: int, ensemble_size: int, write_quorum: int) -> tuple[int, ...]:
    """The indices of the bookies that store the entry, first choice for reading first."""
    return tuple((entry_id + i) % ensemble_size for i in range(write_quorum))


def write_sets(ensemble_size: int, write_quorum: int) -> tuple[tuple[int, ...], ...]:
    """The write sets of all entries; that of an entry is at index ``entry_id % ensemble_size``."""
    return tuple(write_set(first, ensemble_size, write_quorum) for first in range(ensemble_size))


def covers(known: Collection[int], ensemble_size: int, write_quorum: int, ack_quorum: int) -> bool:
    """True if no ack quorum of any entry consists only of bookies outside ``known``.

    Args:
        known: Indices of the bookies with a trustworthy reply: an entry with a good digest, or a denial
            ("no such entry", "no such ledger"). A bookie with an error or without a reply is not known.
    """
    unknown = [index not in known for index in range(ensemble_size)]
    in_set = sum(unknown[:write_quorum])  # of the write set that begins at index 0
    for first in range(ensemble_size):
        if in_set >= ack_quorum:
            return False
        in_set += unknown[(first + write_quorum) % ensemble_size] - unknown[first]
    return True


def denials_needed(write_quorum: int, ack_quorum: int) -> int:
    """The number of denials from a write set after which no ack quorum can hold the entry."""
    return write_quorum - ack_quorum + 1
