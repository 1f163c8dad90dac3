"""Where the programs that share a writer in a cluster meet: over TCP, at the address in the owner's node.

Inside: listening and dialling, the key of an owner. Not inside: the node, counting forwarders (``meeting``).
Always: a connection is served only after it has shown the key that the owner's node has, so a dialler that
finds another program at an address of yesterday writes nothing there; a stranger holds a place for
``GREETING_S`` at most, and strangers have ``STRANGERS_MAX`` places.

Source: our own; docs/shared.md, "Where they meet".
"""

from __future__ import annotations

import errno
import hmac
import secrets
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from typing import cast

import trio

from dlog.errors import ConfigError, LogUnavailableError
from dlog.forwarding.meeting import Door, NodeMeeting, kept_from_children
from ledger.runtime.tasks.service_tasks import ServiceTasks
from ledger.transport.dial import Address, dial_tcp, set_options
from namespace.log_nodes import LogNodes
from namespace.owner_address import KEY_BYTES, ListenAt, OwnerPlace, parse_owner_place

CONNECT_S = 5.0  # for TCP and the key
GREETING_S = 10.0  # a connection shows the key in this time, or is closed
STRANGERS_MAX = 128  # connections that have not shown it; more are closed
ACCEPT_PAUSE_S = 0.1  # while there is no descriptor for a connection


class NetworkMeeting(NodeMeeting):
    """For a log in a cluster: a TCP port."""

    def __init__(self, listen_at: ListenAt, nodes: LogNodes) -> None:
        super().__init__(nodes)
        self._listen_at = listen_at
        self._strangers = 0

    def _is_ours(self, address: str) -> bool:
        return parse_owner_place(address) is not None

    @asynccontextmanager
    async def connected(self, address: str) -> AsyncIterator[trio.abc.Stream | None]:
        """Connect to an owner for the duration of the block; None if nobody is there."""
        place = parse_owner_place(address)
        stream = None if place is None else await _dial(place)
        if stream is None:
            yield None
            return
        with kept_from_children(stream):
            yield stream

    def _serving(self, stream: trio.abc.Stream) -> AbstractContextManager[None]:
        return kept_from_children(cast("trio.SocketStream", stream))  # from the listener below

    @asynccontextmanager
    async def _door(self, serve: Door, tasks: ServiceTasks) -> AsyncIterator[str]:
        listener = await self._listen()
        port: int = listener.socket.getsockname()[1]
        key = secrets.token_bytes(KEY_BYTES)
        with kept_from_children(listener):
            tasks.start_soon(self._accept, listener, key, serve, tasks)
            yield str(OwnerPlace(self._listen_at.host, port, key))

    async def _listen(self) -> trio.SocketListener:
        where = self._listen_at
        for port in range(where.first_port, where.last_port + 1):
            try:
                first, *others = await trio.open_tcp_listeners(port, host=where.host)
            except OSError as exc:
                if exc.errno == errno.EADDRINUSE:
                    continue
                raise ConfigError(
                    f"owner_address: this program cannot listen at {where.host}: {exc.strerror or exc}"
                ) from None
            for other in others:  # a name may have several addresses; diallers try them all
                await other.aclose()
            return first
        raise LogUnavailableError(
            f"log {self._nodes.name!r}: this program cannot own its writer: no port of {where.host} from"
            f" {where.first_port} to {where.last_port} is free (owner_address)"
        )

    async def _accept(
        self, listener: trio.SocketListener, key: bytes, serve: Door, tasks: ServiceTasks
    ) -> None:
        while True:
            try:
                stream = await listener.accept()
            except OSError:  # there is no descriptor
                await trio.sleep(ACCEPT_PAUSE_S)
                continue
            if self._strangers < STRANGERS_MAX:
                tasks.start_soon(self._greet, stream, key, serve)
            else:
                await trio.aclose_forcefully(stream)

    async def _greet(self, stream: trio.SocketStream, key: bytes, serve: Door) -> None:
        shown = b""
        self._strangers += 1
        try:
            with trio.move_on_after(GREETING_S):
                set_options(stream)
                while len(shown) < KEY_BYTES and (chunk := await stream.receive_some(KEY_BYTES - len(shown))):
                    shown += chunk
        except (OSError, trio.BrokenResourceError):
            pass  # it is gone
        finally:
            self._strangers -= 1
            if hmac.compare_digest(shown, key):
                serve(stream)
            else:
                stream.socket.close()


async def _dial(place: OwnerPlace) -> trio.SocketStream | None:
    """A connection that has shown the key; None if nobody is there."""
    with trio.move_on_after(CONNECT_S):
        try:
            stream = cast("trio.SocketStream", await dial_tcp(Address(place.host, place.port)))
        except OSError:
            return None
        try:
            await stream.send_all(place.key)
        except trio.BrokenResourceError:
            stream.socket.close()
            return None
        except BaseException:
            stream.socket.close()
            raise
        return stream
    return None
