"""Requests for the sweep of a bookie's HTTP port: each method and route, each subset of odd headers, HTTP/2.

Inside: the bytes of a connection, what its reply may be.
Not inside: the bookie, connections (``process_sweep``).
Always: a generator decides everything, so one seed gives the same bytes again. With the token only GET is
sent: nothing that an operator may change is changed.
"""

from __future__ import annotations

import base64
import itertools
import random
import re
import struct
from collections.abc import Iterator

import attrs

from bookie.http.routes.table import ROUTES
from tests.fuzz.frame_cases import NUMBERS

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_METHODS = (b"GET", b"HEAD", b"PUT", b"POST", b"DELETE", b"OPTIONS", b"TRACE", b"CONNECT", b"G\xffT", b"get")
_ODD_TARGETS = (
    *(b"*", b"/", b"http://[/heartbeat", b"/%ff%fe%00", b"/\xff\xfe", b"a:1", b"//heartbeat", b"/heartbeat#"),
    b"/heartbeat/../api/v1/bookie/info",
    b"/heartbeat?" + b"a=1&" * 200,
)
_VERSIONS = (*(b"HTTP/1.1",) * 6, b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9.9", b"HTTP/1.1 x")
_FIELDS = ("ledger_id", "page", "start_entry_id", "end_entry_id", "file_type", "enabled", "\udcff")


def _h2c(settings: bytes) -> bytes:
    return b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: " + settings + b"\r\n"


_WEBSOCKET = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: bKdPyn3u98cTfZJSh4TNeQ==\r\n"
)
_HEADERS = (  # each subset of up to three
    _h2c(b"AA"),
    _h2c(b"!!!"),
    _h2c(base64.urlsafe_b64encode(struct.pack(">HI", 4, (1 << 32) - 1))),
    _WEBSOCKET,
    b"Expect: 100-continue\r\n",
    b"a:" + b" \t" * 2000 + b"b\r\n",
    b"\xff: \xfe\r\n",
    b"Range: bytes=-1,9223372036854775808-\r\n",
    b"Authorization: Bearer \xff\r\n",
    b"Authorization: Bearer wrong-wrong-wrong\r\n",
)
_HOSTS = (
    *(b"Host: localhost\r\n",) * 5,
    b"",
    b"Host: evil.example\r\n",
    b"Host: [::1\r\n",
    b"Host: \xff\r\n",
)
_BODIES = (  # headers, and what comes behind them
    *((b"", b""),) * 4,
    (b"Content-Length: 2\r\n", b"{}"),
    (b"Content-Length: 9\r\n", b"{}"),
    (b"Content-Length: 2\r\n", b"{}{}{}{}"),
    (b"Content-Length: -1\r\n", b"{}"),
    (b"Content-Length: %d\r\n" % (1 << 63), b"{}"),
    (b"Transfer-Encoding: chunked\r\n", b"2;a=b\r\n{}\r\n0\r\nx: y\r\n\r\n"),
    (b"Transfer-Encoding: chunked\r\n", b"zz\r\n{}"),
    (b"Transfer-Encoding: chunked\r\n", b"ffffffffffffffff\r\n{}"),
    (b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\nGET /heartbeat HTTP/1.1\r\n\r\n"),
    (_WEBSOCKET, b"\x81\x85\0\0\0\0hello"),
)


@attrs.frozen
class HttpCase:
    """What one connection sends."""

    name: str
    data: bytes = attrs.field(repr=False)
    closes: bool = False  # without a byte of reply, or with a refusal
    has_token: bool = False
    is_public: bool = False  # strangers may read what it asks for

    def __str__(self) -> str:
        return f"{self.name}: {self.data[:300].hex()}"

    def verdict(self, received: bytes) -> str | None:
        """Why the reply is wrong, or None."""
        if not received:
            return None
        if not (status := re.match(rb"HTTP/1\.1 ([1-5][0-9][0-9]) ", received)):
            return f"the reply is no HTTP/1.1: {received[:60]!r}"
        code = int(status[1])
        if code == 101 or code in (500, 501) or (code // 100 == 2 and self.closes):
            return f"status {code}"
        if code // 100 == 2 and not self.has_token and not self.is_public:
            return f"status {code} without a token"
        return None


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """A frame of HTTP/2."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def headers(stream: int, *fields: tuple[int, bytes], end: bool = True) -> bytes:
    """HEADERS: pairs of an index and a value (1 :authority, 2 :method, 4 :path, 6 :scheme)."""
    block = b"".join(bytes([index, len(value)]) + value for index, value in fields)
    return frame(1, 4 | end, stream, block)


def _http2_request(method: bytes, path: bytes | None, *, end: bool = True) -> bytes:
    rest = [] if path is None else [(4, path)]
    return headers(1, (2, method), (6, b"http"), (1, b"localhost"), *rest, end=end)


def http2_cases() -> list[HttpCase]:
    """With prior knowledge: what ``curl --http2-prior-knowledge -T file`` sends, and floods."""
    start = PREFACE + frame(4, 0, 0, b"")
    upload = _http2_request(b"PUT", b"/api/v1/bookie/gc", end=False)
    found = {
        "GET": _http2_request(b"GET", b"/heartbeat"),
        "an upload": upload + frame(0, 0, 1, b"x" * 100) * 20 + frame(0, 1, 1, b""),
        "1,101 PRIORITY": b"".join(
            frame(2, 0, 2 * number + 1, struct.pack(">IB", 0, 15)) for number in range(1, 1102)
        ),
        "a method not ASCII": _http2_request(b"G\xffT", b"/heartbeat"),
        "a path not ASCII": _http2_request(b"GET", b"/\xff\xfe"),
        "CONNECT without a path": _http2_request(b"CONNECT", None, end=False),
        "SETTINGS": frame(4, 0, 0, b"") * 3000,
        "PING": frame(6, 0, 0, bytes(8)) * 3000,
        "HEADERS and RST": b"".join(
            headers(2 * number + 1, (2, b"GET"), (4, b"/")) + frame(3, 0, 2 * number + 1, bytes(4))
            for number in range(1000)
        ),
        "a window too large": frame(8, 0, 0, struct.pack(">I", (1 << 31) - 1)) * 2,
        "a frame of 16 MB, cut": frame(0, 0, 1, b"")[3:] + b"\xff\xff\xff",
        "bad settings": frame(4, 0, 0, struct.pack(">HI", 4, (1 << 32) - 1) + b"\0"),
        "DATA of no stream": frame(0, 0, 5, b"hello"),
    }
    return [HttpCase(f"HTTP/2, {name}", start + data, closes=True) for name, data in found.items()]


def upgrade_cases() -> list[HttpCase]:
    """HTTP/1.1 that asks for another protocol: it is answered as if it had not asked."""
    head = b"GET /heartbeat HTTP/1.1\r\nHost: localhost\r\n"
    found = {f"h2c {number}": head + each + b"\r\n" + PREFACE for number, each in enumerate(_HEADERS[:3])}
    found["a byte behind a WebSocket"] = head + _WEBSOCKET + b"\r\nx"
    found["frames behind a WebSocket"] = head + _WEBSOCKET + b"\r\n\x81\x85\0\0\0\0hello" + b"\xff" * 100
    return [HttpCase(name, data, is_public=True) for name, data in found.items()]


def draw_http(rng: random.Random, token: bytes) -> Iterator[HttpCase]:
    """Without end: first HTTP/2 and upgrades, then each route with each method, then what chance gives."""
    first = [*http2_cases(), *upgrade_cases()]
    rng.shuffle(first)
    yield from first
    routes = [route.path.encode() for route in ROUTES]
    pairs = list(itertools.product(_METHODS, routes))
    while True:
        rng.shuffle(pairs)
        for method, path in pairs:
            yield _draw(rng, method, path, token)
            yield _draw(rng, rng.choice(_METHODS), rng.choice(_ODD_TARGETS), token)


def _draw(rng: random.Random, method: bytes, target: bytes, token: bytes) -> HttpCase:
    has_token = method in (b"GET", b"HEAD") and rng.random() < 0.5
    is_public = b"/api/v1/" not in target or b"is_ready" in target
    if rng.random() < 0.7 and b"?" not in target:
        values = (*map(str, NUMBERS), "%ff%fe", "index", "true", "")
        pairs = rng.sample(_FIELDS, rng.randint(1, 3))
        query = "&".join(f"{name}={rng.choice(values)}" for name in pairs)
        target += b"?" + query.encode("utf-8", "surrogateescape")
    chosen = rng.sample(_HEADERS[:8] if has_token else _HEADERS, rng.choice((0, 0, 1, 2, 3)))
    more, body = rng.choice(_BODIES[:4] if has_token else _BODIES)
    bearer = b"Authorization: Bearer " + token + b"\r\n" if has_token else b""
    head = b" ".join((method, target, rng.choice(_VERSIONS)))
    data = b"\r\n".join((head, b"".join((rng.choice(_HOSTS), bearer, *chosen, more)), body))
    data *= rng.choice((1, 1, 1, 3))
    if rng.random() < 0.1:
        data = data[: rng.randrange(len(data))]
    name = f"{method!r} {target[:60]!r}{' with the token' if has_token else ''}"
    return HttpCase(name, data, has_token=has_token, is_public=is_public)
