"""Ledgers that were fenced here and do not exist any more, remembered over restarts.

Once such a ledger is deleted, its record and the fence in it are gone. Its old writer, who may know of
nothing, would create it anew with its next add and be told that it is safe. So the id outlives the ledger for
a week, as Apache's bookies remember it in memory; here also over a restart.

``TOMBS``, in the first ledger directory: records of 20 bytes, appended.

offset  size  field
     0     8  ledger id               signed, big-endian, like all that follow
     8     8  deleted                 epoch milliseconds
    16     4  CRC-32 of the above     a record that was torn ends the file

Inside: that file. Not inside: refusing (``service``), what was deleted (``live_ledgers``).
Always: an id is durable here before its ledger is forgotten; if the file cannot be written, memory must do:
a deletion never needs space.

Source: HandleFactoryImpl.java (recentlyFencedAndDeletedLedgers), apache/bookkeeper#4462.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bookie.disk import Disk

TOMBS = "TOMBS"
KEEP_MS = 7 * 24 * 3600 * 1000
_IDS = Struct(">qq")
_RECORD = Struct(">qqI")

log = logging.getLogger(__name__)


class Tombs:
    """The file of one bookie."""

    def __init__(self, disk: Disk, path: Path, wall_ms: Callable[[], int]) -> None:
        self._disk, self._path, self._wall_ms = disk, path, wall_ms
        self._size_bytes: int | None = None  # of the sound records; None: not read yet

    def read(self) -> list[int]:
        """The ids that are to be remembered, oldest first; the file keeps no others. Blocks.

        Raises:
            OSError: The file cannot be read.
        """
        self._size_bytes = 0
        try:
            data = self._disk.read_file(self._path)
        except FileNotFoundError:
            return []
        kept = {}
        now_ms = self._wall_ms()
        for at in range(0, len(data) - _RECORD.size + 1, _RECORD.size):
            ledger_id, deleted_ms, checksum = _RECORD.unpack_from(data, at)
            if zlib.crc32(data[at : at + _IDS.size]) != checksum:
                break
            self._size_bytes = at + _RECORD.size
            if now_ms - deleted_ms < KEEP_MS:
                kept[ledger_id] = deleted_ms
        sound = b"".join(map(_encode, kept, kept.values()))
        if sound != data:
            try:
                self._disk.replace_file(self._path, sound)
            except OSError as exc:
                log.warning("%s: records that are over stay there: %s", self._path, exc)
                return list(kept)
        self._size_bytes = len(sound)
        return list(kept)

    async def bury(self, ledger_id: int) -> None:
        """Remember an id, durably on return unless the file cannot be written. If cancelled, perhaps."""
        try:
            await self._disk.run(self._append, ledger_id)
        except OSError as exc:
            log.warning(
                "%s: ledger %d is remembered until the next start only: %s", self._path, ledger_id, exc
            )

    def _append(self, ledger_id: int) -> None:
        if self._size_bytes is None:
            self.read()
        assert self._size_bytes is not None
        record = _encode(ledger_id, self._wall_ms())
        if self._size_bytes == 0:
            self._disk.replace_file(self._path, record)
        else:
            file = self._disk.open(self._path, write=True)
            try:
                file.pwrite(record, self._size_bytes)
                file.sync()
            finally:
                file.close()
        self._size_bytes += len(record)


def _encode(ledger_id: int, deleted_ms: int) -> bytes:
    ids = _IDS.pack(ledger_id, deleted_ms)
    return ids + zlib.crc32(ids).to_bytes(4, "big")
