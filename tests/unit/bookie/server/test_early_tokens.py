"""An AUTH in clear text around START_TLS, as Apache's client sends it."""

from __future__ import annotations

import contextlib
import itertools

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from bookie.server.config import ServerConfig
from bookie.server.gate import EARLY_FRAMES_MAX, EARLY_TOKEN_S
from ledger.auth.authentication import AuthRefusedError, PeerCertificate
from ledger.codes import Code, Operation
from ledger.digest import DigestType, EntryCodec
from ledger.wire import v2, v3
from ledger.wire.messages import (
    AddReply,
    AddRequest,
    AuthReply,
    AuthRequest,
    BookieInfoRequest,
    ReadRequest,
    RefusedReply,
    StartTlsReply,
    StartTlsRequest,
)
from tests.effort import sampled
from tests.unit.bookie.server.gated_bookie import (
    ADD,
    KEY,
    SECRET,
    Certificates,
    Opened,
    Peer,
    Words,
)

FIRST = v3.encode_request(AuthRequest("words", b""))
START_TLS = v3.encode_request(StartTlsRequest())


@pytest.mark.slow
@pytest.mark.parametrize("pieces", [1, 7, 1000])
@pytest.mark.parametrize("is_required", [True, False])
async def test_a_first_token_behind_start_tls_is_answered_inside_tls(
    opened: Opened, certificates: Certificates, pieces: int, is_required: bool
) -> None:
    """Apache's client does not wait for the reply to START_TLS before it sends its first token."""
    config = ServerConfig(auth=Words(), tls=lambda: certificates.bookie, tls_required=is_required)
    peer = opened.connect(config)
    frames = v3.encode_request(StartTlsRequest()) + v2.encode_request(AuthRequest("words", b""))
    for at in range(0, len(frames), pieces):
        await peer.stream.send_all(frames[at : at + pieces])
        await wait_all_tasks_blocked()
    assert await peer.reply() == StartTlsReply(Code.OK)
    stream = trio.SSLStream(
        peer.stream, certificates.client(), server_hostname="bookie.test", https_compatible=True
    )
    secured = Peer(stream)
    assert await secured.reply() == AuthReply(Code.OK, "words", b"?")
    assert await secured.ask(AuthRequest("words", SECRET)) == AuthReply(Code.OK, "words", b"welcome")
    assert await secured.ask(ADD, version=2) == AddReply(Code.OK, 7, 0)
    identity = opened.sessions[0].identity
    assert identity is not None
    assert identity.name == "alice"
    assert identity.certificate is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    "behind",
    [
        v2.encode_request(ADD),
        v3.encode_request(BookieInfoRequest()),
        v2.encode_request(AuthRequest("words", SECRET)),
        v2.encode_request(AuthRequest("words", b"")) * 2,
        v2.encode_request(AuthRequest("other", b"")),
        v3.encode_request(StartTlsRequest()),
        bytes(8),
        b"\x00\x02\x00\x00" + bytes(100_000),
        b"GET / HTTP/1.1",
    ],
)
async def test_anything_else_behind_start_tls_closes_the_connection(
    opened: Opened, certificates: Certificates, behind: bytes, autojump_clock: MockClock
) -> None:
    begin = trio.current_time()
    peer = opened.connect(ServerConfig(auth=Words(), tls=lambda: certificates.bookie))
    await peer.stream.send_all(v3.encode_request(StartTlsRequest()))
    await wait_all_tasks_blocked()
    await peer.stream.send_all(behind)
    assert await peer.reply() == StartTlsReply(Code.OK)
    assert await peer.reply() is None
    peer = opened.connect(ServerConfig(auth=Words(), tls=lambda: certificates.bookie))
    await peer.stream.send_all(v3.encode_request(StartTlsRequest()) + behind)
    assert await peer.reply() in (None, StartTlsReply(Code.OK))
    assert await peer.reply() is None
    assert opened.bookie.storage.ledger(7) is None
    assert trio.current_time() == begin  # not only at a deadline


@pytest.mark.parametrize("requires_auth", [True, False])
async def test_clear_text_of_an_authenticated_peer_behind_start_tls_is_not_served(
    opened: Opened, certificates: Certificates, requires_auth: bool
) -> None:
    """The replies would wait for TLS, which never begins: 1 MB of memory for each request of 20 bytes."""
    auth = Words() if requires_auth else None
    peer = opened.connect(ServerConfig(auth=auth, tls=lambda: certificates.bookie))
    if requires_auth:
        assert await peer.ask(AuthRequest("words", SECRET)) == AuthReply(Code.OK, "words", b"welcome")
    size_bytes = 1_000_000
    entry = EntryCodec(DigestType.CRC32C, b"").pack(7, 0, -1, size_bytes, bytes(size_bytes))
    assert await peer.ask(AddRequest(7, 0, KEY, entry), version=2) == AddReply(Code.OK, 7, 0)
    assert await peer.ask(StartTlsRequest()) == StartTlsReply(Code.OK)
    read = v2.encode_request(ReadRequest(7, 0))
    token = v2.encode_request(AuthRequest("words", b""))
    with contextlib.suppress(trio.BrokenResourceError):
        for _ in range(100):
            await peer.stream.send_all(read + token)
            await wait_all_tasks_blocked()
    assert await peer.reply() is None
    assert opened.server.memory.used_bytes_peak < 4 * size_bytes


@pytest.mark.parametrize("is_before", [True, False])
async def test_tokens_without_end_behind_start_tls_close_the_connection(
    opened: Opened, certificates: Certificates, is_before: bool
) -> None:
    peer = opened.connect(ServerConfig(auth=Words(), tls=lambda: certificates.bookie))
    if is_before:
        assert await peer.ask(AuthRequest("words", b"")) == AuthReply(Code.OK, "words", b"?")
    assert await peer.ask(StartTlsRequest()) == StartTlsReply(Code.OK)
    token = v2.encode_request(AuthRequest("words", SECRET if is_before else b""))
    sent = 0
    with contextlib.suppress(trio.BrokenResourceError):
        for _ in range(10):
            await peer.stream.send_all(token)
            await wait_all_tasks_blocked()
            sent += 1
    assert await peer.reply() is None
    assert sent <= EARLY_FRAMES_MAX + 1


async def in_tls(peer: Peer, certificates: Certificates) -> Peer:
    stream = trio.SSLStream(
        peer.stream, certificates.client(), server_hostname="bookie.test", https_compatible=True
    )
    await stream.do_handshake()
    return Peer(stream)


@pytest.mark.parametrize("pieces", [1, 7, 1000])
async def test_a_first_token_before_start_tls_is_answered_inside_tls_where_tls_is_needed(
    opened: Opened, certificates: Certificates, pieces: int
) -> None:
    """Two threads of Apache's client send START_TLS and the token, so the token may be first."""
    config = ServerConfig(auth=Words(), tls=lambda: certificates.bookie, tls_required=True)
    peer = opened.connect(config)
    frames = v2.encode_request(AuthRequest("words", b"")) + v3.encode_request(StartTlsRequest())
    for at in range(0, len(frames), pieces):
        await peer.stream.send_all(frames[at : at + pieces])
        await wait_all_tasks_blocked()
    assert await peer.reply() == StartTlsReply(Code.OK)
    secured = await in_tls(peer, certificates)
    assert await secured.reply() == AuthReply(Code.OK, "words", b"?")
    assert await secured.ask(AuthRequest("words", SECRET)) == AuthReply(Code.OK, "words", b"welcome")
    assert await secured.ask(ADD, version=2) == AddReply(Code.OK, 7, 0)


@pytest.mark.slow
@pytest.mark.parametrize("version", [2, 3])
async def test_a_first_token_without_start_tls_is_refused_after_a_while(
    opened: Opened, certificates: Certificates, version: int, autojump_clock: MockClock
) -> None:
    config = ServerConfig(auth=Words(), tls=lambda: certificates.bookie, tls_required=True)
    peer = opened.connect(config)
    begin = trio.current_time()
    refused = RefusedReply(Code.UNAUTHORIZED, Operation.AUTH) if version == 3 else None
    assert await peer.ask(AuthRequest("words", b""), version=version) == refused
    assert trio.current_time() == begin + EARLY_TOKEN_S


@pytest.mark.slow
@pytest.mark.parametrize(
    "behind", [AuthRequest("words", SECRET), AuthRequest("words", b""), BookieInfoRequest()]
)
async def test_any_other_request_behind_the_first_token_is_refused_at_once(
    opened: Opened,
    certificates: Certificates,
    behind: AuthRequest | BookieInfoRequest,
    autojump_clock: MockClock,
) -> None:
    config = ServerConfig(auth=Words(), tls=lambda: certificates.bookie, tls_required=True)
    peer = opened.connect(config)
    begin = trio.current_time()
    first = await peer.ask(AuthRequest("words", b""), behind)
    assert isinstance(first, RefusedReply)
    assert first.code is Code.UNAUTHORIZED
    assert trio.current_time() == begin
    assert opened.sessions[0].identity is None


async def test_an_exchange_begun_in_clear_text_may_end_there_where_tls_is_optional(
    opened: Opened, certificates: Certificates
) -> None:
    peer = opened.connect(ServerConfig(auth=Words(), tls=lambda: certificates.bookie))
    await peer.stream.send_all(FIRST + START_TLS)
    assert await peer.reply() == AuthReply(Code.OK, "words", b"?")
    assert await peer.reply() == StartTlsReply(Code.OK)
    # The last one is the empty token that Apache's client sends after its success.
    for behind in (SECRET, b""):
        await peer.stream.send_all(v3.encode_request(AuthRequest("words", behind)))
    secured = await in_tls(peer, certificates)
    assert await secured.reply() == AuthReply(Code.OK, "words", b"welcome")
    assert await secured.reply() == AuthReply(Code.OK, "AuthDisabledPlugin", b"")
    assert await secured.ask(ADD, version=2) == AddReply(Code.OK, 7, 0)
    identity = opened.sessions[0].identity
    assert identity is not None
    assert (identity.name, identity.certificate is not None) == ("alice", True)


async def test_an_authenticated_peer_does_nothing_in_clear_text_behind_start_tls(
    opened: Opened, certificates: Certificates
) -> None:
    peer = opened.connect(ServerConfig(auth=Words(), tls=lambda: certificates.bookie))
    await peer.stream.send_all(FIRST + START_TLS + v3.encode_request(AuthRequest("words", SECRET)))
    await wait_all_tasks_blocked()
    await peer.stream.send_all(v2.encode_request(ADD))
    while await peer.reply() is not None:
        pass
    assert opened.bookie.storage.ledger(7) is None


async def test_a_certificate_that_a_plug_in_refuses_ends_what_began_in_clear_text(
    opened: Opened, certificates: Certificates
) -> None:
    class Choosy(Words):
        def open(self) -> Choosy:
            return self

        def on_tls(self, certificate: PeerCertificate | None) -> None:
            raise AuthRefusedError("not this one")

    peer = opened.connect(ServerConfig(auth=Choosy(), tls=lambda: certificates.bookie))
    await peer.stream.send_all(FIRST + START_TLS)
    await wait_all_tasks_blocked()
    await peer.stream.send_all(v3.encode_request(AuthRequest("words", SECRET)))
    assert await peer.reply() == AuthReply(Code.OK, "words", b"?")
    assert await peer.reply() == StartTlsReply(Code.OK)
    secured = await in_tls(peer, certificates)
    assert await secured.ask(ADD, version=2) is None
    assert opened.bookie.storage.ledger(7) is None


@pytest.mark.slow
@pytest.mark.parametrize("behind", [b"", START_TLS])
async def test_clear_text_behind_the_last_token_with_start_tls_is_not_served(
    opened: Opened, certificates: Certificates, behind: bytes, autojump_clock: MockClock
) -> None:
    """The session, not the gate, has taken a START_TLS that comes in the chunk of the last token."""
    begin, welcome = trio.current_time(), AuthReply(Code.OK, "words", b"welcome")
    for pieces in (1, 2):
        peer = opened.connect(ServerConfig(auth=Words(), tls=lambda: certificates.bookie))
        adds = b"".join(v2.encode_request(ADD) for _ in range(20)) + behind
        frames = v3.encode_request(AuthRequest("words", SECRET)) + START_TLS
        with contextlib.suppress(trio.BrokenResourceError):
            if pieces == 1:
                await peer.stream.send_all(frames + adds)
            else:
                await peer.stream.send_all(frames)
                await wait_all_tasks_blocked()
                await peer.stream.send_all(adds)
        answers = []
        while (reply := await peer.reply()) is not None:
            answers.append(reply)
        assert answers in ([], [welcome], [welcome, StartTlsReply(Code.OK)])
        assert opened.bookie.storage.ledger(7) is None
    assert trio.current_time() == begin  # not only at a deadline


STEPS = {
    "START_TLS": START_TLS,
    "first": FIRST,
    "secret": v3.encode_request(AuthRequest("words", SECRET)),
    "secret in version 2": v2.encode_request(AuthRequest("words", SECRET)),
    "add": b"",  # of a ledger of its own
    "add in version 3": b"",
}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["optional", "required", "without a plug-in"])
@pytest.mark.parametrize("size", [1, 2, 4])  # frames of a chunk
async def test_an_add_is_served_in_clear_text_only_behind_the_secret_and_before_start_tls(
    opened: Opened, certificates: Certificates, mode: str, size: int, autojump_clock: MockClock
) -> None:
    """Every order of up to four frames, one, two and all of them in a chunk."""
    config = ServerConfig(
        auth=None if mode == "without a plug-in" else Words(),
        tls=lambda: certificates.bookie,
        tls_required=mode == "required",
    )
    ledger_ids, wrong, served = itertools.count(1000), [], 0
    orders = [order for steps in (2, 3, 4) for order in itertools.product(STEPS, repeat=steps)]
    for order in sampled([each for each in orders if each[-1].startswith("add")], 60):
        may_add, asked, adds = mode == "without a plug-in", False, dict[int, bool]()
        frames = []
        for step in order:
            if step.startswith("add"):
                ledger_id = next(ledger_ids)
                adds[ledger_id] = may_add
                entry = EntryCodec(DigestType.CRC32C, b"").pack(ledger_id, 0, -1, 5, b"clear")
                codec = v2 if step == "add" else v3
                frames.append(codec.encode_request(AddRequest(ledger_id, 0, KEY, entry)))
            else:
                frames.append(STEPS[step])
                asked |= step == "START_TLS"
                knows = mode == "without a plug-in" or step.startswith("secret") or may_add
                may_add = knows and not asked and mode != "required"
        peer = opened.connect(config)
        with contextlib.suppress(trio.BrokenResourceError):
            for at in range(0, len(frames), size):
                await peer.stream.send_all(b"".join(frames[at : at + size]))
                await wait_all_tasks_blocked()
        for ledger_id, is_allowed in adds.items():
            is_served = opened.bookie.storage.ledger(ledger_id) is not None
            served += is_served
            if is_served and not is_allowed:
                wrong.append(order)
        await trio.aclose_forcefully(peer.stream)
        await wait_all_tasks_blocked()
    assert not wrong, wrong[:5]
    assert (served > 0) is (mode != "required")
