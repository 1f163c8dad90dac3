"""Two programs of a cluster that prove to each other who they are, by what each of them has for bookies.

    TLS          both have a certificate of ``tls_authorities``; the subject is the name
    auth sasl    DIGEST-MD5, inside TLS if there is any; the user is the name

Inside: contexts and users for both sides, the handshakes, the name. Not inside: what a name may do.
Always: with TLS nothing is sent in clear text, and both sides verify; with SASL both sides know the password;
a host name proves nothing, since a program's certificate names none; without both nothing is proven.

Source: our own; docs/shared.md, "Who may write". The exchange is that with a bookie (``handshake``).
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping

import attrs
import trio

from ledger.auth.auth import AuthFactory
from ledger.auth.authentication import AuthRefusedError, certificate_identity, parse_certificate
from ledger.auth.sasl import SaslAuth
from ledger.auth.sasl_users import PLUGIN, SaslExchange
from ledger.codes import Code, Operation
from ledger.errors import BookieSecurityError, BookieUnavailableError, SecuritySettingsError
from ledger.runtime.tls_refusal import refusal_text
from ledger.transport.bookie_security import BookieSecurity
from ledger.transport.handshake import authenticate, is_tls_refusal, shake_hands
from ledger.wire import v3
from ledger.wire.frame import FrameBuffer
from ledger.wire.messages import AuthReply, AuthRequest, RefusedReply

TOKEN_BYTES_MAX = 65_536
_ANY_USER = re.compile(".*")


@attrs.frozen
class PeerSecurity:
    """The contexts and secrets of a program that dials others and is dialled by them."""

    dial: ssl.SSLContext | None = None
    listen: ssl.SSLContext | None = None
    login: AuthFactory | None = attrs.field(default=None, repr=False)
    users: Mapping[str, str] | None = attrs.field(default=None, repr=False)


async def prove(
    peer: str, stream: trio.abc.Stream, security: PeerSecurity, host: str
) -> tuple[trio.abc.Stream, str | None]:
    """Prove to a program that was dialled who this one is. The caller closes ``stream`` if this raises.

    Returns:
        The stream to use from now on, and the name that the other program has proven; None: none.

    Raises:
        BookieSecurityError: One side does not accept the other.
        BookieUnavailableError: The other program closed the connection.
    """
    name = None
    if security.dial is not None:
        secured = trio.SSLStream(stream, security.dial, server_hostname=host, https_compatible=True)
        try:
            await shake_hands(secured, stream)
        except trio.BrokenResourceError as exc:
            reason = exc.__cause__ or exc
            kind = BookieSecurityError if is_tls_refusal(reason) else BookieUnavailableError
            raise kind(peer, f"the TLS handshake failed: {refusal_text(reason)}") from exc
        name, stream = _subject(secured), secured
    if security.login is not None:
        try:
            login = security.login()
        except (OSError, ValueError) as exc:
            raise BookieSecurityError(peer, f"this program cannot authenticate: {exc}") from None
        await authenticate(peer, stream, login)
        name = None  # both know the password of this program's user; that is all
    return stream, name


async def examine(stream: trio.abc.Stream, security: PeerSecurity) -> tuple[trio.abc.Stream, str | None]:
    """Let a program that has dialled prove who it is. The caller closes ``stream`` if this raises.

    Returns:
        The stream to use from now on, and the name that it has proven; None: nothing is configured.

    Raises:
        AuthRefusedError, WireError: It has not.
        trio.BrokenResourceError: It has not, or the connection broke.
    """
    name = None
    if security.listen is not None:
        secured = trio.SSLStream(stream, security.listen, server_side=True, https_compatible=True)
        await shake_hands(secured, stream)
        name, stream = _subject(secured), secured
        if name is None:
            raise AuthRefusedError("it sent no certificate")
    if security.users is not None:
        name = await _examine_user(stream, security.users)
    return stream, name


async def _examine_user(stream: trio.abc.Stream, users: Mapping[str, str]) -> str:
    exchange, frames = SaslExchange(users, _ANY_USER), FrameBuffer(TOKEN_BYTES_MAX)
    while chunk := await stream.receive_some():
        data, payloads = frames.feed(bytes(chunk))
        for start, end in payloads:
            incoming = v3.decode_request(data, start, end)
            request = incoming.request
            number = incoming.transaction_id
            try:
                if not isinstance(request, AuthRequest) or request.plugin != PLUGIN:
                    raise AuthRefusedError(f"it sent {incoming.operation.name} before authentication")
                step = exchange.answer(request.payload)
            except AuthRefusedError:
                refusal = RefusedReply(Code.UNAUTHORIZED, Operation.AUTH)
                await stream.send_all(
                    v3.encode_reply(refusal, version=3, operation=Operation.AUTH, transaction_id=number)
                )
                raise
            reply = AuthReply(Code.OK, PLUGIN, step.token)
            await stream.send_all(
                v3.encode_reply(reply, version=3, operation=Operation.AUTH, transaction_id=number)
            )
            if step.identity is not None:
                return step.identity.name
    raise AuthRefusedError("it closed the connection before it was authenticated")


def _subject(secured: trio.SSLStream[trio.abc.Stream]) -> str | None:
    certificate = parse_certificate(secured.getpeercert())
    return None if certificate is None else certificate_identity(certificate).name


def open_peer_security(security: BookieSecurity) -> PeerSecurity:
    """What a program has for bookies, for connections with other programs. Reads the files; blocks.

    Raises:
        SecuritySettingsError: A file cannot be used, or these settings prove nothing to another program.
    """
    dial, listen, login = security.open_for_programs()
    if not isinstance(login, SaslAuth):
        if login is not None and dial is None:
            raise SecuritySettingsError(
                f"auth {security.auth!r} proves nothing to another program; use TLS with a certificate, or"
                " auth 'sasl'"
            )
        return PeerSecurity(dial, listen)
    try:
        return PeerSecurity(dial, listen, login, login.users())
    except (OSError, ValueError) as exc:
        raise SecuritySettingsError(f"auth {security.auth!r}: {exc}") from None
