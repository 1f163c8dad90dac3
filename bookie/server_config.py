"""Limits of a bookie's connections.

Source: reference, section 10.2.
"""

from __future__ import annotations

import ssl

import attrs

from bookie.journal_format import RECORD_BYTES_MAX
from ledger.wire.frame import FRAME_BYTES_MAX


@attrs.frozen(kw_only=True)
class ServerConfig:
    """Limits of each connection, and of all together.

    All connections hold at most ``total_bytes_max``, plus ``share_bytes_min`` and one entry for each: answers
    not sent yet, answers being made, frames half received. While that is tight, a connection that moves
    nothing for ``stalled_s`` is closed.
    """

    # What comes in: no frame that holds more than storage keeps. Answers may be longer than it.
    frame_bytes_max: int = attrs.field(
        default=FRAME_BYTES_MAX,
        validator=attrs.validators.and_(attrs.validators.ge(1024), attrs.validators.le(RECORD_BYTES_MAX)),
    )
    receive_bytes: int = 131_072  # taken from a socket at once
    outbox_bytes_max: int = 16_777_216  # waiting to be sent; beyond it nothing more is read
    total_bytes_max: int = attrs.field(default=268_435_456, validator=attrs.validators.ge(1 << 20))
    share_bytes_min: int = attrs.field(default=65_536, validator=attrs.validators.gt(0))
    stalled_s: float = attrs.field(default=10.0, validator=attrs.validators.gt(0))
    response_timeout_s: float | None = None  # a peer that takes nothing for so long is closed in any case
    adds_in_progress_max: int = 0  # of all connections; 0: as many as memory and journal take
    reads_in_progress_max: int = 0
    slow_workers_max: int = attrs.field(default=8, validator=attrs.validators.ge(1))
    slow_queue_max: int = attrs.field(default=1024, validator=attrs.validators.ge(1))
    long_polls_max: int = attrs.field(default=10_000, validator=attrs.validators.ge(1))
    batch_bytes_max: int = 5_242_880
    tls_handshake_s: float = 10.0
    tls: ssl.SSLContext | None = None
    tcp_keepalive: bool = True
