"""What all handles of one client share: its connections, its view of the metadata store, its settings."""

from __future__ import annotations

import random

import attrs

from ledger.catalog import LedgerCatalog
from ledger.config import ClientConfig
from ledger.membership import Membership
from ledger.placer import Placer
from ledger.transport import Transport


@attrs.frozen
class Cluster:
    """One client's parts, handed to everything it makes."""

    transport: Transport
    catalog: LedgerCatalog
    membership: Membership
    rng: random.Random  # the seam of chance: placement, back-off
    config: ClientConfig
    placer: Placer
