"""One hostile conversation with a bookie: a connection in a phase, requests, and what the answers must be.

Inside: the phases, authentication and TLS by hand, reading answers, judging them.
Not inside: the requests (``frame_cases``), the bookie (``frame_world``).
Always: an answer decodes; a peer that is not authenticated gets refusals only; once TLS was asked for, clear
text closes the connection; a request that must be answered is answered once; an answer that Apache's bookie
is known to give is given.
"""

from __future__ import annotations

import enum
import ssl
from collections import Counter
from collections.abc import Sequence

import attrs
import trio

from ledger.auth.authentication import AuthRefusedError, AuthStep, PeerCertificate, PeerIdentity
from ledger.codes import Code, Operation
from ledger.errors import WireError
from ledger.wire import v2, v3
from ledger.wire.frame import FrameBuffer
from ledger.wire.messages import (
    AddRequest,
    AuthReply,
    AuthRequest,
    IncomingReply,
    ReadReply,
    ReadRequest,
    StartTlsReply,
    StartTlsRequest,
)
from tests.fuzz.frame_cases import ENTRIES, KEY, PLUGIN, Case, Ending

HANG_S = 60.0  # a guard against a hang, on any machine
HONEST_LEDGER = 999_999  # its entry 0 answers the probe
UNSERVED_LEDGER = 999_998
MISSING_ENTRY = 1 << 40
TOKEN_TXN = 2  # of an honest token
FLOOD = 40  # times the clear text after START_TLS


class Access(enum.Enum):
    """What a connection in a phase may do."""

    FULL = "full"
    GATED = "refusals only"
    UPGRADING = "nothing"


class Phase(enum.Enum):
    """How far a connection is when it sends its requests."""

    NEW = "new"
    IN_FLIGHT = "others in flight"
    HALF_CLOSED = "half closed"
    HALF_CLOSED_BEFORE_AUTH = "before authentication, half closed"
    HALF_CLOSED_AFTER_AUTH = "after authentication, half closed"
    HALF_CLOSED_IN_TLS = "in TLS, after authentication, half closed"
    IN_FLIGHT_AFTER_AUTH = "after authentication, others in flight"
    IN_FLIGHT_IN_TLS = "in TLS, after authentication, others in flight"
    BEFORE_AUTH = "before authentication"
    DURING_AUTH = "during authentication"
    AFTER_AUTH = "after authentication"
    WITH_START_TLS = "in clear text with START_TLS"
    AFTER_START_TLS = "in clear text after START_TLS was answered"
    WITH_START_TLS_DURING_AUTH = "during authentication, in clear text with START_TLS"
    OPEN_WITH_START_TLS = "open, in clear text with START_TLS"
    LAST_TOKEN_WITH_START_TLS = "with the last token, in clear text with START_TLS"
    OPEN_AFTER_START_TLS = "open, in clear text after START_TLS was answered"
    OPEN_IN_TLS = "open, in TLS"
    TLS = "in TLS, before authentication"
    TLS_DURING_AUTH = "in TLS, during authentication"
    TLS_AFTER_AUTH = "in TLS, after authentication"


_WITH_START_TLS = frozenset(
    {
        *(Phase.WITH_START_TLS, Phase.WITH_START_TLS_DURING_AUTH, Phase.OPEN_WITH_START_TLS),
        Phase.LAST_TOKEN_WITH_START_TLS,
    }
)
_AFTER_START_TLS = frozenset({Phase.AFTER_START_TLS, Phase.OPEN_AFTER_START_TLS})
UPGRADING = _WITH_START_TLS | _AFTER_START_TLS
_HALF_CLOSED = frozenset(
    {
        *(Phase.HALF_CLOSED, Phase.HALF_CLOSED_BEFORE_AUTH),
        *(Phase.HALF_CLOSED_AFTER_AUTH, Phase.HALF_CLOSED_IN_TLS),
    }
)
_IN_FLIGHT = frozenset({Phase.IN_FLIGHT, Phase.IN_FLIGHT_AFTER_AUTH, Phase.IN_FLIGHT_IN_TLS})
_IN_TLS_AFTER_AUTH = frozenset({Phase.TLS_AFTER_AUTH, Phase.HALF_CLOSED_IN_TLS, Phase.IN_FLIGHT_IN_TLS})
_TLS = _IN_TLS_AFTER_AUTH | {Phase.TLS, Phase.TLS_DURING_AUTH, Phase.OPEN_IN_TLS}
_AFTER_AUTH = _IN_TLS_AFTER_AUTH | {
    *(Phase.AFTER_AUTH, Phase.HALF_CLOSED_AFTER_AUTH, Phase.IN_FLIGHT_AFTER_AUTH)
}
_DURING_AUTH = frozenset(
    {
        *(Phase.DURING_AUTH, Phase.TLS_DURING_AUTH, Phase.WITH_START_TLS_DURING_AUTH),
        Phase.LAST_TOKEN_WITH_START_TLS,
    }
)
_OPENED = frozenset({Phase.OPEN_WITH_START_TLS, Phase.OPEN_AFTER_START_TLS})
_FULL = (_AFTER_AUTH | _IN_FLIGHT | {Phase.NEW, Phase.OPEN_IN_TLS}) - _HALF_CLOSED


class Mode(enum.Enum):
    """How the bookie's port is configured, and the phases that there are."""

    OPEN = "open"
    OPEN_TLS = "no authentication, TLS if asked for"
    AUTH = "authentication, TLS if asked for"
    TLS = "authentication and TLS required"

    @property
    def has_auth(self) -> bool:
        return self in (Mode.AUTH, Mode.TLS)

    @property
    def phases(self) -> tuple[Phase, ...]:
        return _PHASES[self]


_PHASES = {
    Mode.OPEN: (Phase.NEW, Phase.NEW, Phase.IN_FLIGHT, Phase.HALF_CLOSED),
    Mode.OPEN_TLS: (*(Phase.NEW, Phase.OPEN_WITH_START_TLS, Phase.OPEN_AFTER_START_TLS, Phase.OPEN_IN_TLS),),
    Mode.AUTH: (
        *(Phase.BEFORE_AUTH, Phase.DURING_AUTH, Phase.AFTER_AUTH, Phase.AFTER_AUTH),
        *(Phase.HALF_CLOSED_BEFORE_AUTH, Phase.HALF_CLOSED_AFTER_AUTH, Phase.IN_FLIGHT_AFTER_AUTH),
        *(Phase.WITH_START_TLS, Phase.AFTER_START_TLS),
        Phase.LAST_TOKEN_WITH_START_TLS,
        *(Phase.WITH_START_TLS_DURING_AUTH, Phase.OPEN_WITH_START_TLS, Phase.OPEN_AFTER_START_TLS),
    ),
    Mode.TLS: (
        *(Phase.BEFORE_AUTH, Phase.WITH_START_TLS, Phase.AFTER_START_TLS),
        *(Phase.TLS, Phase.TLS_DURING_AUTH, Phase.TLS_AFTER_AUTH),
        *(Phase.HALF_CLOSED_BEFORE_AUTH, Phase.HALF_CLOSED_IN_TLS, Phase.IN_FLIGHT_IN_TLS),
    ),
}


class Steps:
    """A plug-in of two tokens."""

    plugin, needs_tls = PLUGIN, False

    def __init__(self) -> None:
        self._tokens = 0

    def open(self) -> Steps:
        return type(self)()

    def reload(self) -> None:
        pass

    def on_tls(self, certificate: PeerCertificate | None) -> None:
        pass

    def answer(self, token: bytes) -> AuthStep:
        self._tokens += 1
        if self._tokens == 1:
            return AuthStep(b"more")
        if token != b"second":
            raise AuthRefusedError("the second token is wrong")
        return AuthStep(b"", PeerIdentity("peer", PLUGIN))


@attrs.define
class Talk:
    """A connection of the sweep."""

    stream: trio.abc.Stream
    frames: FrameBuffer = attrs.field(factory=FrameBuffer)
    replies: list[IncomingReply] = attrs.field(factory=list)
    is_closed: bool = False

    async def receive(self) -> None:
        """Take what has come; ``is_closed`` at the end of the stream. Raises ``WireError``."""
        try:
            chunk = await self.stream.receive_some(65_536)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            chunk = b""
        self.is_closed = not chunk
        data, spans = self.frames.feed(bytes(chunk))
        self.replies += [decoded(data, start, end) for start, end in spans]

    async def send(self, data: bytes) -> None:
        try:
            await self.stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the bookie closes a connection when it must; the stream's end tells

    async def send_and_end(self, data: bytes) -> None:
        """Send the bytes and close this direction only."""
        stream = self.stream
        if isinstance(stream, trio.SSLStream):
            stream = stream.transport_stream  # without an end of TLS
        assert isinstance(stream, trio.SocketStream)
        await self.send(data)
        try:
            await stream.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the bookie was faster

    async def ask(self, frame: bytes) -> IncomingReply | None:
        """The next answer; None if the connection closes."""
        count = len(self.replies)
        await self.send(frame)
        while len(self.replies) == count and not self.is_closed:
            await self.receive()
        return self.replies[count] if len(self.replies) > count else None


def decoded(data: bytes, start: int, end: int) -> IncomingReply:
    """A reply of either version."""
    if data[start] >= v3.FIRST_BYTE_MIN:
        try:
            return v3.decode_reply(data, start, end)
        except WireError:
            pass  # a refusal in an unknown version of version 2's format
    return v2.decode_reply(data, start, end)


async def open_talk(
    address: tuple[str, int], phase: Phase, context: ssl.SSLContext, *, has_auth: bool = True
) -> Talk:
    """A connection in this phase. Raises ``AssertionError`` if an honest step is refused."""
    talk = Talk(await trio.open_tcp_stream(*address))
    if phase in _TLS or phase is Phase.AFTER_START_TLS:
        await _ask_for_tls(talk)
    if phase in _TLS:
        encrypted = trio.SSLStream(talk.stream, context, server_hostname="localhost")
        await encrypted.do_handshake()
        talk = Talk(encrypted)
    tokens: tuple[bytes, ...] = ()
    if phase in _DURING_AUTH:
        tokens = (b"first",)
    elif has_auth and phase in _OPENED | _AFTER_AUTH:
        tokens = (b"first", b"second")
    for token in tokens:
        reply = await talk.ask(v3.encode_request(AuthRequest(PLUGIN, token), transaction_id=TOKEN_TXN))
        assert reply is not None, "the bookie closed the connection at an honest token"
        assert isinstance(reply.reply, AuthReply), reply
        assert reply.reply.code is Code.OK, reply
    if phase is Phase.OPEN_AFTER_START_TLS:
        await _ask_for_tls(talk)
    talk.replies.clear()
    return talk


async def _ask_for_tls(talk: Talk) -> None:
    reply = await talk.ask(v3.encode_request(StartTlsRequest(), transaction_id=1))
    assert reply is not None, "the bookie closed the connection at START_TLS"
    assert reply.reply == StartTlsReply(Code.OK), reply


def others_in_flight() -> bytes:
    """Reads and long polls of the same connection that are not answered yet."""
    poll = ReadRequest(HONEST_LEDGER, -1, previous_lac=1 << 40, timeout_ms=1 << 40, piggyback_entry=True)
    frames = [v3.encode_request(poll, transaction_id=(1 << 63) + number) for number in range(4)]
    frames += [v2.encode_request(ReadRequest(HONEST_LEDGER, MISSING_ENTRY + 1)) for _ in range(8)]
    return b"".join(frames)


TOKEN = v3.encode_request(AuthRequest(PLUGIN, b"token"), transaction_id=4)
# An add of a ledger that must never come into being. Replies may wait for TLS, so its effect tells.
UNSERVED = v2.encode_request(
    AddRequest(UNSERVED_LEDGER, 0, KEY, ENTRIES.pack(UNSERVED_LEDGER, 0, -1, 5, b"clear"))
)
PROBE = v2.encode_request(ReadRequest(HONEST_LEDGER, MISSING_ENTRY))


def _is_probe(reply: IncomingReply) -> bool:
    return isinstance(reply.reply, ReadReply) and reply.reply.entry_id == MISSING_ENTRY and reply.version == 2


async def converse(
    address: tuple[str, int], mode: Mode, phase: Phase, cases: Sequence[Case], context: ssl.SSLContext
) -> str | None:
    """Send the requests in this phase; why the answers are wrong, or None."""
    with trio.move_on_after(HANG_S):
        talk = await open_talk(address, phase, context, has_auth=mode.has_auth)
        try:
            return await _exchange(talk, phase, cases)
        except WireError as exc:
            return f"a reply does not decode: {exc}"
        finally:
            await trio.aclose_forcefully(talk.stream)
    return f"no answer for {HANG_S:g} s"


async def _exchange(talk: Talk, phase: Phase, cases: Sequence[Case]) -> str | None:
    data = b"".join(case.frame for case in cases)
    if phase in UPGRADING:
        return await _send_clear_text(talk, phase, data)
    if phase in _IN_FLIGHT:
        data = others_in_flight() + data
    data += PROBE
    is_half_closed = phase in _HALF_CLOSED
    async with trio.open_nursery() as nursery:
        nursery.start_soon(talk.send_and_end if is_half_closed else talk.send, data)
        while not talk.is_closed and (is_half_closed or not _is_complete(talk, cases)):
            await talk.receive()
        nursery.cancel_scope.cancel()
    if is_half_closed:
        return None  # the bookie may drop what it has not answered; the honest client tells that it lives
    return _judge_full(talk, cases) if phase in _FULL else _judge_gated(talk)


async def _send_clear_text(talk: Talk, phase: Phase, data: bytes) -> str | None:
    """Send the requests behind START_TLS; the connection must close, and neither is answered."""
    data = (UNSERVED + TOKEN + data) * FLOOD
    if phase in _WITH_START_TLS:
        data = v3.encode_request(StartTlsRequest(), transaction_id=1) + data
    if phase is Phase.LAST_TOKEN_WITH_START_TLS:
        data = v3.encode_request(AuthRequest(PLUGIN, b"second"), transaction_id=TOKEN_TXN) + data
    more: list[IncomingReply] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(talk.send, data)
        while not more and not talk.is_closed:
            await talk.receive()
            more = [one for one in talk.replies if one.transaction_id != TOKEN_TXN]
        nursery.cancel_scope.cancel()
    return f"clear text behind START_TLS got {more[0].reply}" if more else None


def _is_complete(talk: Talk, cases: Sequence[Case]) -> bool:
    if not any(map(_is_probe, talk.replies)):
        return False
    answered = [case for case in cases if case.ending is Ending.ANSWERED]
    return all(_replies_to(talk, case) for case in answered)


def _replies_to(talk: Talk, case: Case) -> list[IncomingReply]:
    if case.shape.version == 3:
        return [one for one in talk.replies if one.version == 3 and one.transaction_id == case.transaction_id]
    return [
        one
        for one in talk.replies
        if one.version == 2
        and one.operation is case.shape.operation
        and getattr(one.reply, "ledger_id", None) == case.named_ledger_id
        and getattr(one.reply, "entry_id", None) == case.named_entry_id
    ]


def _judge_full(talk: Talk, cases: Sequence[Case]) -> str | None:
    last = cases[-1]
    if talk.is_closed and all(case.ending in (Ending.ANSWERED, Ending.SILENT) for case in cases):
        return f"the bookie closed the connection; it answered {len(talk.replies)} of {len(cases)} requests"
    if not talk.is_closed and last.ending is Ending.CLOSES:
        return f"the bookie took a request that must close the connection: {last}"
    counts: Counter[int] = Counter()
    for case in cases:
        found = _replies_to(talk, case)
        counts[case.transaction_id] = len(found)
        if case.shape.version == 3 and len(found) > 1 and "repliesMax" not in case.shape.fields:
            return f"{len(found)} answers to {case}"
        if case.codes is not None and found and found[-1].reply.code not in case.codes:
            wanted = " or ".join(code.name for code in case.codes)
            return f"{found[-1].reply.code.name} where Apache's bookie says {wanted}: {case}"
    return None


def _judge_gated(talk: Talk) -> str | None:
    for reply in talk.replies:
        if reply.reply.code is Code.OK and not (
            isinstance(reply.reply, AuthReply | StartTlsReply)
            or reply.operation in (Operation.AUTH, Operation.START_TLS)
        ):
            return f"an answer before authentication: {reply.reply}"
    return None
