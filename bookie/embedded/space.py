"""The space that the bookie of a directory needs, and when it takes appends.

Inside: the reserves in its directory, the watch of a disk that is full. Not inside: starting on a full disk
(``bookie.storage.opening``), starting again (``embedded``).
Always: the space of the reserves does not count as free, or appends would take it, and nothing could be
deleted or opened any more.

Source: our own; docs/storage-format.md 10.2.
"""

from __future__ import annotations

from pathlib import Path

import trio

from bookie.bookie import Bookie
from bookie.disk.disk import Disk
from bookie.disk.reserve import FLUSH_RESERVE, Reserve
from bookie.gc.compaction_rules import CompactionConfig
from ledger.metadata_store.sqlite_store.reserve import SpaceReserve

RESERVE_BYTES = 3 << 20  # for opening the index, deleting ledgers, and flushing a group of the journal
APPEND_BYTES_MIN = 4 << 20  # with less free space a bookie takes no appends
START_BYTES_MIN = 256 << 10  # beside what a start has to flush
CHECK_S = 0.5


class Space:
    """Of one bookie that runs."""

    def __init__(
        self,
        bookie: Bookie,
        disk: Disk,
        current: Path,
        metadata: SpaceReserve,
        compaction: CompactionConfig,
    ) -> None:
        """``current``: the directory of its files. ``metadata``: the reserve of the metadata store."""
        self.is_enough = trio.Event()  # to start a bookie again that could not flush
        self._bookie, self._disk, self._current = bookie, disk, current
        self._metadata = metadata
        self._reserve = Reserve(disk, current, RESERVE_BYTES, name=FLUSH_RESERVE)
        self._for_compaction = Reserve(
            disk, current, compaction.reserve_bytes, below_bytes=compaction.reserve_below_bytes
        )

    def free_bytes(self) -> int:
        """The bytes that appends may take. Blocks."""
        given_bytes = self._reserve.given_bytes() + self._for_compaction.given_bytes()
        given_bytes += self._metadata.missing_bytes()
        return max(0, self._disk.usage(self._current).free_bytes - given_bytes)

    async def check(self) -> None:
        """Take no appends if there is too little space. Call it before the bookie serves."""
        if self._bookie.storage.full is None:
            self._bookie.service.rights.writable = await self._disk.run(self._has_space)

    async def run(self, *, more_than_bytes: int) -> None:
        """Watch the disk while it is full, and fill the reserves while it is not; for a task.

        Args:
            more_than_bytes: The bytes that were free at the last start, which was in vain.
        """
        storage, rights = self._bookie.storage, self._bookie.service.rights
        while True:
            if rights.writable:
                await self._disk.run(self._fill)
                await storage.checkpointer.wait_next()  # it takes space
                continue
            await trio.sleep(CHECK_S)
            if storage.full is None:
                rights.writable = await self._disk.run(self._has_space)
                continue
            free_bytes = await self._disk.run(self.free_bytes)
            if free_bytes >= max(storage.start_bytes + START_BYTES_MIN, more_than_bytes):
                self.is_enough.set()
                return

    def _has_space(self) -> bool:
        """Whether appends have space besides what the reserves gave; if so, that is taken back first."""
        if self.free_bytes() < APPEND_BYTES_MIN:
            return False
        self.take_back()
        return True

    def take_back(self) -> None:
        """Keep what is free in the reserves that were used. Call it while nobody appends. Blocks."""
        for reserve in (self._reserve, self._for_compaction):
            reserve.take_back(self._metadata.missing_bytes())

    def _fill(self) -> None:
        for reserve in (self._reserve, self._for_compaction):
            while reserve.fill():
                pass
