"""One connection of the HTTP port over a stream in memory. Work is counted, not timed."""

from __future__ import annotations

import re
from collections.abc import Sequence

import h11
import pytest
import trio
from trio.testing import MockClock, memory_stream_pair, wait_all_tasks_blocked

from bookie.disk.descriptor_limit import ADMIN_CONNECTIONS_MAX
from bookie.http import exchange
from bookie.http.exchange import (
    EVENT_UNITS,
    HEAD_UNITS,
    HEADER_UNITS,
    HEADERS_MAX,
    REPLY_UNIT_BYTES,
    REQUEST_UNITS,
    SLICE_BYTES,
    SLICE_UNITS,
    STEP_UNITS,
    HttpConnection,
    head_of,
)
from bookie.http.messages import (
    BODY_BYTES_MAX,
    AdminReply,
    AdminRequest,
    Method,
    RequestHead,
    RequestRefusedError,
    text_reply,
)
from bookie.requests.turns import Turns

GET = b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n"
PUT = b"PUT /x HTTP/1.1\r\nHost: a\r\n"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = bytes.fromhex("000000040000000000")


async def admit_all(head: RequestHead) -> tuple[str, AdminReply | None]:
    return "HTTP", None


class Echo:
    """Replies with the path and the body, and keeps the requests."""

    def __init__(self) -> None:
        self.requests: list[AdminRequest] = []

    async def answer(self, request: AdminRequest) -> AdminReply:
        self.requests.append(request)
        return text_reply(f"{request.path} {len(request.content)}")


async def send(*pieces: bytes, echo: Echo | None = None) -> list[bytes]:
    """The replies to the pieces on one connection, which the client then closes."""
    client, server = memory_stream_pair()
    received = bytearray()

    async def serve() -> None:
        connection = HttpConnection(server, admit_all, (echo or Echo()).answer, Turns(STEP_UNITS))
        await connection.serve()
        await server.aclose()

    async def receive() -> None:
        async for chunk in client:
            received.extend(chunk)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        nursery.start_soon(receive)
        try:
            for piece in pieces:
                await client.send_all(piece)
                await wait_all_tasks_blocked()  # so that the pieces are not received together
            await client.send_eof()
        except trio.BrokenResourceError:
            pass  # the server has closed
    return re.split(rb"(?=HTTP/1\.1 \d{3} )", bytes(received))[1:]


def statuses(replies: Sequence[bytes]) -> list[int]:
    return [int(reply.split()[1]) for reply in replies]


async def test_requests_of_one_connection_are_answered_in_order() -> None:
    replies = await send(GET + GET.replace(b"/x", b"/y"), GET[:9], GET[9:])
    assert statuses(replies) == [200, 200, 200]
    assert [reply.partition(b"\r\n\r\n")[2] for reply in replies] == [b"/x 0", b"/y 0", b"/x 0"]


async def test_a_body_comes_whole_or_in_chunks_or_after_a_wait_for_100() -> None:
    echo = Echo()
    await send(PUT + b"Content-Length: 3\r\n\r\nabc", echo=echo)
    await send(PUT + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\nx: y\r\n\r\n", echo=echo)
    waited = await send(PUT + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\n", b"abc", echo=echo)
    assert [request.content for request in echo.requests] == [b"abc"] * 3
    assert statuses(waited) == [100, 200]


async def test_head_is_get_without_the_body() -> None:
    echo = Echo()
    (reply,) = await send(GET.replace(b"GET", b"HEAD"), echo=echo)
    assert echo.requests[0].method is Method.GET
    assert b"Content-Length: 4\r\n" in reply
    assert reply.endswith(b"\r\n\r\n")


UPGRADES = [
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: !!!\r\n",
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAQ_____\r\n",
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x\r\n",
]


@pytest.mark.parametrize("headers", UPGRADES)
async def test_an_upgrade_is_ignored_and_the_connection_speaks_http_1_1(headers: bytes) -> None:
    assert statuses(await send(GET[:-2] + headers + b"\r\n" + GET)) == [200, 200]


async def test_http_2_with_prior_knowledge_gets_a_close_without_a_byte() -> None:
    assert await send(PREFACE + SETTINGS * 1000) == []


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x01\x05\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"G\xffT / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505),
        (b"GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"OPTIONS / HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"CONNECT /a HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        (PUT + b"Content-Length: x\r\n\r\n", 400),
        (PUT + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (PUT + b"Content-Length: 5\r\n\r\nabc", 400),
        (PUT + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (PUT + b"Transfer-Encoding: gzip\r\n\r\n", 501),
        (PUT + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (PUT + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 30 + b"\r\n", 400),
        (GET[:-2] + b"a: \0\r\n\r\n", 400),
        (GET[:-2] + b"a: " + b"b" * 20_000 + b"\r\n\r\n", 431),
        (GET[:-2] + b"a: b\r\n" * HEADERS_MAX + b"\r\n", 400),
        (b"GET /x?" + b"&a=b" * 101 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    ],
)
async def test_a_request_that_is_none_gets_its_reason_and_the_connection_ends(
    data: bytes, status: int
) -> None:
    replies = await send(data)
    assert statuses(replies) == [status]
    _, _, body = replies[0].partition(b"\r\n\r\n")
    assert body.endswith(b"\n")
    assert len(body) < 400


@pytest.mark.parametrize("method", ["PRI", "GET"])
async def test_nothing_after_a_request_that_is_none_is_answered(method: str) -> None:
    for head in (f"{method} / HTTP/2.0", f"{method} * HTTP/1.1"):
        (reply,) = await send(f"{head}\r\nHost: a\r\n\r\n".encode() + GET)
        assert b"connection: close" in reply.lower()


async def test_a_wrong_byte_is_found_at_any_border_of_what_is_received() -> None:
    """h11 needs n * n steps for a header of n spaces before such a byte."""
    for tail in (b"\0", b"\v", b"\f", b"\rx"):
        data = GET[:-2] + b"a:" + b" " * 50 + tail + b"\r\n\r\n"
        for at in (len(data) - len(tail) - 4, len(data) - 5, len(data) - 4):
            (reply,) = await send(data[:at], data[at:])
            assert b"\r\n\r\nthe request has a NUL" in reply
    assert statuses(await send(*[bytes([byte]) for byte in GET])) == [200]


async def test_a_body_that_is_too_long_is_not_kept_and_ends_the_connection() -> None:
    echo = Echo()
    body = b"x" * (3 * BODY_BYTES_MAX)
    (reply,) = await send(PUT + b"Content-Length: %d\r\n\r\n" % len(body), body, GET, echo=echo)
    assert b"connection: close" in reply.lower()
    # The router refuses it.
    assert BODY_BYTES_MAX < len(echo.requests[0].content) <= BODY_BYTES_MAX + SLICE_BYTES


class Endless(trio.abc.Stream):
    """A peer that sends an endless body and reads nothing."""

    def __init__(self) -> None:
        self.slices = 0

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        self.slices += 1
        return b"x" * SLICE_BYTES if self.slices > 1 else PUT + b"Content-Length: 99999999999\r\n\r\n"

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def test_what_is_left_of_a_refused_request_is_read_to_a_limit() -> None:
    endless = Endless()
    await HttpConnection(endless, admit_all, Echo().answer, Turns(STEP_UNITS)).serve()
    assert endless.slices * SLICE_BYTES <= BODY_BYTES_MAX + exchange.LEFT_BYTES_MAX + 3 * SLICE_BYTES


async def test_a_refused_request_without_a_body_leaves_the_connection_open() -> None:
    data = GET.replace(b"GET", b"TRACE")
    assert statuses(await send(data + GET)) == [405, 200]
    assert statuses(await send(data[:-2] + b"Content-Length: 1\r\n\r\nx" + GET)) == [405]


async def test_a_silent_peer_is_closed(autojump_clock: MockClock) -> None:
    for data in (b"", GET[:20], PUT + b"Content-Length: 9\r\n\r\nabc"):
        client, server = memory_stream_pair()
        await client.send_all(data)
        await HttpConnection(server, admit_all, Echo().answer, Turns(STEP_UNITS), idle_s=1.0).serve()
        assert trio.current_time() < 60


def request_of(data: bytes) -> h11.Request:
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    event = connection.next_event()
    assert isinstance(event, h11.Request)
    return event


def test_the_target_is_decoded_without_an_error() -> None:
    head = head_of(request_of(b"GET /%ff%00%zz?a=%ff&a=2&%=&b HTTP/1.1\r\nHost: a\xff\r\n\r\n"))
    assert head.path == "/\ufffd\0%zz"
    assert head.query == {"a": "\ufffd", "%": "", "b": ""}
    assert head.headers == {"host": ["a\xff"]}
    with pytest.raises(RequestRefusedError):
        head_of(request_of(b"GET x HTTP/1.1\r\nHost: a\r\n\r\n"))


class Steps(trio.abc.Instrument):
    """Counts the units of work in each step of the loop."""

    def __init__(self) -> None:
        self.used = self.most = self.total = 0
        self.requests = self.most_requests = 0

    def after_io_wait(self, timeout: float) -> None:
        self.used = self.requests = 0

    def answered(self) -> None:
        self.requests += 1
        self.most_requests = max(self.most_requests, self.requests)


class CountedTurns(Turns):
    """Also counts for ``Steps``."""

    def __init__(self, steps: Steps) -> None:
        super().__init__(STEP_UNITS)
        self.steps = steps

    def charge(self, units: int) -> None:
        super().charge(units)
        self.steps.used += units
        self.steps.total += units
        self.steps.most = max(self.steps.most, self.steps.used)


FLOODS = {
    "pipelined requests": GET * 40,
    "tiny chunks": PUT + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 800 + b"0\r\n\r\n",
    "many headers": (GET[:-2] + b"a: b\r\n" * 90 + b"\r\n") * 20,
    "bodies": (PUT + b"Content-Length: 4000\r\n\r\n" + b"x" * 4000) * 10,
}


@pytest.mark.slow
@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS.keys())
async def test_all_connections_do_a_bounded_amount_of_work_in_one_step(flood: bytes) -> None:
    steps = Steps()
    turns = CountedTurns(steps)
    sizes: list[int] = []

    async def answer(request: AdminRequest) -> AdminReply:
        steps.answered()
        return text_reply("done")

    class Noted(HttpConnection):
        async def _receive(self) -> bytes:
            data = await super()._receive()
            sizes.append(len(data))
            return data

    async def one() -> None:
        client, server = memory_stream_pair()

        async def serve() -> None:
            await Noted(server, admit_all, answer, turns).serve()
            await server.aclose()

        async def drain() -> None:
            async for _ in client:
                pass

        async with trio.open_nursery() as nursery:
            nursery.start_soon(drain)
            nursery.start_soon(serve)
            await client.send_all(flood)
            await client.send_eof()

    trio.lowlevel.add_instrument(steps)
    try:
        async with trio.open_nursery() as nursery:
            for _ in range(ADMIN_CONNECTIONS_MAX):
                nursery.start_soon(one)
    finally:
        trio.lowlevel.remove_instrument(steps)
    largest = REQUEST_UNITS + SLICE_UNITS + EVENT_UNITS + 2 * HEADERS_MAX
    assert steps.most <= STEP_UNITS + largest
    assert steps.total > 4 * STEP_UNITS  # one step would not have been enough
    assert max(sizes) <= SLICE_BYTES
    assert 0 < steps.most_requests <= STEP_UNITS // REQUEST_UNITS + 1


async def units_of(request: bytes, reply: AdminReply) -> int:
    """The units that one connection takes for a request and its reply."""
    turns, (client, server) = CountedTurns(Steps()), memory_stream_pair()

    async def answer(_: AdminRequest) -> AdminReply:
        return reply

    async with trio.open_nursery() as nursery:
        nursery.start_soon(HttpConnection(server, admit_all, answer, turns).serve)
        await client.send_all(request)
        await client.send_eof()
    return turns.steps.total


async def test_each_header_of_a_request_has_its_price() -> None:
    short = text_reply("done")
    plain, many = GET, GET[:-2] + b"a: b\r\n" * 90 + b"\r\n"
    assert len(many) <= SLICE_BYTES  # so that both are received at once
    assert await units_of(many, short) == await units_of(plain, short) + 90 * HEADER_UNITS
    nothing, received = await units_of(b"", short), 2 * EVENT_UNITS + SLICE_UNITS
    assert await units_of(plain, short) >= nothing + received + HEAD_UNITS + REQUEST_UNITS


async def test_each_byte_of_a_reply_has_its_price_also_if_it_is_not_sent() -> None:
    head = GET.replace(b"GET", b"HEAD")
    more = await units_of(head, text_reply("x" * 8192)) - await units_of(head, text_reply("x" * 16))
    assert more == 8192 // REPLY_UNIT_BYTES - 1
