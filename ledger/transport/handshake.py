"""TLS and authentication on a new connection, before the first request.

Inside: START_TLS and the TLS handshake, the exchange of an authentication plug-in.
Not inside: dialling, deadlines (``transport``), contexts (``tls``), any mechanism of authentication.
Always: with TLS configured, only START_TLS is sent in clear text, and a failure never falls back to clear
text; tokens are sent after TLS (Java sends the first one before it); a refusal, which a retry does not
mend, is a ``BookieSecurityError`` with the reason that the bookie gave; a side that refuses in TLS sends its
alert.

AUTH is sent in version 3 on every connection: there a bookie answers a wrong secret with a code. In version 2
it closes the connection without a reply.

Source: PerChannelBookieClient.java, AuthHandler.java; docs/protocol.md 1.4, 12.
"""

from __future__ import annotations

import ssl
from collections import deque

import trio

from ledger.auth.auth import AUTH_DISABLED_PLUGIN, ClientAuth
from ledger.codes import Code, Operation
from ledger.errors import BookieSecurityError, BookieUnavailableError, WireError
from ledger.runtime.tls_refusal import refusal_text
from ledger.wire import v2, v3
from ledger.wire.frame import FRAME_BYTES_MAX, FrameBuffer
from ledger.wire.messages import AuthReply, AuthRequest, IncomingReply, StartTlsRequest

EXCHANGES_MAX = 32  # of tokens, on one connection
_ALERT_S = 1.0  # for the peer to take the alert and to close the connection
_UNREAD_BYTES_MAX = 65_536


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
        assert not self._replies  # ``call`` takes the only one
        await self._stream.send_all(frame)
        while not self._replies:
            try:
                chunk = await self._stream.receive_some()
            except trio.BrokenResourceError as exc:
                self._raise_refusal(exc)
                raise BookieUnavailableError(
                    self._bookie, f"broke the connection during the handshake: {exc.__cause__ or exc}"
                ) from None
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

    def _raise_refusal(self, exc: trio.BrokenResourceError) -> None:
        # In TLS 1.3 the client's handshake ends before the bookie checks the client's certificate.
        if is_tls_refusal(exc.__cause__):
            raise BookieSecurityError(self._bookie, f"refused this client in TLS: {exc.__cause__}") from exc


def is_tls_refusal(reason: BaseException | None) -> bool:
    """True if one side of TLS does not accept the other; False if the connection only broke."""
    return isinstance(reason, ssl.SSLError) and not isinstance(
        reason, ssl.SSLEOFError | ssl.SSLZeroReturnError
    )


async def shake_hands(secured: trio.SSLStream[trio.abc.Stream], stream: trio.abc.Stream) -> None:
    """Do the handshake of TLS over ``stream``. If this side refuses, the peer gets the alert that says why.

    Raises:
        trio.BrokenResourceError: The handshake failed; ``__cause__`` has the reason.
    """
    try:
        await secured.do_handshake()
    except trio.BrokenResourceError:
        alert = secured._outgoing.read()  # trio leaves it there
        if alert:
            with trio.move_on_after(_ALERT_S):
                await _send_last(stream, alert)
        raise


async def _send_last(stream: trio.abc.Stream, last: bytes) -> None:
    """Send bytes and wait until the peer closes: closing before it with bytes unread could destroy them."""
    left = _UNREAD_BYTES_MAX
    try:
        await stream.send_all(last)
        while left > 0 and (chunk := await stream.receive_some(left)):
            left -= len(chunk)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass  # the peer has closed already


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
        raise BookieSecurityError(bookie, f"sent no valid reply to START_TLS: {exc}") from None
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
        await shake_hands(secured, stream)
    except trio.BrokenResourceError as exc:
        reason = exc.__cause__ or exc
        kind = BookieSecurityError if is_tls_refusal(reason) else BookieUnavailableError
        raise kind(bookie, f"the TLS handshake with {host} failed: {refusal_text(reason)}") from exc
    return secured


async def authenticate(bookie: str, stream: trio.abc.Stream, auth: ClientAuth) -> None:
    """Exchange tokens until both sides are satisfied. If this raises or is cancelled, close ``stream``.

    Raises:
        BookieSecurityError: One side does not accept the other, or the exchange does not come to an end.
        BookieUnavailableError: The bookie closed the connection.
    """
    # After the TLS handshake Apache's bookie sends a second reply to START_TLS, with an error, while its
    # plug-in is not satisfied yet.
    conversation = _Conversation(bookie, stream, strays_max=1)
    token: bytes | None = auth.first_token()
    for number in range(1, EXCHANGES_MAX + 1):
        assert token is not None  # the loop returns on None
        try:
            request = v3.encode_request(AuthRequest(auth.plugin, token), transaction_id=number)
            incoming = await conversation.call(request)
        except WireError as exc:
            raise BookieSecurityError(bookie, f"sent no valid reply to AUTH: {exc}") from None
        except BookieSecurityError:
            raise
        except BookieUnavailableError as exc:
            # Java's bookie does this if the secret is wrong, and any bookie if it stops.
            kind = BookieSecurityError if token else BookieUnavailableError
            raise kind(
                bookie, f"{exc.reason}, while {auth.plugin!r} authenticated; the secret may be wrong"
            ) from exc
        reply = incoming.reply
        if incoming.operation is not Operation.AUTH:
            raise BookieSecurityError(bookie, f"replied to AUTH with {incoming.operation.name}")
        if not isinstance(reply, AuthReply) or reply.code is not Code.OK:
            # Either the bookie lacks the plug-in or it rejects the token; the reply does not say which.
            raise BookieSecurityError(
                bookie,
                f"refused plug-in {auth.plugin!r} with {reply.code.name}: it does not know the user, the"
                " password or the token, does not let the user connect, or has another plug-in; its log says"
                " which",
            )
        if reply.plugin == AUTH_DISABLED_PLUGIN:
            return
        if reply.plugin != auth.plugin:
            raise BookieSecurityError(bookie, f"replied for plug-in {reply.plugin!r}, not {auth.plugin!r}")
        try:
            token = auth.next_token(reply.payload)
        except ValueError as exc:
            raise BookieSecurityError(bookie, f"{auth.plugin!r} does not accept the bookie: {exc}") from None
        if token is None:
            return
    raise BookieSecurityError(bookie, f"{auth.plugin!r} not satisfied after {EXCHANGES_MAX} exchanges")
