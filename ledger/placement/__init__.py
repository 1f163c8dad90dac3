"""Choosing the bookies of an ensemble, and replacements for failed ones.

Inside: the registered bookies, their locations, their free disk, their failures; the policies.
Not inside: writing to the chosen bookies (``ledger.write``).
Entry point: ``Placer``.
"""

from ledger.placement.config import PlacementConfig, PlacementPolicy
from ledger.placement.membership import Membership, open_membership
from ledger.placement.placer import Placer

__all__ = ["Membership", "PlacementConfig", "PlacementPolicy", "Placer", "open_membership"]
