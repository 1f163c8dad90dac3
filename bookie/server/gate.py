"""The gate of a connection that must use TLS or authenticate before it may do anything else.

    closed --START_TLS--> closed, in TLS --tokens or certificate--> open
       |                      |
       +--- refused ----------+--> the connection ends

Inside: which frames pass, the reply to all others, the exchange of tokens.
Not inside: mechanisms (``bookie.auth``), TLS itself and the deadline (``connection``).
After START_TLS the peer may send ``EARLY_FRAMES_MAX`` frames of AUTH in clear text, as Apache's client does;
any other frame closes the connection.

Always: while the gate is closed, no request but START_TLS reaches the session; if TLS is needed, no token is
answered in clear text; the exchange ends after ``EXCHANGES_MAX`` tokens.

| before authentication | version 3 | version 2 |
|---|---|---|
| START_TLS | passes | does not exist |
| an empty first AUTH in clear text where TLS is needed | waits ``EARLY_TOKEN_S`` for START_TLS | the same |
| AUTH for another plug-in, or in clear text where TLS is needed | EUA | the connection closes |
| the plug-in refuses a token | EUA, then the connection closes | the connection closes |
| add, read; also if the plug-in refuses the certificate | EUA | EUA |
| anything else | EUA | the connection closes |

Source: AuthHandler.ServerSideHandler in AuthHandler.java; docs/protocol.md 12.1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import attrs

from bookie.requests.replies import refusal
from bookie.requests.session import AUTH_DISABLED, SLOW_FRAMES_MAX, ClientSession
from ledger.auth.authentication import (
    AuthProvider,
    AuthRefusedError,
    AuthStep,
    PeerCertificate,
    PeerIdentity,
    certificate_identity,
)
from ledger.codes import Code, Operation
from ledger.errors import WireError
from ledger.wire import v2, v3
from ledger.wire.messages import (
    AddRequest,
    AuthReply,
    AuthRequest,
    IncomingRequest,
    ReadRequest,
    RefusedReply,
    StartTlsRequest,
)

EXCHANGES_MAX = 32  # tokens of one connection, as the client allows
FRAME_BYTES_MAX = 65_536  # of a peer that is not authenticated
EARLY_TOKEN_S = 2.0
EARLY_FRAMES_MAX = 2  # AUTH frames in clear text after START_TLS
_QUOTED = re.compile(r"""'[^']*'|"[^"]*"|[0-9]+""")
UNENCRYPTED = "unencrypted bytes follow START_TLS; the peer must wait for the reply first"


class RefusedError(WireError):
    """The peer proves no identity that may connect; ``kind`` says why, without what the peer sent."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.kind = _QUOTED.sub("", message)


class Gate:
    """The state of one connection until its peer is authenticated."""

    def __init__(
        self,
        session: ClientSession,
        send: Callable[[bytes], None],
        provider: AuthProvider | None,
        *,
        needs_tls: bool,
        on_open: Callable[[], None],
        on_early_token: Callable[[], None],
    ) -> None:
        """Args:
        on_early_token: Called when a token waits for START_TLS; call ``refuse_early_token`` later.
        """
        self.is_open = False
        self.refused: str | None = None  # why; the connection must end after its replies are sent
        self.denial: str | None = None  # why the last request was refused, for the log
        self.rejected: str | None = None  # why its certificate opens nothing; every request is refused
        self._session = session
        self._send = send
        self._on_open = on_open
        self._on_early_token = on_early_token
        self._plugin = None if provider is None else provider.plugin
        self._auth = None if provider is None else provider.open()
        self._lacks_tls = needs_tls or (provider is not None and provider.needs_tls)
        self._certificate: PeerCertificate | None = None
        self._waiting: IncomingRequest | None = None  # an empty first token, sent around START_TLS
        self._exchanges = 0
        self._is_upgrading = False  # from START_TLS until TLS begins
        self._early_frames = 0  # those that came before TLS began, all in clear text

    def __repr__(self) -> str:
        state = "open" if self.is_open else "closed" if self.refused is None else "refused"
        return f"<Gate {state}>"

    @property
    def takes_early_tokens(self) -> bool:
        """True if the peer may send its first token in clear text after the START_TLS that it has sent.

        Not after one that came in the chunk of its last token: the session has taken that one.
        """
        return self._auth is not None and self._is_upgrading

    def handle(self, data: bytes, spans: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
        """Handle the frames of one chunk. Frames after the last token go to the session.

        Returns:
            As ``ClientSession.handle``.

        Raises:
            WireError: A frame is no message, or one that closes the connection.
        """
        for index, (start, end) in enumerate(spans):
            if self.refused is not None:
                break
            if self.is_open and not self._is_upgrading:
                return self._session.handle(data, spans[index:])
            if index == SLOW_FRAMES_MAX:
                return spans[index:]
            self._session.slow_count += 1
            self._handle_frame(data, start, end)
        return ()

    def refuse_early_token(self) -> None:
        """The peer has had enough time to send START_TLS after its first token.

        Raises:
            WireError: The token is of version 2, so the connection closes.
        """
        if self._waiting is not None and not self._is_upgrading:
            incoming, self._waiting = self._waiting, None
            self._refuse(incoming)

    def on_tls(self, certificate: PeerCertificate | None) -> None:
        """The connection uses TLS from now on.

        Raises:
            WireError: The plug-in refuses the certificate of a peer that it took in clear text.
        """
        self._lacks_tls = self._is_upgrading = False
        self._certificate = certificate
        if self._auth is None:
            self._open(None if certificate is None else certificate_identity(certificate))
            return
        try:
            identity = self._auth.on_tls(certificate)
        except AuthRefusedError as exc:
            if self.is_open:
                raise RefusedError(f"authentication by {self._plugin!r} failed: {exc}") from exc
            self.rejected = str(exc)
            return
        if self.is_open:
            assert self._session.identity is not None  # ``_open`` has set the identity of its plug-in
            self._session.identity = attrs.evolve(self._session.identity, certificate=certificate)
        elif identity is not None:
            self._open(identity)
        elif self._waiting is not None:
            incoming, self._waiting = self._waiting, None
            assert isinstance(incoming.request, AuthRequest)  # only ``_handle_frame`` keeps one, of AUTH
            self._take_token(incoming, incoming.request.payload)

    def _handle_frame(self, data: bytes, start: int, end: int) -> None:
        is_v3 = data[start] >= v3.FIRST_BYTE_MIN
        incoming = (v3 if is_v3 else v2).decode_request(data, start, end)
        if incoming.version > v3.VERSION or (incoming.version == v3.VERSION) is not is_v3:
            raise WireError(f"a request of protocol version {incoming.version} before authentication")
        if self._is_upgrading:
            self._early_frames += 1
            if self._early_frames > EARLY_FRAMES_MAX:
                raise WireError(UNENCRYPTED)
        match incoming.request:
            case AuthRequest() if self.is_open:
                # Apache's client sends one token too many.
                self._send(self._session.encode(incoming, AuthReply(Code.OK, AUTH_DISABLED, b"")))
            case AuthRequest(plugin, token) if plugin == self._plugin:
                # Apache's client sends START_TLS and its first token, both in clear text, without waiting for
                # a reply, in this order or the other. If TLS is optional and the token came first, the
                # exchange has begun, and continues in clear text until TLS begins.
                if not self._lacks_tls and (self._exchanges or not self._is_upgrading):
                    self._take_token(incoming, token)
                elif (
                    not token and self._waiting is None and (self._is_upgrading or self._session.may_upgrade)
                ):
                    self._waiting = incoming
                    if not self._is_upgrading:
                        self._on_early_token()
                else:
                    self._refuse(incoming)
            case _ if self._is_upgrading:
                self._refuse(incoming)
            case StartTlsRequest():
                self._is_upgrading = self._session.may_upgrade
                self._session.handle(data, [(start, end)])
            case _:
                self.refuse_early_token()
                self._refuse(incoming)

    def _take_token(self, incoming: IncomingRequest, token: bytes) -> None:
        assert self._auth is not None  # ``_plugin`` is None without it, and no AUTH names None
        assert self._plugin is not None  # likewise
        self._exchanges += 1
        try:
            if self.rejected is not None:
                raise AuthRefusedError(self.rejected)
            if self._exchanges > EXCHANGES_MAX:
                raise AuthRefusedError(f"not authenticated after {EXCHANGES_MAX} tokens")
            step: AuthStep = self._auth.answer(token)
        except AuthRefusedError as exc:
            if incoming.version != 3:
                raise RefusedError(f"authentication by {self._plugin!r} failed: {exc}") from exc
            self.refused = f"authentication by {self._plugin!r} failed: {exc}"
            self._refuse(incoming)
            return
        self._send(self._session.encode(incoming, AuthReply(Code.OK, self._plugin, step.token)))
        if step.identity is not None:
            self._open(step.identity)

    def _open(self, identity: PeerIdentity | None) -> None:
        if identity is not None and identity.certificate is None:
            identity = attrs.evolve(identity, certificate=self._certificate)
        self._session.identity = identity
        self.is_open = True
        self._on_open()

    def _refuse(self, incoming: IncomingRequest) -> None:
        if self._is_upgrading:
            raise WireError(UNENCRYPTED)
        if self.refused is None and self.rejected is None:
            before = "TLS" if self._lacks_tls else "authentication"
            is_token = isinstance(incoming.request, AuthRequest)
            what = f"a token, which {before} must precede or another plug-in expects" if is_token else None
            self.denial = f"sent {what or f'{incoming.operation.name} before {before}'}"
        if incoming.version == 3:
            reply: RefusedReply = RefusedReply(Code.UNAUTHORIZED, incoming.operation)
            self._send(self._session.encode(incoming, reply))
        elif isinstance(incoming.request, (AddRequest, ReadRequest)):
            self._send(self._session.encode(incoming, refusal(incoming, Code.UNAUTHORIZED)))
        else:
            raise WireError(
                f"the peer sent {incoming.operation.name} before"
                f" {'TLS' if self._lacks_tls else 'authentication'}"
            )


def is_start_tls(data: bytes, start: int, end: int) -> bool:
    """True if this frame is START_TLS."""
    return (
        data[start] >= v3.FIRST_BYTE_MIN
        and v3.decode_request(data, start, end).operation is Operation.START_TLS
    )
