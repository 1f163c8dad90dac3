"""The checks of the HTTP port before a route sees the request: Host, Origin and the token.

Inside: the checks of a request's head, the record of refused requests. Not inside: the routes (``router``),
the tokens (``secrets``), addresses (``config.admin_config``).
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
from collections.abc import Collection

import attrs
import trio

from bookie.disk.token_bucket import TokenBucket
from bookie.http.messages import AdminReply, RequestHead, text_reply
from bookie.http.secrets import AdminSecrets
from ledger.runtime.audit import record_refusal

OPEN_PATHS = frozenset({"/heartbeat", "/metrics", "/api/v1/bookie/is_ready"})
REFUSALS_PER_S, REFUSALS_AT_ONCE = 1 / 60, 30  # that the audit log gets, each with one fsync
_RECORDED_MAX = 300  # characters of a refused path


class AdminGuard:
    """Lets good requests pass and refuses the others."""

    def __init__(
        self,
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
        self._secrets = secrets
        self._records = TokenBucket(REFUSALS_PER_S, burst=REFUSALS_AT_ONCE)
        self._unrecorded = 0
        self._open_paths = OPEN_PATHS | set(open_paths)
        self._has_certificates = has_certificates
        own = {"localhost", socket.gethostname(), socket.getfqdn()}
        self._hosts = {name.lower() for name in own | set(hosts)}

    async def admit(self, head: RequestHead) -> tuple[str, AdminReply | None]:
        """The identity of the peer for the audit log, and the refusal of its request or None."""
        owner, refusal = self._decide(head)
        identity = f"HTTP{f' {head.peer}' if head.peer else ''}{f' as {owner}' if owner else ''}"
        if refusal is None:
            return identity, None
        status, reason = refusal
        await self._record(head, identity, status, reason)
        reply = text_reply(f"{reason}\n", status)
        return identity, attrs.evolve(
            reply, headers={"WWW-Authenticate": "Bearer"}
        ) if status == 401 else reply

    def _decide(self, head: RequestHead) -> tuple[str, tuple[int, str] | None]:
        """The owner of the request's token if it has a name, and status and reason of a refusal."""
        host = head.headers.get("host", ())
        if len(host) != 1 or not self._is_ours(host[0]):
            return "", (421, "the Host header names another server; add the name to httpServerAllowedHosts")
        origin = head.headers.get("origin", ())
        if origin and list(origin) != [f"{head.scheme}://{host[0]}"]:
            return "", (403, "the request comes from a page of another site")
        if head.path in self._open_paths and head.method in ("GET", "HEAD"):
            return "", None
        tokens = self._secrets.tokens
        if tokens is None and self._has_certificates:
            return "", None
        if tokens is None:
            return "", (
                401,
                "set httpServerTokenPath to a file with a token, and send it as Authorization: Bearer",
            )
        given = head.headers.get("authorization", ())
        kind, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        # Digests, so that the time says nothing about the length either. A head is decoded from Latin-1.
        digest = hashlib.sha256(token.strip().encode("latin-1")).digest()
        owner: str | None = None
        for each in tokens:  # to the end: the time does not tell which one it was
            if hmac.compare_digest(digest, each.digest):
                owner = each.owner
        if kind.lower() != "bearer" or owner is None:
            return "", (401, "the token is missing or wrong; send it as Authorization: Bearer")
        return owner, None

    async def _record(self, head: RequestHead, identity: str, status: int, reason: str) -> None:
        # A stranger that is refused again and again must not fill the disk.
        if self._records.take(0, trio.current_time()) > 0:
            self._unrecorded += 1
            return
        self._records.take(1, trio.current_time())
        more = f", and {self._unrecorded} more before it" if self._unrecorded else ""
        self._unrecorded = 0
        await record_refusal(
            "HTTP request",
            f"{head.method} {head.path}"[:_RECORDED_MAX],
            identity=identity,
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
