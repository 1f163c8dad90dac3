"""The wire protocol between a client and a bookie: frames, messages and the two protocol versions.

Inside: bytes to values and back. Not inside: sockets (``ledger.transport``), digests (``ledger.digest``).
Entry points: the modules ``v2`` and ``v3``, which offer the same functions.
"""

from ledger.wire import v2, v3

__all__ = ["v2", "v3"]
