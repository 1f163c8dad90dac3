"""TLS and authentication come before the first request, or there is no first request."""

# covers: ledger/auth/auth.py
# covers: ledger/transport/config.py
# covers: ledger/transport/handshake.py

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from ledger.auth.auth import AUTH_DISABLED_PLUGIN
from ledger.auth.tls import client_context
from ledger.codes import Code, Operation
from ledger.errors import BookieSecurityError, BookieUnavailableError
from ledger.transport.pipe import stream_pair
from ledger.transport.transport import Address, TransportConfig, open_transport
from ledger.wire import v2, v3
from ledger.wire.frame import FrameBuffer
from ledger.wire.messages import (
    AuthReply,
    AuthRequest,
    BookieInfoReply,
    BookieInfoRequest,
    IncomingRequest,
    ReadReply,
    ReadRequest,
    RefusedReply,
    Reply,
    StartTlsReply,
    StartTlsRequest,
)
from tests.fakes.certificates import private_copy
from tests.places import GOLDEN_FILES

CERTIFICATES = GOLDEN_FILES / "tls"
B1 = "bookie.test:3181"

ReplyTo = Callable[[IncomingRequest], Reply | bytes | None]


def bookie_context(*, mutual: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATES / "bookie.pem")
    if mutual:
        context.load_verify_locations(CERTIFICATES / "authority.pem")
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def usual_reply(incoming: IncomingRequest) -> Reply | bytes | None:
    match incoming.request:
        case StartTlsRequest():
            return StartTlsReply(Code.OK)
        case ReadRequest():
            return ReadReply(Code.OK, incoming.request.ledger_id, incoming.request.entry_id, b"body")
        case BookieInfoRequest():
            return BookieInfoReply(Code.OK, 2, 1)
        case AuthRequest():
            return AuthReply(Code.OK, AUTH_DISABLED_PLUGIN)
        case _:
            return None


class Bookie:
    """Replies in clear text, and inside TLS after its reply to START_TLS. Records how each request came."""

    def __init__(self, tls: ssl.SSLContext | None = None, reply_to: ReplyTo = usual_reply) -> None:
        self.tls = tls
        self.reply_to = reply_to
        self.seen: list[tuple[bool, int, object]] = []  # inside TLS, version, request

    async def serve(self, stream: trio.abc.Stream) -> None:
        frames = FrameBuffer()
        is_secured = False
        try:
            while chunk := await stream.receive_some():
                data, payloads = frames.feed(bytes(chunk))
                for start, end in payloads:
                    codec = v2 if data[start] <= 7 else v3
                    incoming = codec.decode_request(data, start, end)
                    self.seen.append((is_secured, incoming.version, incoming.request))
                    reply = self.reply_to(incoming)
                    if reply is None:
                        await stream.aclose()
                        return
                    if not isinstance(reply, bytes):
                        reply = codec.encode_reply(
                            reply,
                            version=incoming.version,
                            operation=incoming.operation,
                            transaction_id=incoming.transaction_id,
                        )
                    await stream.send_all(reply)
                    if isinstance(incoming.request, StartTlsRequest) and self.tls is not None:
                        stream = trio.SSLStream(stream, self.tls, server_side=True, https_compatible=True)
                        is_secured = True
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            await trio.aclose_forcefully(stream)  # the client closed the connection, or was refused


async def requests_through(bookie: Bookie, config: TransportConfig) -> list[Reply]:
    async def resolve(_bookie: str) -> Address:
        return Address("bookie.test", 3181)

    async with trio.open_nursery() as nursery:

        async def dial(_address: Address) -> trio.abc.Stream:
            ours, theirs = stream_pair()
            nursery.start_soon(bookie.serve, theirs)
            return ours

        failure: Exception | None = None
        replies: list[Reply] = []
        try:
            async with open_transport(dial, resolve, config) as transport:
                replies.append(await transport.call(B1, ReadRequest(1, 0)))
                replies.append(await transport.call(B1, BookieInfoRequest()))
        except BookieUnavailableError as exc:
            failure = exc
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return replies


def with_tls(**options: object) -> TransportConfig:
    options.setdefault("authorities", CERTIFICATES / "authority.pem")
    return TransportConfig(tls=client_context(**options))  # type: ignore[arg-type]


REPLIES = [ReadReply(Code.OK, 1, 0, b"body"), BookieInfoReply(Code.OK, 2, 1)]


# TLS


async def test_with_tls_only_start_tls_is_sent_in_clear_text() -> None:
    bookie = Bookie(bookie_context())
    assert await requests_through(bookie, with_tls()) == REPLIES
    assert bookie.seen == [
        (False, 3, StartTlsRequest()),
        (True, 2, ReadRequest(1, 0)),
        (False, 3, StartTlsRequest()),
        (True, 3, BookieInfoRequest()),
    ]


async def test_a_bookie_that_requires_a_certificate_gets_the_one_of_the_client(tmp_path: Path) -> None:
    config = with_tls(certificate=private_copy(CERTIFICATES / "client.pem", tmp_path))
    assert await requests_through(Bookie(bookie_context(mutual=True)), config) == REPLIES


async def test_a_client_without_the_required_certificate_raises() -> None:
    # In TLS 1.3 the client learns of it after its own handshake: as a connection that broke.
    with pytest.raises(BookieUnavailableError, match="bookie"):
        await requests_through(Bookie(bookie_context(mutual=True)), with_tls())


async def test_a_certificate_of_an_unknown_authority_is_refused() -> None:
    config = with_tls(authorities=CERTIFICATES / "stranger.pem")
    bookie = Bookie(bookie_context())
    with pytest.raises(
        BookieSecurityError, match=r"TLS handshake with bookie.test failed.*CERTIFICATE_VERIFY"
    ):
        await requests_through(bookie, config)
    assert [request for _, _, request in bookie.seen] == [StartTlsRequest()]


@pytest.mark.parametrize("is_checked", [True, False])
async def test_the_name_in_the_certificate_is_checked_unless_turned_off(is_checked: bool) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATES / "client.pem")  # signed by our authority, but for another name
    config = with_tls(check_host_name=is_checked)
    if is_checked:
        with pytest.raises(BookieSecurityError, match="bookie"):
            await requests_through(Bookie(context), config)
    else:
        assert await requests_through(Bookie(context), config) == REPLIES


def refused_as_v3(code: Code) -> ReplyTo:
    return lambda _incoming: v3.encode_reply(
        RefusedReply(code, Operation.START_TLS), version=3, operation=Operation.START_TLS, transaction_id=1
    )


@pytest.mark.parametrize(
    ("reply_to", "message"),
    [
        (refused_as_v3(Code.BAD_REQUEST), "refused TLS with BAD_REQUEST; configure TLS"),
        (lambda _incoming: b"\0\0\0\x02\x02\x01", "no valid reply to START_TLS"),
        (
            lambda _incoming: v2.add_reply(Code.OK, 1, 1),
            "replied to START_TLS with ADD_ENTRY",
        ),
        (lambda _incoming: v2.add_reply(Code.OK, 1, 1) * 2, "2 replies to one request"),
        (lambda _incoming: None, "closed the connection during the handshake"),
    ],
)
async def test_a_bookie_without_tls_gets_no_request_in_clear_text(reply_to: ReplyTo, message: str) -> None:
    bookie = Bookie(reply_to=reply_to)
    with pytest.raises(BookieUnavailableError, match=message):
        await requests_through(bookie, with_tls())
    assert [request for _, _, request in bookie.seen] == [StartTlsRequest()]


def test_a_certificate_file_without_its_key_raises_and_does_not_prompt(tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLError):
        client_context(certificate=private_copy(CERTIFICATES / "authority.pem", tmp_path))


def test_old_versions_of_tls_are_off() -> None:
    assert client_context().minimum_version is ssl.TLSVersion.TLSv1_2
    assert client_context().verify_mode is ssl.CERT_REQUIRED


# Authentication


class Counting:
    """A plug-in whose two sides count to three."""

    plugin = "counting"

    def first_token(self) -> bytes:
        return b"1"

    def next_token(self, challenge: bytes) -> bytes | None:
        if not challenge.isdigit():
            raise ValueError(f"{challenge!r} is no number")
        return None if challenge == b"4" else b"3"


def counting_bookie(incoming: IncomingRequest) -> Reply | bytes | None:
    if isinstance(incoming.request, AuthRequest):
        return AuthReply(Code.OK, "counting", b"%d" % (int(incoming.request.payload) + 1))
    return usual_reply(incoming)


async def test_tokens_are_exchanged_before_the_first_request_inside_tls() -> None:
    bookie = Bookie(bookie_context(), counting_bookie)
    config = TransportConfig(tls=with_tls().tls, auth=Counting)
    assert await requests_through(bookie, config) == REPLIES
    assert bookie.seen[:4] == [
        (False, 3, StartTlsRequest()),
        (True, 3, AuthRequest("counting", b"1")),
        (True, 3, AuthRequest("counting", b"3")),
        (True, 2, ReadRequest(1, 0)),
    ]


async def test_one_stray_reply_to_start_tls_is_ignored() -> None:
    stray = v3.encode_reply(StartTlsReply(Code.IO_ERROR), version=3, operation=Operation.START_TLS)

    def reply_to(strays: int) -> ReplyTo:
        def reply(incoming: IncomingRequest) -> Reply | bytes | None:
            if not isinstance(incoming.request, AuthRequest):
                return usual_reply(incoming)
            answer = AuthReply(Code.OK, AUTH_DISABLED_PLUGIN)
            return stray * strays + v3.encode_reply(answer, version=3, operation=Operation.AUTH)

        return reply

    assert await requests_through(Bookie(reply_to=reply_to(1)), TransportConfig(auth=Counting)) == REPLIES
    with pytest.raises(BookieSecurityError, match="2 replies"):
        await requests_through(Bookie(reply_to=reply_to(2)), TransportConfig(auth=Counting))


async def test_a_bookie_without_authentication_is_accepted() -> None:
    bookie = Bookie()
    assert await requests_through(bookie, TransportConfig(auth=Counting)) == REPLIES
    assert bookie.seen[0] == (False, 3, AuthRequest("counting", b"1"))


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (RefusedReply(Code.UNAUTHORIZED, Operation.AUTH), "refused plug-in 'counting' with UNAUTHORIZED"),
        (AuthReply(Code.UNAUTHORIZED, "counting"), "refused plug-in 'counting' with UNAUTHORIZED"),
        (AuthReply(Code.OK, "sasl"), "replied for plug-in 'sasl'"),
        (AuthReply(Code.OK, "counting", b"x"), "does not accept the bookie: b'x' is no number"),
        (AuthReply(Code.OK, "counting", b"2"), "not satisfied after 32 exchanges"),
        (None, "closed the connection during the handshake"),
        (b"\0\0\0\x02\x02\x01", "no valid reply to AUTH"),
    ],
)
async def test_a_failed_authentication_raises_the_reason(reply: Reply | bytes | None, message: str) -> None:
    def reply_to(incoming: IncomingRequest) -> Reply | bytes | None:
        return reply if isinstance(incoming.request, AuthRequest) else usual_reply(incoming)

    bookie = Bookie(reply_to=reply_to)
    with pytest.raises(BookieUnavailableError, match=message):
        await requests_through(bookie, TransportConfig(add_version=3, auth=Counting))
    assert all(isinstance(request, AuthRequest) for _, _, request in bookie.seen)
