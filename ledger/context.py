"""The parts that all handles of one ledger client share: connections, metadata, placement, settings."""

from __future__ import annotations

import random
from collections.abc import Callable

import attrs

from ledger.catalog.catalog import LedgerCatalog
from ledger.config import ClientConfig
from ledger.placement.membership import Membership
from ledger.placement.placer import Placer
from ledger.transport.transport import Transport

OpenEntryLog = Callable[[int, int, int], int]
"""Opens the entry log with this id for reading, given its device and inode; returns the descriptor, which
belongs to the caller. Raises ``OSError`` if that file is not there, also if another one is in its place."""


@attrs.frozen
class ClientContext:
    """Made once by ``open_ledger_client`` and passed to every handle and recovery of that client."""

    transport: Transport
    catalog: LedgerCatalog
    membership: Membership
    rng: random.Random  # the only source of chance: placement and back-off; tests seed it
    config: ClientConfig
    placer: Placer
    takes_hints: dict[str, bool] = attrs.field(factory=dict)  # by bookie; missing: not known (``lac_hints``)
    open_entry_log: OpenEntryLog | None = None  # None: the bookies' files are out of reach
