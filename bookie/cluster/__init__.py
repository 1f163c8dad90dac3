"""A bookie as a member of a cluster: all its work with the metadata store.

Inside: cookies, registration, the check before a start, limbo and repair after a loss, the list of live
ledgers, auto-recovery in this process.
Not inside: serving requests (``bookie.requests``).
"""

from bookie.cluster.cookie import Cookie
from bookie.cluster.registration import Registration
from bookie.cluster.startup_check import StartupCheck, begin_startup_check

__all__ = ["Cookie", "Registration", "StartupCheck", "begin_startup_check"]
