"""The replication that the creator of a ledger asked for, where fewer bookies were there.

One pair of the ledger's custom metadata, which Apache's programs keep and ignore::

    dlog.asked-replication  3/3/2      ensemble size, write quorum, ack quorum

Inside: the value, both directions. Not inside: when a ledger may begin with fewer bookies
(``LedgerClient.create``, ``placement.placer``).
Always: a ledger with its whole replication has no such pair; the ack quorum of the ledger is the asked one.

Source: our own; docs/metadata.md 10.2.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import attrs

ASKED_KEY = "dlog.asked-replication"
_SIZES = re.compile(rb"([1-9][0-9]{0,8})/([1-9][0-9]{0,8})/([1-9][0-9]{0,8})")


@attrs.frozen
class AskedReplication:
    """The sizes that a ledger should have."""

    ensemble_size: int
    write_quorum: int
    ack_quorum: int

    def __str__(self) -> str:
        return f"{self.ensemble_size}/{self.write_quorum}/{self.ack_quorum}"

    @property
    def custom(self) -> dict[str, bytes]:
        """The pair for the ledger's custom metadata."""
        return {ASKED_KEY: str(self).encode()}

    @classmethod
    def of(cls, custom: Mapping[str, bytes]) -> AskedReplication | None:
        """What a ledger's custom metadata ask for; None if the ledger has it, or the pair does not parse."""
        found = _SIZES.fullmatch(custom.get(ASKED_KEY, b""))
        if found is None:
            return None
        asked = cls(*map(int, found.groups()))
        return asked if asked.ensemble_size >= asked.write_quorum >= asked.ack_quorum else None
