"""Settings of the connections to bookies.

Source: ClientConfiguration.java; docs/protocol.md 10.1, where Java's names and defaults are.
"""

from __future__ import annotations

import ssl
from typing import Literal

import attrs
from attrs.validators import ge, gt, in_

from ledger.auth.auth import AuthFactory
from ledger.wire.frame import FRAME_BYTES_MAX


@attrs.frozen(kw_only=True)
class TransportConfig:
    """Settings of a client's connections to bookies."""

    add_version: Literal[2, 3] = attrs.field(default=2, validator=in_((2, 3)))
    """Protocol version of adds and reads. All other requests use version 3, batch reads version 2."""
    frame_bytes_max: int = attrs.field(default=FRAME_BYTES_MAX, validator=gt(4))
    """The longest frame in either direction; it limits the size of entries. Set it to the limit of the
    bookies (``nettyMaxFrameSizeBytes``) if theirs is higher."""
    connect_timeout_s: float = attrs.field(default=10.0, validator=gt(0))
    """For resolving the address, TCP, TLS and authentication together."""
    request_timeout_s: float = attrs.field(default=5.0, validator=gt(0))
    """For a request without its own timeout; a long poll may take this much longer than it may be held."""
    add_timeout_s: float = attrs.field(default=5.0, validator=gt(0))
    """If replies to adds stay out for this long, the connection is given up; at most a quarter of it
    later."""
    queued_bytes_max: int = attrs.field(default=4 * 1024 * 1024, validator=ge(0))
    """If more bytes are queued for one bookie, producers should wait (``wait_writable``)."""
    tls: ssl.SSLContext | None = None
    """With a context, every connection uses TLS or fails; see ``ledger.auth.tls.client_context``."""
    auth: AuthFactory | None = attrs.field(default=None, repr=False)
    """Makes the authentication of one connection: ``ledger.SaslAuth``, ``ledger.TokenAuth`` or
    ``ledger.client_auth``. None if the bookies require none."""

    def __attrs_post_init__(self) -> None:
        if self.tls is None and getattr(self.auth, "needs_tls", False):
            raise ValueError("auth: this plug-in sends its secret over TLS only; set tls too")
