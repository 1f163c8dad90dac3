"""TLS and authentication on a new connection, before the first request.

Inside: START_TLS and the TLS handshake, the exchange of an authentication plug-in.
Not inside: dialling, deadlines (``transport``), contexts (``tls``), any mechanism of authentication.
Always: with TLS configured, only START_TLS is sent in clear text, and a failure never falls back to clear
text; tokens are sent after TLS (Java sends the first one before it).

Source: PerChannelBookieClient.java, AuthHandler.java; docs/protocol.md 1.4, 12.
"""

from __future__ import annotations

import ssl
from collections import deque

import trio

from ledger.auth.auth import AUTH_DISABLED_PLUGIN, ClientAuth
from ledger.codes import Code, Operation
from ledger.errors import BookieSecurityError, BookieUnavailableError, WireError
from ledger.wire import v2, v3
from ledger.wire.frame import FRAME_BYTES_MAX, FrameBuffer
from ledger.wire.messages import AuthReply, AuthRequest, IncomingReply, StartTlsRequest

EXCHANGES_MAX = 32  # of tokens, on one connection


class _Conversation:
    """Requests and replies, one at a time, on a stream that carries nothing else yet."""

    def __init__(self, bookie: str, stream: trio.abc.Stream, *, strays_max: int = 0) -> None:
        """``strays_max``: how many replies to START_TLS are ignored."""
        self._strays_left = strays_max
        self._bookie = bookie
        self._stream = stream
        self._frames = FrameBuffer(FRAME_BYTES_MAX)
        self._replies: deque[IncomingReply] = deque()

    async def call(self, frame: bytes) -> IncomingReply:
        assert not self._replies
        await self._stream.send_all(frame)
        while not self._replies:
            chunk = await self._stream.receive_some()
            if not chunk:
                raise BookieUnavailableError(self._bookie, "closed the connection during the handshake")
            data, payloads = self._frames.feed(bytes(chunk))
            for start, end in payloads:
                decode = v2.decode_reply if data[start] <= 7 else v3.decode_reply
                incoming = decode(data, start, end)
                if incoming.operation is Operation.START_TLS and self._strays_left > 0:
                    self._strays_left -= 1
                else:
                    self._replies.append(incoming)
        if len(self._replies) > 1:
            raise WireError(f"{len(self._replies)} replies to one request of the handshake")
        return self._replies.popleft()


async def start_tls(
    bookie: str, stream: trio.abc.Stream, context: ssl.SSLContext, host: str
) -> trio.abc.Stream:
    """Return the stream inside TLS. If this raises or is cancelled, the caller must close ``stream``.

    Raises:
        BookieSecurityError: The bookie has no TLS, or one side does not accept the other.
        BookieUnavailableError: The bookie closed the connection.
    """
    try:
        incoming = await _Conversation(bookie, stream).call(
            v3.encode_request(StartTlsRequest(), transaction_id=1)
        )
    except WireError as exc:
        raise BookieSecurityError(bookie, f"sent no valid reply to START_TLS: {exc}") from exc
    reply = incoming.reply
    if incoming.operation is not Operation.START_TLS:
        raise BookieSecurityError(bookie, f"replied to START_TLS with {incoming.operation.name}")
    if reply.code is not Code.OK:
        raise BookieSecurityError(
            bookie,
            f"refused TLS with {reply.code.name}; configure TLS there, or turn it off for this client",
        )
    # The length of each frame shows if a stream was cut off, so the closing message of TLS is not needed.
    secured = trio.SSLStream(stream, context, server_hostname=host, https_compatible=True)
    try:
        await secured.do_handshake()
    except trio.BrokenResourceError as exc:
        reason = exc.__cause__ or exc
        raise BookieSecurityError(bookie, f"the TLS handshake with {host} failed: {reason}") from exc
    return secured


async def authenticate(bookie: str, stream: trio.abc.Stream, auth: ClientAuth, version: int) -> None:
    """Exchange tokens until both sides are satisfied. If this raises or is cancelled, close ``stream``.

    Raises:
        BookieSecurityError: One side does not accept the other, or the exchange does not come to an end.
        BookieUnavailableError: The bookie closed the connection.
    """
    # After the TLS handshake Apache's bookie sends a second reply to START_TLS, with an error, while its
    # plug-in is not satisfied yet.
    conversation = _Conversation(bookie, stream, strays_max=1)
    encode = v2.encode_request if version == 2 else v3.encode_request
    token: bytes | None = auth.first_token()
    for number in range(1, EXCHANGES_MAX + 1):
        assert token is not None
        try:
            incoming = await conversation.call(encode(AuthRequest(auth.plugin, token), transaction_id=number))
        except WireError as exc:
            raise BookieSecurityError(bookie, f"sent no valid reply to AUTH: {exc}") from exc
        except BookieUnavailableError as exc:
            # Java's bookie does this if the secret is wrong, and also if it stops.
            raise BookieUnavailableError(
                bookie, f"{exc.reason}, while {auth.plugin!r} authenticated; the secret may be wrong"
            ) from exc
        reply = incoming.reply
        if incoming.operation is not Operation.AUTH:
            raise BookieSecurityError(bookie, f"replied to AUTH with {incoming.operation.name}")
        if not isinstance(reply, AuthReply) or reply.code is not Code.OK:
            # Either the bookie lacks the plug-in or it rejects the token; the reply does not say which.
            raise BookieSecurityError(bookie, f"refused plug-in {auth.plugin!r} with {reply.code.name}")
        if reply.plugin == AUTH_DISABLED_PLUGIN:
            return
        if reply.plugin != auth.plugin:
            raise BookieSecurityError(bookie, f"replied for plug-in {reply.plugin!r}, not {auth.plugin!r}")
        try:
            token = auth.next_token(reply.payload)
        except ValueError as exc:
            raise BookieSecurityError(bookie, f"{auth.plugin!r} does not accept the bookie: {exc}") from exc
        if token is None:
            return
    raise BookieSecurityError(bookie, f"{auth.plugin!r} not satisfied after {EXCHANGES_MAX} exchanges")
