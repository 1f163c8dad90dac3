"""The parts that all handles of one ledger client share: connections, metadata, placement, settings."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import attrs

from ledger.catalog.catalog import LedgerCatalog
from ledger.config import ClientConfig
from ledger.errors import LedgerError
from ledger.placement.membership import Membership
from ledger.placement.placer import Placer
from ledger.runtime.clock import wall_ms
from ledger.runtime.statistics.recorder import Recorder
from ledger.transport.bookie_connection import Resolve
from ledger.transport.config import TransportConfig
from ledger.transport.transport import Transport


class EntryLogFile(Protocol):
    """An entry log of a bookie, open for reading. It keeps its bytes when the bookie deletes it."""

    def read_at_hand(self, view: memoryview, offset: int) -> int:
        """Fill the view with bytes that need no wait for the disk; return their count.

        Raises:
            OSError: It would wait, or the file cannot be read.
        """

    async def read(self, size_bytes: int, offset: int) -> bytes:
        """Read while the loop continues; fewer bytes at the end of the file.

        Raises:
            OSError: The file cannot be read.
        """

    def close(self) -> None:
        """Give the file up; at most once, and not during a read."""


OpenEntryLog = Callable[[int, int, int], EntryLogFile]
"""Opens the entry log with this id for reading, given its device and inode; the file belongs to the caller.
Raises ``OSError`` if that file is not there, also if another one is in its place."""


OpenTransport = Callable[[Resolve, TransportConfig], AbstractAsyncContextManager[Transport]]
"""Opens what stands in for the connections to bookies."""


def _nothing(_: int) -> None:
    pass


@attrs.frozen(kw_only=True)
class ClientSeams:
    """Parts that the program gives a client: chance and clock, and the only bookie of a directory."""

    rng: random.Random | None = None  # for all chance, also of passwords; None: seeded by the system
    wall_ms: Callable[[], int] = wall_ms  # epoch milliseconds, for the creation time in ledger metadata
    on_deleted: Callable[[int], None] = _nothing  # called with the id of each ledger deleted by the client
    open_entry_log: OpenEntryLog | None = None  # None: the bookies' files are out of reach
    why_read_only: Callable[[], LedgerError] | None = None  # why the only bookie takes no writes
    open_transport: OpenTransport | None = None  # None: connections that are dialled


@attrs.frozen
class ClientContext:
    """Made once by ``open_ledger_client`` and passed to every handle and recovery of that client."""

    transport: Transport
    catalog: LedgerCatalog
    membership: Membership
    rng: random.Random  # the only source of chance: placement and back-off; tests seed it
    config: ClientConfig
    placer: Placer
    takes_hints: dict[str, bool] = attrs.field(factory=dict)  # by bookie; missing: not known (``lac_hints``)
    open_entry_log: OpenEntryLog | None = None  # None: the bookies' files are out of reach
    why_read_only: Callable[[], LedgerError] | None = None  # why the only bookie takes no writes
    recorder: Recorder = attrs.field(factory=Recorder)  # of what the client does
