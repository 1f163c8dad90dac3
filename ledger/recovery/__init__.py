"""Recovery of a ledger whose writer is gone: fence it, find its end, close it there.

Inside: the decision as a machine, and the shell that sends its requests to bookies.
Not inside: reads by applications (``ledger.read``).
Entry point: ``recover_ledger``.
"""

from ledger.recovery.opening import recover_ledger

__all__ = ["recover_ledger"]
