"""A machine's disk: what is on it, what of it is durable, and what goes wrong with it.

Inside: ``Platter`` with its files (``Inode``), names and index databases (``MapState``); power cuts, damage,
copies. Not inside: the disk seam (``disk``), when things happen (``faults``).
Always: only what was synced survives a power cut for certain; of the rest any sector may, alone or with
others, in an older version or a newer one.

The index database keeps a prefix of its batches: RocksDB's log is replayed to the first hole.

Source: open(2), fsync(2); LevelDB's fault-injection Env, FoundationDB's AsyncFileNonDurable; bookie-storage
reference 7.1.
"""

from __future__ import annotations

import bisect
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

from bookie.key_values import Operation
from tests.simulation.clockwork import Timeline
from tests.simulation.trace import Trace

SECTOR_BYTES = 512
NEAR_BYTES = 8192


class Inode:
    """A file's content: what is durable, and the writes since."""

    def __init__(self) -> None:
        self.durable = bytearray()
        self.now = bytearray()  # what reads see
        self.pending: list[tuple[int, bytes, bool]] = []  # offset, data, surely durable

    def write(self, data: bytes, offset: int, *, durably: bool = False) -> None:
        _put(self.now, data, offset)
        if durably:
            _put(self.durable, data, offset)
        if self.pending or not durably:
            self.pending.append((offset, data, durably))  # a sure one again: older ones must not cover it

    def sync(self) -> None:
        for offset, data, _ in self.pending:
            _put(self.durable, data, offset)
        self.pending.clear()

    def lose(self, rng: random.Random, chance: float, counts: Counter[str]) -> None:
        """Power off: each sector of each unsynced write is there or not. ``chance``: of being there."""
        if not self.pending:
            return
        kept = dropped = 0
        for offset, data, surely in self.pending:
            if surely:
                _put(self.durable, data, offset)
                continue
            at = 0
            while at < len(data):
                stop = min(len(data), (offset + at) // SECTOR_BYTES * SECTOR_BYTES + SECTOR_BYTES - offset)
                if rng.random() < chance:
                    _put(self.durable, data[at:stop], offset + at)
                    kept += 1
                else:
                    dropped += 1
                at = stop
        self.pending.clear()
        counts["unsynced write torn" if kept and dropped else "unsynced write lost"] += dropped > 0
        self.now = bytearray(self.durable)

    def copy(self) -> Inode:
        """What a backup taken now would bring back."""
        other = Inode()
        other.durable = bytearray(self.now)
        other.now = bytearray(self.now)
        return other


def _put(content: bytearray, data: bytes, offset: int) -> None:
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


class MapState:
    """The index database: a map, and the batches since its last sync."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.keys: list[bytes] = []  # sorted
        self.durable: dict[bytes, bytes] = {}
        self.pending: list[Sequence[Operation]] = []

    def apply(self, operations: Sequence[Operation]) -> None:
        values, keys = self.values, self.keys
        for key, value in operations:
            if value is None:
                if values.pop(key, None) is not None:
                    del keys[bisect.bisect_left(keys, key)]
            else:
                if key not in values:
                    bisect.insort(keys, key)
                values[key] = value
        self.pending.append(operations)

    def sync(self) -> None:
        if self.pending:
            self.durable = dict(self.values)
            self.pending.clear()

    def lose(self, rng: random.Random) -> None:
        """Power off: a prefix of the batches is there."""
        batches = self.pending[: rng.randint(0, len(self.pending))]
        self.reset(self.durable)
        for batch in batches:
            self.apply(batch)
        self.sync()

    def reset(self, values: dict[bytes, bytes]) -> None:
        self.values, self.keys, self.pending = dict(values), sorted(values), []
        self.durable = dict(values)

    def copy(self) -> MapState:
        other = MapState()
        other.reset(self.values)
        return other


@attrs.define(eq=False)
class Troubles:
    """What goes wrong with a disk at the moment. Chances are per operation."""

    read_error: float = 0.0
    write_error: float = 0.0
    sync_error: float = 0.0
    is_full: bool = False
    slowness: float = 1.0
    cut_at_step: int | None = None  # the power goes, or the process dies, at this step from now
    on_cut: Callable[[], None] = lambda: None


class Platter:
    """One machine's disk. It outlives the processes that use it."""

    def __init__(
        self, name: str, timeline: Timeline, rng: random.Random, trace: Trace, counts: Counter[str]
    ) -> None:
        self.name = name
        self.timeline, self.rng, self.trace, self.counts = timeline, rng, trace, counts
        self.troubles = Troubles()
        self.names: dict[Path, Inode] = {}
        self.durable_names: dict[Path, Inode] = {}
        self.name_changes: list[dict[Path, Inode]] = []  # the names after each change since the last sync
        self.maps: dict[Path, MapState] = {}
        # Where what was asked for was found, and the last of it: it is there still, and the next is near.
        self._found: dict[bytes, tuple[Path, Inode, int]] = {}
        self._last_path, self._last_at = Path(), 0

    def holds_durably(self, token: bytes) -> bool:
        """Whether these bytes would survive a power cut now, in whatever file."""
        found = self._found.get(token)
        if found is not None:
            path, inode, at = found
            if self._is_sure(path, inode) and inode.durable.startswith(token, at):
                return True
        recent = self.durable_names.get(self._last_path)
        if recent is not None and self._is_sure(self._last_path, recent):
            near = max(0, self._last_at - NEAR_BYTES)
            at = recent.durable.find(token, near, near + 2 * NEAR_BYTES)
            if at >= 0:
                self._found_token(token, self._last_path, recent, at)
                return True
        for path, inode in reversed(self.durable_names.items()):
            at = inode.durable.find(token)
            if at >= 0 and self._is_sure(path, inode):
                self._found_token(token, path, inode, at)
                return True
        return False

    def _found_token(self, token: bytes, path: Path, inode: Inode, at: int) -> None:
        self._found[token] = path, inode, at
        self._last_path, self._last_at = path, at

    def _is_sure(self, path: Path, inode: Inode) -> bool:
        # Also under a new name, but not deleted: whether a change of names is durable is open until a sync.
        if self.names.get(path) is not inode and all(other is not inode for other in self.names.values()):
            return False
        return self.durable_names.get(path) is inode

    def cut_power(self) -> None:
        """Everything not synced is at the mercy of chance."""
        rng = self.rng
        chance = rng.choice([0.0, 0.5, 0.9, 1.0])
        choices = [self.durable_names, *self.name_changes]
        if len(choices) > 1:
            self.counts["unsynced name"] += 1
        self.names = dict(rng.choice(choices))
        self.durable_names = dict(self.names)
        self.name_changes.clear()
        seen: set[int] = set()
        for inode in self.names.values():
            if id(inode) not in seen:  # only asked for membership: order does not matter
                seen.add(id(inode))
                inode.lose(rng, chance, self.counts)
                inode.now = bytearray(inode.durable)
        for state in self.maps.values():
            state.lose(rng)
        self.troubles.cut_at_step = None

    def changed_names(self) -> None:
        self.name_changes.append(dict(self.names))

    def snapshot(self) -> tuple[dict[Path, Inode], dict[Path, MapState]]:
        """A copy to restore later."""
        copies = {path: inode.copy() for path, inode in self.names.items()}
        return copies, {path: state.copy() for path, state in self.maps.items()}

    def restore(self, copy: tuple[dict[Path, Inode], dict[Path, MapState]]) -> None:
        """Put an old copy in the place of what is there."""
        files, maps = copy
        self.names = {path: inode.copy() for path, inode in files.items()}
        self.durable_names = dict(self.names)
        self.name_changes.clear()
        self.maps = {path: state.copy() for path, state in maps.items()}

    def wipe(self) -> None:
        """A new, empty disk."""
        self.restore(({}, {}))

    def flip_bit(self, pick: Callable[[Path], bool], rng: random.Random) -> str | None:
        """Damage one bit of a file at rest; its name, or None if there is no such file."""
        candidates = sorted(path for path, inode in self.names.items() if inode.now and pick(path))
        if not candidates:
            return None
        path = rng.choice(candidates)
        inode = self.names[path]
        filled = len(bytes(inode.now).rstrip(b"\0")) or 1
        at = rng.randrange(filled)
        mask = 1 << rng.randrange(8)
        inode.now[at] ^= mask
        if at < len(inode.durable):
            inode.durable[at] ^= mask
        return f"{path.name} byte {at}"
