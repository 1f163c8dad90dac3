"""Which bookies hold an entry, and what may be concluded from those that answered.

Inside: pure rules over indices of an ensemble. Not inside: bookie names, requests, time.
Always: ``1 <= ack_quorum <= write_quorum <= ensemble_size``; indices count from 0; entry ids are 64-bit
(Java's writers since 4.16 truncate to 32 bits when sending; readers there and everywhere do not).

Source: RoundRobinDistributionSchedule.java; reference sections 5.2, 7.2, 7.3.
"""

from __future__ import annotations

from collections.abc import Collection


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
    """The write set of every entry, to be looked up by ``entry_id % ensemble_size``."""
    return tuple(write_set(first, ensemble_size, write_quorum) for first in range(ensemble_size))


def covers(known: Collection[int], ensemble_size: int, write_quorum: int, ack_quorum: int) -> bool:
    """True once no entry can have been acknowledged by the silent bookies alone.

    Args:
        known: Indices of the bookies that gave a trustworthy answer: an entry whose digest is good, or
            "no such entry" / "no such ledger" from one that knows. Errors and silence are not known.
    """
    return all(
        sum((first + i) % ensemble_size not in known for i in range(write_quorum)) < ack_quorum
        for first in range(ensemble_size)
    )


def negatives_needed(write_quorum: int, ack_quorum: int) -> int:
    """How many bookies of a write set must deny an entry before no ack quorum can hold it."""
    return write_quorum - ack_quorum + 1
