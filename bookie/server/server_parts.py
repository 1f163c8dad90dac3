"""What all connections of one server share.

Inside: the value that each connection is given, the signal that wakes those that wait for capacity. Not
inside: the parts themselves.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import trio

from bookie.requests.session import BookieService
from bookie.requests.turns import Turns
from bookie.server.config import ServerConfig
from bookie.server.connections import Connections
from bookie.server.peer_warnings import PeerWarnings
from bookie.server.shared_memory import SharedMemory


class Signal:
    """Wakes all waiting tasks. Each checks its own condition again."""

    def __init__(self) -> None:
        self._event: trio.Event | None = None  # while a task waits

    def send(self) -> None:
        if self._event is not None:
            self._event.set()
            self._event = None

    async def wait(self) -> None:
        if self._event is None:
            self._event = trio.Event()
        await self._event.wait()


@attrs.frozen(kw_only=True)
class ServerParts:
    """Made by ``Server``, once."""

    service: BookieService
    config: ServerConfig
    memory: SharedMemory
    capacity: Signal  # sent when memory or a request in progress was given back
    connections: Connections
    warnings: PeerWarnings
    turns: Turns
    wall_ms: Callable[[], int]  # the date that replies to long polls carry
