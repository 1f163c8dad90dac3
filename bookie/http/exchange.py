"""One connection of the HTTP port: its bytes as requests, and replies as bytes, in HTTP/1.1 and 1.0.

Inside: h11 over a stream, the limits on the size and the time of a request, the work of one step of the loop.
Not inside: accepting, TLS (``server``), the checks of a request (``guard``), the routes (``router``).
Always: a request that cannot be parsed gets a reply with its reason, and the connection ends. An upgrade to
another protocol is ignored; the preface of HTTP/2 closes the connection. All connections together do a
bounded amount of work in one step of the loop: each slice that is received, each event of h11 and each piece
of a reply takes a turn first, and requests and replies are charged.

Source: RFC 9110, RFC 9112; docs/http.md, "The protocol".
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from http.client import responses
from urllib.parse import parse_qsl, unquote

import attrs
import h11
import trio

from bookie.http.messages import (
    BODY_BYTES_MAX,
    AdminReply,
    AdminRequest,
    BadRequestError,
    Method,
    RequestHead,
    RequestRefusedError,
    text_reply,
)
from bookie.requests.turns import Turns
from ledger.runtime.clock import wall_ms
from ledger.runtime.tasks.failure_domain import first_line

SLICE_BYTES = 4096  # received or sent in one turn
HEAD_BYTES_MAX = 8192  # of a request line and its headers, as Apache's server; one slice more is noticed late
HEADERS_MAX = 100
QUERY_FIELDS_MAX = 100
LEFT_BYTES_MAX = 16 * BODY_BYTES_MAX  # that are received and not used, so that the peer reads its reply

# Units of ``Turns``, each 1 to 3 microseconds of one core. HTTP has its own budget for each step.
STEP_UNITS = 1024
SLICE_UNITS = 32
EVENT_UNITS = 16
HEAD_UNITS = 64
HEADER_UNITS = 2
REQUEST_UNITS = 256
REPLY_UNIT_BYTES = 16  # of a reply that was made: metrics, the longest list

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# No head may have these, and no JSON. After n spaces, one of them costs h11 n * n steps.
_FORBIDDEN = re.compile(rb"[\x00\v\f]|\r(?!\n)")
_VERSIONS = (b"1.0", b"1.1")
_UNFINISHED = (h11.IDLE, h11.SEND_BODY, h11.ERROR)  # states of a peer whose request is not whole
_METHODS = Method.__members__ | {"HEAD": Method.GET}  # the body of a reply to HEAD is left out


class _PrefaceError(Exception):
    """The peer speaks HTTP/2 without asking."""


class UnsupportedVersionError(RequestRefusedError):
    """The request is in another version of HTTP."""

    status = 505


Admit = Callable[[RequestHead], Awaitable[tuple[str, AdminReply | None]]]
"""Returns the identity of the peer for the audit log, and the refusal of its request or None."""
Answer = Callable[[AdminRequest], Awaitable[AdminReply]]


class HttpConnection:
    """See the module. On the loop."""

    def __init__(
        self,
        stream: trio.abc.Stream,
        admit: Admit,
        answer: Answer,
        turns: Turns,
        *,
        peer: str = "",
        scheme: str = "http",
        idle_s: float = 5.0,
    ) -> None:
        """
        Args:
            turns: Shared by all connections of the port.
            idle_s: The connection ends if a request does not begin in this time, if its head is not whole
                then, or if no byte of its body comes for this long.
        """
        self._stream, self._admit, self._answer, self._turns = stream, admit, answer, turns
        self._peer, self._scheme, self._idle_s = peer, scheme, idle_s
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._ends_with_cr = False  # what was received

    def __repr__(self) -> str:
        return f"<HttpConnection of {self._peer}>"

    async def serve(self) -> None:
        """Answer requests until one side ends the connection. The caller closes the stream.

        Raises:
            trio.BrokenResourceError: The connection is lost.
            trio.ClosedResourceError: The stream was closed in another task.
        """
        try:
            while await self._serve_request():
                self._http.start_next_cycle()
        except trio.TooSlowError:
            return
        except _PrefaceError:
            pass  # it can read no reply in HTTP/1.1
        await self._leave()

    async def _serve_request(self) -> bool:
        """Answer one request. True if another one may follow."""
        event: object = None
        is_last = True
        try:
            with trio.fail_after(self._idle_s):
                event = await self._next_event()
            if not isinstance(event, h11.Request):
                return False
            self._turns.charge(HEAD_UNITS + HEADER_UNITS * len(event.headers))
            reply = await self._reply_to(event)
            if self._http.their_state is h11.SEND_BODY:
                self._http.next_event()  # the end of a request without a body
            is_last = self._http.their_state in _UNFINISHED  # the rest of the request is not read
        except h11.RemoteProtocolError as error:
            reply = text_reply(f"{first_line(error)}\n", error.error_status_hint)
        except RequestRefusedError as error:
            reply = text_reply(f"{first_line(error)}\n", error.status)
        self._turns.charge(len(reply.body) // REPLY_UNIT_BYTES)
        has_body = not (isinstance(event, h11.Request) and event.method == b"HEAD")
        await self._send(reply, has_body=has_body, is_last=is_last)
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    async def _reply_to(self, request: h11.Request) -> AdminReply:
        head = head_of(request, peer=self._peer, scheme=self._scheme)
        identity, refusal = await self._admit(head)
        if refusal is not None:
            return refusal
        method = _METHODS.get(head.method)
        if method is None:
            reply = text_reply(f"no path takes {head.method}\n", 405)
            return attrs.evolve(reply, headers={"Allow": ", ".join(_METHODS)})
        content = await self._content()
        await self._turns.take(REQUEST_UNITS)
        return await self._answer(AdminRequest(method, head.path, head.query, content, identity))

    async def _content(self) -> bytes:
        """The body; of a longer one than ``BODY_BYTES_MAX`` only as much as shows that it is too long."""
        content = bytearray()
        while len(content) <= BODY_BYTES_MAX:
            with trio.fail_after(self._idle_s):
                event = await self._next_event()
            if not isinstance(event, h11.Data):
                break
            content += event.data
        return bytes(content)

    async def _next_event(self) -> object:
        """The next event of h11 but NEED_DATA. Raises ``h11.RemoteProtocolError``, ``BadRequestError``."""
        while True:
            await self._turns.take(EVENT_UNITS)
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return event
            if self._http.they_are_waiting_for_100_continue:
                await self._stream.send_all(
                    self._sent(h11.InformationalResponse(status_code=100, headers=[]))
                )
            data = await self._receive()
            self._check(data)
            self._http.receive_data(data)

    def _check(self, data: bytes) -> None:
        if data.startswith(_PREFACE):
            raise _PrefaceError
        seen = b"\r" + data if self._ends_with_cr else data
        self._ends_with_cr = data.endswith(b"\r")
        if _FORBIDDEN.search(seen, 0, len(seen) - self._ends_with_cr) is not None:
            raise BadRequestError("the request has a NUL, VT or FF, or a CR that no LF follows")

    async def _receive(self) -> bytes:
        data = bytes(await self._stream.receive_some(SLICE_BYTES))
        await self._turns.take(SLICE_UNITS)
        return data

    async def _send(self, reply: AdminReply, *, has_body: bool, is_last: bool) -> None:
        headers = [
            ("Date", formatdate(wall_ms() / 1000, usegmt=True)),
            ("Content-Type", reply.media_type),
            ("Content-Length", str(len(reply.body))),
            *reply.headers.items(),
        ]
        if is_last:
            headers.append(("Connection", "close"))
        phrase = responses.get(reply.status, "")
        data = self._sent(h11.Response(status_code=reply.status, headers=headers, reason=phrase))
        if has_body:
            data += self._sent(h11.Data(data=reply.body))
        data += self._sent(h11.EndOfMessage())
        for at in range(0, len(data), SLICE_BYTES):
            await self._turns.take(SLICE_UNITS)
            await self._stream.send_all(data[at : at + SLICE_BYTES])

    def _sent(self, event: h11.InformationalResponse | h11.Response | h11.Data | h11.EndOfMessage) -> bytes:
        # None stands for the end of the connection, which is none of these events.
        return self._http.send(event) or b""

    async def _leave(self) -> None:
        """Read what the peer still sends. If bytes are left unread, the kernel takes the reply back."""
        if isinstance(self._stream, trio.SocketStream):
            await self._stream.send_eof()
        elif self._http.their_state not in _UNFINISHED:
            return  # TLS has no half of a connection
        with trio.move_on_after(self._idle_s):
            for _ in range(LEFT_BYTES_MAX // SLICE_BYTES):
                if not await self._receive():
                    return


def head_of(request: h11.Request, *, peer: str = "", scheme: str = "http") -> RequestHead:
    """The head of a request that h11 has parsed.

    Raises:
        RefusedError: It is not a request that this server takes; the text says why.
    """
    if request.http_version not in _VERSIONS:
        raise UnsupportedVersionError("this server speaks HTTP/1.1 and HTTP/1.0")
    if len(request.headers) > HEADERS_MAX:
        raise BadRequestError(f"the request has more than {HEADERS_MAX} headers")
    headers: dict[str, list[str]] = {}
    for name, value in request.headers:
        headers.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
    if "content-length" in headers and "transfer-encoding" in headers:
        raise BadRequestError("the request has Content-Length and Transfer-Encoding; send one of them")
    target, _, query = request.target.decode("latin-1").partition("?")
    if not target.startswith("/"):
        raise BadRequestError("the target of the request is not a path that begins with /")
    fields: dict[str, str] = {}
    try:
        for field, text in parse_qsl(query, keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX):
            fields.setdefault(field, text)
    except ValueError as exc:
        raise BadRequestError(f"the query cannot be parsed: {exc}") from exc
    return RequestHead(request.method.decode("latin-1"), unquote(target), fields, headers, scheme, peer)
