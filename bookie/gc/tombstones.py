"""Tombstones: the ids of deleted ledgers that were fenced here, kept across restarts.

The record of a deleted ledger is gone, and its fence with it. An old writer that does not know of the
deletion would create the ledger again with its next add, and the bookie would acknowledge that add. So the id
is kept for a week after the deletion. Apache's bookies keep it in memory; this file also survives a restart.

``TOMBS``, in the first ledger directory: records of 20 bytes, appended. ``TOMBS.UNCONFIRMED`` is the same for
ledgers that the metadata never confirmed. A stranger can make such ledgers without end, and must not push out
the others.

offset  size  field
     0     8  ledger id               signed, big-endian, like all that follow
     8     8  deleted                 Unix time, milliseconds
    16     4  CRC-32 of the above     a torn record ends the file

Inside: these files. Not inside: refusing adds (``session``), deleting ledgers (``live_ledgers``).
Always: an id is durable here before its ledger is deleted. If the file cannot be written, the id is only in
memory: a deletion must not need disk space.

Source: HandleFactoryImpl.java (recentlyFencedAndDeletedLedgers), apache/bookkeeper#4462.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING

import attrs

from ledger.runtime.log_lines import get_logger

if TYPE_CHECKING:
    from bookie.disk.disk import Disk

CONFIRMED_FILE = "TOMBS"
UNCONFIRMED_FILE = "TOMBS.UNCONFIRMED"
KEEP_MS = 7 * 24 * 3600 * 1000
CONFIRMED_MAX = 200_000  # as many as the service remembers; a file has at most twice as many records
UNCONFIRMED_MAX = 20_000
_IDS = Struct(">qq")
_RECORD = Struct(">qqI")

log = get_logger(__name__)


@attrs.frozen
class Tombstones:
    """The two files of one bookie."""

    confirmed: TombstonesFile
    unconfirmed: TombstonesFile

    @classmethod
    def in_directory(cls, disk: Disk, directory: Path, wall_ms: Callable[[], int]) -> Tombstones:
        """The files in this directory. They need not exist."""
        return cls(
            TombstonesFile(disk, directory / CONFIRMED_FILE, wall_ms, count_max=CONFIRMED_MAX),
            TombstonesFile(disk, directory / UNCONFIRMED_FILE, wall_ms, count_max=UNCONFIRMED_MAX),
        )

    async def add(self, *ledger_ids: int, is_confirmed: bool) -> None:
        """As ``TombstonesFile.add``. ``is_confirmed``: the metadata confirmed once that the ledgers exist."""
        await (self.confirmed if is_confirmed else self.unconfirmed).add(*ledger_ids)


class TombstonesFile:
    """One file of tombstones."""

    def __init__(
        self, disk: Disk, path: Path, wall_ms: Callable[[], int], *, count_max: int = CONFIRMED_MAX
    ) -> None:
        self._disk, self._path, self._wall_ms = disk, path, wall_ms
        self._count_max = count_max
        self._size_bytes: int | None = None  # size of the valid records; None: not read yet

    def read(self) -> list[int]:
        """The newest ids of the last week, oldest first. Removes others from the file. Blocks.

        Raises:
            OSError: The file cannot be read.
        """
        self._size_bytes = 0
        try:
            data = self._disk.read_file(self._path)
        except FileNotFoundError:
            return []
        kept: dict[int, int] = {}
        now_ms = self._wall_ms()
        for at in range(0, len(data) - _RECORD.size + 1, _RECORD.size):
            ledger_id, deleted_ms, checksum = _RECORD.unpack_from(data, at)
            if zlib.crc32(data[at : at + _IDS.size]) != checksum:
                break
            self._size_bytes = at + _RECORD.size
            if now_ms - deleted_ms < KEEP_MS:
                kept.pop(ledger_id, None)  # the newest record counts
                kept[ledger_id] = deleted_ms
        kept = dict(list(kept.items())[-self._count_max :])
        content = b"".join(map(_encode, kept, kept.values()))
        if content != data:
            try:
                self._disk.replace_file(self._path, content)
            except OSError as exc:
                log.warning("%s: expired records cannot be removed: %s", self._path, exc)
                return list(kept)
        self._size_bytes = len(content)
        return list(kept)

    async def add(self, *ledger_ids: int) -> None:
        """Add ids; durable on return unless the file cannot be written. If cancelled, they may be added."""
        try:
            await self._disk.run(self._append, ledger_ids)
        except OSError as exc:
            log.warning(
                "%s: the fences of %d deleted ledgers, from %d on, are kept only until the next start: %s",
                self._path,
                len(ledger_ids),
                ledger_ids[0],
                exc,
            )

    def _append(self, ledger_ids: Sequence[int]) -> None:
        if self._size_bytes is None or self._size_bytes >= 2 * self._count_max * _RECORD.size:
            self.read()
        assert self._size_bytes is not None  # ``read`` sets it
        now_ms = self._wall_ms()
        records = b"".join(_encode(ledger_id, now_ms) for ledger_id in ledger_ids)
        if self._size_bytes == 0:
            self._disk.replace_file(self._path, records)
        else:
            file = self._disk.open(self._path, write=True)
            try:
                file.pwrite(records, self._size_bytes)
                file.sync()
            finally:
                file.close()
        self._size_bytes += len(records)


def _encode(ledger_id: int, deleted_ms: int) -> bytes:
    ids = _IDS.pack(ledger_id, deleted_ms)
    return ids + zlib.crc32(ids).to_bytes(4, "big")
