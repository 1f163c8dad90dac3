"""Entry logs as files that clients read beside the bookies, in a world whose clients are on every machine.

Inside: numbers for files, opening one by them, reading it. Not inside: the files' content
(``dlog.testing.platter``), what a reader makes of it (``ledger.read.local_reads``).
Always: an open file keeps its bytes when the bookie deletes it, as on a real disk, and is of no use after a
power cut, which ends the programs of a real machine.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import trio

from bookie.entrylog.format import entry_log_name
from bookie.storage.entry_places import EntryPlace, IdentifyLog
from dlog.testing.platter import Inode, Platter

if TYPE_CHECKING:
    from tests.simulation.bookies import BookieMachine
    from tests.simulation.world import World

CURRENT = "current"
SLOW = 0.3  # until faults stop, the share of reads during which the bookie may delete the file
SLOW_S_MAX = 12.0


class LocalFiles:
    """The entry logs of all bookies of a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._inodes: list[Inode] = []  # the number of a file is its place here

    def identify_by(self, machine: BookieMachine) -> IdentifyLog:
        """How a bookie tells clients which file an entry log is."""

        def identify(place: EntryPlace) -> tuple[int, int]:
            path = machine.ledger_directories[place.directory] / CURRENT / entry_log_name(place.log_id)
            inode = machine.platter.names.get(str(path))
            if inode is None:
                raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
            if inode not in self._inodes:
                self._inodes.append(inode)
            return list(self._world.bookies).index(machine.name), self._inodes.index(inode)

        return identify

    def open(self, log_id: int, device: int, inode: int) -> SimEntryLog:
        """Open an entry log; see ``ledger.context.OpenEntryLog``."""
        machine = list(self._world.bookies.values())[device]
        name = entry_log_name(log_id)
        for directory in machine.ledger_directories:
            if machine.platter.names.get(str(directory / CURRENT / name)) is self._inodes[inode]:
                self._world.counts["files read by clients"] += 1
                return SimEntryLog(self._world, machine.platter, name, self._inodes[inode])
        self._world.counts["entry log deleted before a client opened it"] += 1
        raise FileNotFoundError(errno.ENOENT, "deleted, or another file", name)


class SimEntryLog:
    """An entry log that a client has open."""

    def __init__(self, world: World, platter: Platter, name: str, inode: Inode) -> None:
        self._world, self._platter, self._name, self._inode = world, platter, name, inode
        self._cuts = platter.power_cuts

    def read_at_hand(self, view: memoryview, offset: int) -> int:
        if self._platter.rng.random() < 0.5:
            raise BlockingIOError
        data = self._content(offset, len(view))
        view[: len(data)] = data
        return len(data)

    async def read(self, size_bytes: int, offset: int) -> bytes:
        rng = self._platter.rng
        is_slow = rng.random() < SLOW and not self._world.is_ending
        await trio.sleep(rng.uniform(0, SLOW_S_MAX) if is_slow else rng.uniform(*self._platter.latency_s))
        return self._content(offset, size_bytes)

    def close(self) -> None:
        pass

    def _content(self, offset: int, size_bytes: int) -> bytes:
        if self._cuts != self._platter.power_cuts:
            raise OSError(errno.EIO, "the machine lost its power", self._name)
        if self._inode not in self._platter.names.values():
            self._world.counts["deleted entry log read by a client"] += 1
        return bytes(self._inode.now[offset : offset + size_bytes])
