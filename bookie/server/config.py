"""Limits of a bookie's connections.

Source: ServerConfiguration.java; docs/protocol.md 10.2.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable

import attrs

from bookie.limits import RECORD_BYTES_MAX
from ledger.auth.authentication import AuthProvider
from ledger.wire.frame import FRAME_BYTES_MAX


@attrs.frozen(kw_only=True)
class ServerConfig:
    """Limits of each connection, and of all together.

    All connections hold at most ``total_bytes_max``, plus ``share_bytes_min`` and one entry for each. This
    counts replies not sent yet, replies being made and incomplete frames. While this memory is tight, a
    connection that makes no progress for ``stalled_s`` is closed.
    """

    # Of received frames: not longer than the storage can keep. Replies may be longer.
    frame_bytes_max: int = attrs.field(
        default=FRAME_BYTES_MAX,
        validator=attrs.validators.and_(attrs.validators.ge(1024), attrs.validators.le(RECORD_BYTES_MAX)),
    )
    receive_bytes: int = 131_072  # received from a socket at once
    reply_queue_bytes_max: int = 16_777_216  # beyond it nothing more is received from the peer
    total_bytes_max: int = attrs.field(default=268_435_456, validator=attrs.validators.ge(1 << 20))
    share_bytes_min: int = attrs.field(default=65_536, validator=attrs.validators.gt(0))
    connections_max: int = attrs.field(default=0, validator=attrs.validators.ge(0))  # 0: no limit
    # A connection is closed if it makes no progress for this time: before its first frame is whole,
    first_frame_timeout_s: float = attrs.field(default=30.0, validator=attrs.validators.gt(0))
    frame_timeout_s: float = attrs.field(default=60.0, validator=attrs.validators.gt(0))  # in a later frame
    stalled_s: float = attrs.field(default=10.0, validator=attrs.validators.gt(0))
    response_timeout_s: float | None = None  # close a peer that takes no reply bytes for this time
    adds_in_progress_max: int = 0  # of all connections; 0: only memory and the journal limit them
    reads_in_progress_max: int = 0
    deferred_workers_max: int = attrs.field(default=8, validator=attrs.validators.ge(1))
    deferred_queue_max: int = attrs.field(default=1024, validator=attrs.validators.ge(1))
    # Beyond these a request gets TOO_MANY_REQUESTS. Reads that wait for the disk, and adds that wait for it
    # because their entry is held already; 0: no limit. All connections together may have eight times as many.
    pending_reads_max: int = attrs.field(default=10_000, validator=attrs.validators.ge(0))
    pending_adds_max: int = attrs.field(default=10_000, validator=attrs.validators.ge(0))
    lists_max: int = attrs.field(default=4, validator=attrs.validators.ge(1))  # lists of entries
    long_polls_max: int = attrs.field(default=10_000, validator=attrs.validators.ge(1))
    all_long_polls_max: int = attrs.field(default=100_000, validator=attrs.validators.ge(1))
    batch_bytes_max: int = 5_242_880
    tls_handshake_s: float = 10.0
    tls: Callable[[], ssl.SSLContext] | None = None  # the context of the next connection
    tls_required: bool = False  # answer nothing but START_TLS in clear text
    # None: every peer that may connect may do everything.
    auth: AuthProvider | None = attrs.field(default=None, repr=False)
    authentication_s: float = attrs.field(default=10.0, validator=attrs.validators.gt(0))
    tcp_keepalive: bool = True
