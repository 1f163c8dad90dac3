"""Connections from a client to bookies.

Inside: dialling, the handshake, matching replies to requests, requests to single bookies.
Not inside: the bytes of a message (``ledger.wire``), proofs of identity (``ledger.auth``), the choice of a
bookie (``ledger.placement``).
Entry point: ``open_transport``.
"""

from ledger.transport.config import TransportConfig
from ledger.transport.dial import Address, Dial, dial_tcp
from ledger.transport.transport import Transport, open_transport

__all__ = ["Address", "Dial", "Transport", "TransportConfig", "dial_tcp", "open_transport"]
