"""The space that the bookie of a directory needs, and when it takes appends.

Inside: the reserve in its directory, the watch of a disk that is full. Not inside: starting on a full disk
(``bookie.storage.opening``), starting again (``embedded``).
Always: the space of the reserve does not count as free, or appends would take it, and nothing could be
deleted or opened any more.

Source: our own; docs/storage-format.md 10.2.
"""

from __future__ import annotations

from pathlib import Path

import trio

from bookie.bookie import Bookie
from bookie.disk.disk import Disk
from bookie.disk.reserve import FLUSH_RESERVE, Reserve
from ledger.metadata_store.sqlite_store.reserve import SpaceReserve

RESERVE_BYTES = 1 << 20  # for opening the index and deleting ledgers; the journal has its own
APPEND_BYTES_MIN = 4 << 20  # with less free space a bookie takes no appends
START_BYTES_MIN = 256 << 10  # beside what a start has to flush
CHECK_S = 0.5


class Space:
    """Of one bookie that runs."""

    def __init__(self, bookie: Bookie, disk: Disk, current: Path, metadata: SpaceReserve) -> None:
        """``current``: the directory of its files. ``metadata``: the reserve of the metadata store."""
        self.is_enough = trio.Event()  # to start a bookie again that could not flush
        self._bookie, self._disk, self._current = bookie, disk, current
        self._metadata = metadata
        self._reserve = Reserve(disk, current, RESERVE_BYTES, name=FLUSH_RESERVE)

    def free_bytes(self) -> int:
        """The bytes that appends may take. Blocks."""
        given_bytes = self._reserve.given_bytes() + self._metadata.missing_bytes()
        return max(0, self._disk.usage(self._current).free_bytes - given_bytes)

    async def check(self) -> None:
        """Take no appends if there is too little space. Call it before the bookie serves."""
        if self._bookie.storage.full is None:
            free_bytes = await self._disk.run(self.free_bytes)
            self._bookie.service.rights.writable = free_bytes >= APPEND_BYTES_MIN

    async def run(self, *, more_than_bytes: int) -> None:
        """Watch the disk while it is full; for a task.

        Args:
            more_than_bytes: The bytes that were free at the last start, which was in vain.
        """
        storage, rights = self._bookie.storage, self._bookie.service.rights
        while not rights.writable:
            await trio.sleep(CHECK_S)
            free_bytes = await self._disk.run(self.free_bytes)
            if storage.full is None:
                rights.writable = free_bytes >= APPEND_BYTES_MIN
            elif free_bytes >= max(storage.backlog_bytes + START_BYTES_MIN, more_than_bytes):
                self.is_enough.set()
                return
        await self._disk.run(self._fill)

    def take_back(self) -> None:
        """Keep what is free in the reserve, if that was used: nobody appends any more. Blocks."""
        self._reserve.take_back(self._metadata.missing_bytes())

    def _fill(self) -> None:
        while self._reserve.fill():
            pass
