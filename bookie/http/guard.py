"""The checks of the HTTP port before a route sees the request: Host, Origin and the token.

Inside: the checks, as an ASGI application around another one; the record of refused requests. Not inside: the
routes (``admin``), the tokens (``secrets``), addresses (``config.admin_config``).
Always: a request that changes or reveals something has the token, or comes over TLS with a client certificate
if the configuration has no token; with neither there is no such request. A web page of another site reaches
nothing, also not through a name that it points here. Refused requests write few lines into the audit log.

Open to all that reach the port, with GET: ``/heartbeat``, ``/metrics``, ``/api/v1/bookie/is_ready``, and
public routes, such as the files of the page.

Source: RFC 9110 (Host), RFC 6750 (Bearer), RFC 6454 (Origin).
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any

import trio

from bookie.disk.token_bucket import TokenBucket
from bookie.http.secrets import AdminSecrets
from ledger.audit import record_refusal

OPEN_PATHS = frozenset({"/heartbeat", "/metrics", "/api/v1/bookie/is_ready"})
OWNER = "dlog.owner"  # the key of the scope that names the owner of the request's token
REFUSALS_PER_S, REFUSALS_AT_ONCE = 1 / 60, 30  # that the audit log gets, each with one fsync

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
        secrets: AdminSecrets,
        hosts: Collection[str],
        has_certificates: bool = False,
        open_paths: Collection[str] = (),
    ) -> None:
        """
        Args:
            secrets: Has the tokens; without a file of tokens all but ``OPEN_PATHS`` is refused.
            has_certificates: TLS has checked the certificate of every client; without a token in the
                configuration that is enough.
            open_paths: More paths than ``OPEN_PATHS`` that need no token for GET.
            hosts: Names that a Host header may have, besides localhost, this machine's and IP addresses.
        """
        self._application = application
        self._secrets = secrets
        self._records = TokenBucket(REFUSALS_PER_S, burst=REFUSALS_AT_ONCE)
        self._unrecorded = 0
        self._open_paths = OPEN_PATHS | set(open_paths)
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
        await self._record(scope, status, reason)
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
        if scope["path"] in self._open_paths and scope["method"] in ("GET", "HEAD"):
            return None
        tokens = self._secrets.tokens
        if tokens is None and self._has_certificates:
            return None
        if tokens is None:
            return 401, "set httpServerTokenPath to a file with a token, and send it as Authorization: Bearer"
        given = found.get(b"authorization", [])
        kind, _, token = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        # Digests, so that the time says nothing about the length either.
        digest = hashlib.sha256(token.strip()).digest()
        owner: str | None = None
        for each in tokens:  # to the end: the time does not tell which one it was
            if hmac.compare_digest(digest, each.digest):
                owner = each.owner
        if kind.lower() != b"bearer" or owner is None:
            return 401, "the token is missing or wrong; send it as Authorization: Bearer"
        scope[OWNER] = owner
        return None

    async def _record(self, scope: Scope, status: int, reason: str) -> None:
        # A stranger that is refused again and again must not fill the disk.
        if self._records.take(0, trio.current_time()) > 0:
            self._unrecorded += 1
            return
        self._records.take(1, trio.current_time())
        more = f", and {self._unrecorded} more before it" if self._unrecorded else ""
        self._unrecorded = 0
        await record_refusal(
            "HTTP request",
            f"{scope['method']} {scope['path']}",
            identity=peer_of(scope),
            reason=f"{status} {reason}{more}",
        )

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


def peer_of(scope: Scope) -> str:
    """The peer of a request for the audit log: its address, and the owner of its token if it has a name."""
    client, owner = scope.get("client"), scope.get(OWNER)
    return f"HTTP{f' {client[0]}' if client else ''}{f' as {owner}' if owner else ''}"
