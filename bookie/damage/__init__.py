"""Damage to stored data: finding it while the bookie serves, and rebuilding an index from the entry logs.

Inside: the scrubber, the list of damaged entries, the rebuild, the check of a stopped bookie's directory.
Not inside: repair from other replicas (``bookie.healing``). Entry point: ``Scrubber``.
"""

from bookie.damage.scrubber import Scrubber

__all__ = ["Scrubber"]
