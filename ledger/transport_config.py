"""Settings of the connections to bookies.

Source: reference section 10.1 (ClientConfiguration.java), where Java's names and defaults are.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Literal

import attrs
from attrs.validators import ge, gt, in_

from ledger.auth import ClientAuth
from ledger.wire.frame import FRAME_BYTES_MAX


@attrs.frozen(kw_only=True)
class TransportConfig:
    """How a client talks to bookies."""

    add_version: Literal[2, 3] = attrs.field(default=2, validator=in_((2, 3)))
    """Protocol version of adds and reads. All else goes over version 3 anyhow."""
    frame_bytes_max: int = attrs.field(default=FRAME_BYTES_MAX, validator=gt(4))
    """Longest frame either way, and so the longest entry that can be written or read; that of the bookies
    (``nettyMaxFrameSizeBytes``), where they allow more."""
    connect_timeout_s: float = attrs.field(default=10.0, validator=gt(0))
    """For the address, TCP, TLS and authentication together."""
    request_timeout_s: float = attrs.field(default=5.0, validator=gt(0))
    """For a call that names no other; a long poll gets its own time on top."""
    add_timeout_s: float = attrs.field(default=5.0, validator=gt(0))
    """A bookie that owes answers to adds for so long is given up, a quarter later at most."""
    queued_bytes_max: int = attrs.field(default=4 * 1024 * 1024, validator=ge(0))
    """Bytes waiting to be sent to one bookie from which on producers should wait (``wait_writable``)."""
    tls: ssl.SSLContext | None = None
    """With a context every connection is upgraded, or fails; see ``ledger.tls.client_context``."""
    auth: Callable[[], ClientAuth] | None = None
    """Makes the authentication of one connection; None: bookies are expected to want none."""
