"""The parts that all handles of one ledger client share: connections, metadata, placement, settings."""

from __future__ import annotations

import random

import attrs

from ledger.catalog.catalog import LedgerCatalog
from ledger.config import ClientConfig
from ledger.placement.membership import Membership
from ledger.placement.placer import Placer
from ledger.transport.transport import Transport


@attrs.frozen
class ClientContext:
    """Made once by ``open_ledger_client`` and passed to every handle and recovery of that client."""

    transport: Transport
    catalog: LedgerCatalog
    membership: Membership
    rng: random.Random  # the only source of chance: placement and back-off; tests seed it
    config: ClientConfig
    placer: Placer
