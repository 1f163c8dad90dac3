"""The checks of the HTTP port before a route sees the request: Host, Origin and the token.

Inside: the checks, as an ASGI application around another one; reading the token's file. Not inside: the
routes (``admin``), addresses (``config.admin_config``).
Always: a request that changes or reveals something has the token, or comes over TLS with a client certificate
if the configuration has no token; with neither there is no such request. A web page of another site reaches
nothing, also not through a name that it points here.

Open to all that reach the port: ``/heartbeat``, ``/metrics`` and ``/api/v1/bookie/is_ready``, with GET.

Source: RFC 9110 (Host), RFC 6750 (Bearer), RFC 6454 (Origin).
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from pathlib import Path
from typing import Any

from bookie.errors import BookieConfigError

OPEN_PATHS = frozenset({"/heartbeat", "/metrics", "/api/v1/bookie/is_ready"})
TOKEN_BYTES_MIN = 16

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class AdminGuard:
    """An ASGI application that passes good requests on and answers the others itself."""

    def __init__(
        self,
        application: Application,
        *,
        token: bytes | None,
        hosts: Collection[str],
        has_certificates: bool = False,
    ) -> None:
        """
        Args:
            token: The value for ``Authorization: Bearer``; None refuses all but ``OPEN_PATHS``.
            has_certificates: TLS has checked the certificate of every client; without a token in the
                configuration that is enough.
            hosts: Names that a Host header may have, besides localhost, this machine's and IP addresses.
        """
        self._application = application
        self._token_digest = None if token is None else hashlib.sha256(token).digest()
        self._has_certificates = has_certificates
        own = {"localhost", socket.gethostname(), socket.getfqdn()}
        self._hosts = {name.lower() for name in own | set(hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; see ASGI."""
        if scope["type"] == "lifespan":
            await self._application(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        refusal = self._refusal(scope)
        if refusal is None:
            await self._application(scope, receive, send)
            return
        status, reason = refusal
        body = f"{reason}\n".encode()
        headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(body))]
        if status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Status and reason if the request is refused."""
        found: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            found.setdefault(name.lower(), []).append(value)
        host = found.get(b"host", [])
        if len(host) != 1 or not self._is_ours(host[0].decode("latin-1")):
            return 421, "the Host header names another server; add the name to httpServerAllowedHosts"
        origin = found.get(b"origin", [])
        if origin and origin != [scope.get("scheme", "http").encode() + b"://" + host[0]]:
            return 403, "the request comes from a page of another site"
        if scope["path"] in OPEN_PATHS and scope["method"] in ("GET", "HEAD"):
            return None
        if self._token_digest is None and self._has_certificates:
            return None
        if self._token_digest is None:
            return 401, "set httpServerTokenPath to a file with a token, and send it as Authorization: Bearer"
        given = found.get(b"authorization", [])
        kind, _, token = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        # Digests, so that the time says nothing about the length either.
        digest = hashlib.sha256(token.strip()).digest()
        if kind.lower() != b"bearer" or not hmac.compare_digest(digest, self._token_digest):
            return 401, "the token is missing or wrong; send it as Authorization: Bearer"
        return None

    def _is_ours(self, host: str) -> bool:
        # A page can point a name of its own at this address, but not an address.
        name = host.lower()
        if name.startswith("["):
            name = name[1:].partition("]")[0]
        elif name.count(":") == 1:
            name = name.partition(":")[0]
        if name in self._hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def read_token(path: Path) -> bytes:
    """The token in a file, without the white space around it.

    Raises:
        BookieConfigError: The file cannot be read, others may read it, or the token is too short.
    """
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            token = file.read().strip()
    except OSError as exc:
        raise BookieConfigError(f"httpServerTokenPath {path} cannot be read: {exc.strerror or exc}") from exc
    if mode & 0o077:
        raise BookieConfigError(
            f"httpServerTokenPath {path}: other users may use it (mode {mode:o}); run `chmod 600 {path}`"
        )
    if len(token) < TOKEN_BYTES_MIN or any(byte <= 0x20 or byte >= 0x7F for byte in token):
        raise BookieConfigError(
            f"httpServerTokenPath {path}: expected at least {TOKEN_BYTES_MIN} printable characters without"
            " spaces, such as the output of `openssl rand -hex 32`"
        )
    return token
