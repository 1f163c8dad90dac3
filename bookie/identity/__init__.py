"""Which disks belong to which bookie of which cluster.

Inside: addresses, cookies on the disks and in the metadata store, the number that tells an old copy of disks.
Not inside: what a bookie does when its disks are not its own (``bookie.cluster``).
Entry point: ``Cookie``.
"""

from bookie.identity.cookie import Cookie

__all__ = ["Cookie"]
