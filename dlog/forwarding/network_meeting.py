"""Where the programs that share a writer in a cluster meet: over TCP, at the address in the owner's node.

    forwarder   TLS and SASL, as configured for bookies    then the 16 bytes of the key    then frames
    owner       the same                                   then 1 byte: the key is right

Inside: listening and dialling, the key of an owner, the rights of both sides. Not inside: proofs of names
(``ledger.transport.peers``), the node, counting forwarders (``meeting``).
Always: a connection is served only after it has shown the key that the owner's node has, so a dialler that
finds another program at an address of yesterday writes nothing there; a stranger holds a place for
``GREETING_S`` at most, and strangers have ``STRANGERS_MAX`` places; records go only to an owner whose proven
name may write the log.

Source: our own; docs/shared.md, "Where they meet".
"""

from __future__ import annotations

import errno
import hmac
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import cast

import attrs
import trio

from dlog.errors import AccessDeniedError, ConfigError, LogUnavailableError
from dlog.forwarding.meeting import NodeMeeting, Serve, kept_from_children
from dlog.forwarding.shared_shell import NoMeetingError
from ledger.auth.authentication import AuthRefusedError
from ledger.errors import BookieSecurityError, BookieUnavailableError, SecuritySettingsError, WireError
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tasks.failure_domain import failure_domain
from ledger.runtime.tasks.service_tasks import ServiceTasks
from ledger.runtime.tls_refusal import refusal_text
from ledger.transport.bookie_security import NO_SECURITY, BookieSecurity
from ledger.transport.dial import Address, dial_tcp, set_options
from ledger.transport.handshake import is_tls_refusal
from ledger.transport.peers import PeerSecurity, examine, open_peer_security, prove
from namespace.access_control.policies import Permissions
from namespace.log_nodes import LogNodes
from namespace.owner_address import KEY_BYTES, ListenAt, OwnerPlace, parse_owner_place
from namespace.policy import Right

CONNECT_S = 10.0  # for TCP, TLS, authentication and the key
GREETING_S = 10.0  # a connection shows who it is and the key in this time, or is closed
STRANGERS_MAX = 128  # connections that have not shown it; more are closed
ACCEPT_PAUSE_S = 0.1  # while there is no descriptor for a connection
WARN_S = 60.0  # between two lines about refused strangers
RIGHT_KEY = b"\x01"

logger = get_logger(__name__)


@attrs.frozen
class _Link:
    """A connection with an owner that has taken the key."""

    socket: trio.SocketStream
    stream: trio.abc.Stream
    name: str | None  # of the owner, if it has proven one


class NetworkMeeting(NodeMeeting):
    """For a log in a cluster: a TCP port."""

    def __init__(
        self, listen_at: ListenAt | None, nodes: LogNodes, security: BookieSecurity = NO_SECURITY
    ) -> None:
        """``security``: what this program has for bookies, which programs show each other."""
        super().__init__(nodes)
        self._listen_at, self._security = listen_at, security
        self._strangers = 0
        self._warned_s = -WARN_S

    def _is_ours(self, address: str) -> bool:
        return parse_owner_place(address) is not None

    async def check_door(self) -> None:
        """See ``shared_shell.Meeting``."""
        if self._listen_at is not None:
            await self._opened_security()
            with suppress(LogUnavailableError):  # a port may be free later
                await (await self._listen(self._listen_at)).aclose()

    async def _opened_security(self) -> PeerSecurity:
        """The files are read for each owner and each dial, so a change of them needs no restart."""
        if self._security == NO_SECURITY:
            return PeerSecurity()
        try:
            return await trio.to_thread.run_sync(open_peer_security, self._security)
        except SecuritySettingsError as exc:
            raise NoMeetingError(ConfigError(str(exc))) from None

    # Forwarding.

    @asynccontextmanager
    async def connected(self, address: str) -> AsyncIterator[trio.abc.Stream | None]:
        """Connect to an owner for the duration of the block; None if nobody is there.

        Raises:
            NoMeetingError: The owner and this program do not accept each other.
            LogUnavailableError: The connection broke; or the name of the owner may not write the log.
            ledger.metadata_store.errors.MetadataError: The policy cannot be read.
        """
        place = parse_owner_place(address)
        link = None if place is None else await self._dial(place, await self._opened_security())
        if link is None:
            yield None
            return
        with kept_from_children(link.socket):
            if link.name is not None:
                await self._check_owner(link.name)
            yield link.stream

    async def _dial(self, place: OwnerPlace, security: PeerSecurity) -> _Link | None:
        address = Address(place.host, place.port)
        with trio.move_on_after(CONNECT_S):
            try:
                socket = cast("trio.SocketStream", await dial_tcp(address))
            except OSError:
                return None
            try:
                stream, name = await prove(str(address), socket, security, place.host)
                await stream.send_all(place.key)
                if await stream.receive_some(len(RIGHT_KEY)) == RIGHT_KEY:
                    return _Link(socket, stream, name)
                socket.socket.close()
            except BaseException as exc:
                socket.socket.close()
                if isinstance(exc, trio.BrokenResourceError | BookieUnavailableError):
                    raise self._why_not(address, exc) from None
                raise
        return None

    def _why_not(self, address: Address, exc: Exception) -> Exception:
        reason = exc.reason if isinstance(exc, BookieUnavailableError) else refusal_text(exc.__cause__ or exc)
        text = f"log {self._nodes.name!r}: the program that owns its writer, at {address}: {reason}"
        if isinstance(exc, BookieSecurityError) or is_tls_refusal(exc.__cause__):
            return NoMeetingError(AccessDeniedError(text))
        return LogUnavailableError(text)

    async def _check_owner(self, name: str) -> None:
        try:
            await self.check(name, Right.WRITE)
        except AccessDeniedError as exc:
            raise LogUnavailableError(
                f"log {self._nodes.name!r}: the program that owns its writer may not write it: {exc}"
            ) from None

    async def check(self, name: str, right: Right) -> None:
        """See ``shared_shell.Meeting``."""
        nodes = self._nodes
        await Permissions(nodes.store, nodes.namespace_path, name).check(nodes.name, right)

    # Owning.

    @asynccontextmanager
    async def _door(self, serve: Serve, tasks: ServiceTasks) -> AsyncIterator[str]:
        assert self._listen_at is not None  # a program that never owns a log opens no door
        security, listener = await self._opened_security(), await self._listen(self._listen_at)
        port: int = listener.socket.getsockname()[1]
        key = secrets.token_bytes(KEY_BYTES)

        async def serve_one(socket: trio.SocketStream) -> None:
            with failure_domain("a connection to the owner of a shared log"), kept_from_children(socket):
                found = await self._greeted(socket, key, security)
                if found is not None:
                    await serve(*found)

        async def accept() -> None:
            while True:
                try:
                    socket = await listener.accept()
                except OSError:  # there is no descriptor
                    await trio.sleep(ACCEPT_PAUSE_S)
                    continue
                if self._strangers < STRANGERS_MAX:
                    self._strangers += 1
                    tasks.start_soon(serve_one, socket)
                else:
                    socket.socket.close()

        with kept_from_children(listener):
            tasks.start_soon(accept)
            yield str(OwnerPlace(self._listen_at.host, port, key))

    async def _listen(self, where: ListenAt) -> trio.SocketListener:
        for port in range(where.first_port, where.last_port + 1):
            try:
                first, *others = await trio.open_tcp_listeners(port, host=where.host)
            except OSError as exc:
                if exc.errno == errno.EADDRINUSE:
                    continue
                text = f"owner_address: this program cannot listen at {where.host}: {exc.strerror or exc}"
                raise NoMeetingError(ConfigError(text)) from None
            for other in others:  # a name may have several addresses; diallers try them all
                await other.aclose()
            return first
        raise LogUnavailableError(
            f"log {self._nodes.name!r}: this program cannot own its writer: no port of {where.host} from"
            f" {where.first_port} to {where.last_port} is free (owner_address)"
        )

    async def _greeted(
        self, socket: trio.SocketStream, key: bytes, security: PeerSecurity
    ) -> tuple[trio.abc.Stream, str | None] | None:
        """The stream of a program that has shown its name, if it has to, and the key; None for a stranger."""
        shown, reason = b"", "it does not have the key of this owner"
        try:
            with trio.move_on_after(GREETING_S):
                set_options(socket)
                stream, name = await examine(socket, security)
                while len(shown) < KEY_BYTES and (chunk := await stream.receive_some(KEY_BYTES - len(shown))):
                    shown += chunk
                if hmac.compare_digest(shown, key):
                    await stream.send_all(RIGHT_KEY)
                    return stream, name
        except (AuthRefusedError, WireError) as exc:
            reason = str(exc)
        except (OSError, trio.BrokenResourceError) as exc:
            reason = refusal_text(exc.__cause__ or exc)
        finally:
            self._strangers -= 1
        if trio.current_time() - self._warned_s >= WARN_S:
            self._warned_s = trio.current_time()
            logger.warning(
                "log %s: a connection was not served: %.200s",
                self._nodes.name,
                ascii(reason),
                extra=event("owner.stranger", log=self._nodes.name),
            )
        return None
