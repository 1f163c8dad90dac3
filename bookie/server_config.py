"""Limits of a bookie's connections.

Source: reference, section 10.2.
"""

from __future__ import annotations

import ssl

import attrs

from ledger.wire.frame import FRAME_BYTES_MAX


@attrs.frozen(kw_only=True)
class ServerConfig:
    """Limits of each connection."""

    frame_bytes_max: int = attrs.field(default=FRAME_BYTES_MAX, validator=attrs.validators.ge(1024))
    receive_bytes: int = 131_072  # taken from a socket at once
    outbox_bytes_max: int = 16_777_216  # waiting to be sent; beyond it nothing more is read
    slow_workers_max: int = attrs.field(default=8, validator=attrs.validators.ge(1))
    slow_queue_max: int = attrs.field(default=1024, validator=attrs.validators.ge(1))
    long_polls_max: int = attrs.field(default=10_000, validator=attrs.validators.ge(1))
    batch_bytes_max: int = 5_242_880
    tls_handshake_s: float = 10.0
    tls: ssl.SSLContext | None = None
    tcp_keepalive: bool = True
