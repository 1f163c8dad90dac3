"""A bookie as a member of a cluster: joining it, being listed, leaving it.

Inside: registration, the check before a start, erasing a cluster, auto-recovery in this process.
Not inside: whose disks they are (``bookie.identity``), serving requests (``bookie.requests``).
Entry point: ``begin_startup_check``.
"""

from bookie.cluster.registration import Registration
from bookie.cluster.startup_check import StartupCheck, begin_startup_check

__all__ = ["Registration", "StartupCheck", "begin_startup_check"]
