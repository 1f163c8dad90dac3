"""The calls of a benchmark on another system.

Always: ``append`` returns when the records survive a power cut, as an acknowledgement of DLog says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import attrs

Address = dict[str, Any]  # how the processes reach the system; it passes through JSON


class PeerWriter(Protocol):
    """The only writer of the records."""

    def append(self, payloads: Sequence[bytes]) -> None:
        """Append records in order, in one commit; return when all of them are durable."""

    def append_each(self, payloads: Sequence[bytes]) -> None:
        """Append records in order; a system with pipelined requests sends one for each record.

        Returns when all of them are durable.
        """


class PeerReader(Protocol):
    """A reader from the first record on."""

    def read(self) -> Sequence[bytes | memoryview]:
        """Block until there are records that were not returned yet; return many of them, in order."""


@attrs.frozen
class Service:
    """A system that is ready for work."""

    address: Address
    replicas: int  # copies of each record, each synced before the acknowledgement
    servers_cpu_s: Callable[[], float | None]  # of the system's own processes so far; None: it has none


@attrs.frozen
class Peer:
    """One system.

    ``open_writer`` and ``open_reader`` take the address and the size of each payload. The writer is opened
    before the reader.
    """

    name: str
    find_missing: Callable[[], str | None]  # the package to install, or None if nothing is missing
    serve: Callable[[Path, int], AbstractAsyncContextManager[Service]]  # an empty directory, the replicas
    open_writer: Callable[[Address, int], AbstractContextManager[PeerWriter]]
    open_reader: Callable[[Address, int], AbstractContextManager[PeerReader]]


def no_servers() -> float | None:
    """The CPU time of the servers of a system without servers."""
    return None
