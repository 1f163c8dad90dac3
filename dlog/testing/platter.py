"""A machine's disk: its content, the durable part of it, and its faults.

Inside: ``Platter`` with its files (``Inode``), names and index databases (``MapState``); power cuts, damage,
copies. Not inside: the disk seam (``disk``), the times of faults (``world``).
Always: only synced writes survive a power cut for certain. Each sector of the other writes may survive or
not, alone or with others, in an older version or a newer one.

A power cut keeps a prefix of the index database's batches: RocksDB replays its log up to the first hole.

Source: open(2), fsync(2); LevelDB's fault-injection Env, FoundationDB's AsyncFileNonDurable;
docs/storage-format.md 12.2.
"""

from __future__ import annotations

import bisect
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import attrs

from bookie.disk.key_values import Operation
from dlog.testing.clock import Timeline, Trace

SECTOR_BYTES = 512
WHOLLY, IN_PART, OUT_OF_ORDER = "writes lost", "writes lost from some point on", "writes lost out of order"
LOSSES = (WHOLLY, IN_PART, OUT_OF_ORDER)  # how a power cut treats writes that were not synced
TORN = "torn sector"
TEAR_CHANCE = 0.2  # that the first part of a lost sector is written
NEAR_BYTES = 8192
HEAD_BYTES = 32
MARK = b"|"  # the first byte of the clients' payloads; preallocated space does not contain it
RECENT_FILES = 3


class Inode:
    """A file's content: the durable bytes, and the writes since the last sync."""

    def __init__(self) -> None:
        self.durable = bytearray()  # changed by ``_keep`` and ``flip`` only
        self.mark_stop = 0  # ``durable`` has no mark from this offset on
        self.now = bytearray()  # the content that reads return
        self.pending: list[tuple[int, bytes, bool]] = []  # offset, data, whether it is durable for certain
        self.last_writes: deque[tuple[int, int]] = deque(maxlen=2)  # offset, size
        self.holes = range(0)  # the part that takes no space

    def write(self, data: bytes, offset: int) -> None:
        _put(self.now, data, offset)
        self.last_writes.append((offset, len(data)))
        self.pending.append((offset, data, False))

    def cut(self, size_bytes: int) -> None:
        """Cut the end off, durably."""
        del self.now[size_bytes:]
        del self.durable[size_bytes:]
        self.mark_stop = min(self.mark_stop, size_bytes)
        self.pending = [
            (offset, data[: size_bytes - offset], is_durable)
            for offset, data, is_durable in self.pending
            if offset < size_bytes
        ]

    def sync_last(self) -> None:
        """Make the last write durable; writes before it stay pending."""
        offset, data, _ = self.pending.pop()
        self._keep(data, offset)
        self.last_writes.append((offset, len(data)))
        if self.pending:
            self.pending.append(
                (offset, data, True)
            )  # again, after the older writes, which must not cover it

    def sync(self) -> None:
        for offset, data, _ in self.pending:
            self._keep(data, offset)
        self.pending.clear()

    def flip(self, at: int, mask: int) -> None:
        """Change bits at rest."""
        self.now[at] ^= mask
        if at < len(self.durable):
            self.durable[at] ^= mask
            self.mark_stop = max(self.mark_stop, at + 1)

    def find_durable(self, token: bytes, start: int = 0, stop: int | None = None) -> int:
        """The offset of these bytes in the durable content from ``start`` to ``stop``, or -1."""
        content = self.durable
        if token.startswith(MARK):
            last = self.mark_stop + len(token)
            stop = last if stop is None else min(stop, last)
        # Search for the first bytes, which are nearly unique: a search for a long token costs ten times more.
        head = token[:HEAD_BYTES]
        at = content.find(head, start, stop)
        while at >= 0 and not content.startswith(token, at):
            at = content.find(head, at + 1, stop)
        return at

    def _keep(self, data: bytes, offset: int) -> None:
        _put(self.durable, data, offset)
        last = data.rfind(MARK)
        if last >= 0:
            self.mark_stop = max(self.mark_stop, offset + last + 1)

    def lose(self, rng: random.Random, loss: str, counts: Counter[str], *, tears: bool = False) -> None:
        """Cut the power: decide which sectors of the unsynced writes survive.

        Args:
            loss: One of ``LOSSES``, or empty to keep all writes.
            tears: The first part of a lost sector may be on the disk.
        """
        if not self.pending:
            return
        sectors: list[tuple[int, bytes, bool]] = []
        for offset, data, is_durable in self.pending:
            if is_durable:
                sectors.append((offset, data, True))
                continue
            at = 0
            while at < len(data):
                stop = min(len(data), (offset + at) // SECTOR_BYTES * SECTOR_BYTES + SECTOR_BYTES - offset)
                sectors.append((offset + at, data[at:stop], False))
                at = stop
        self.pending.clear()
        # Cut within the filled sectors: a cut in the padding after them loses nothing.
        filled = max((n for n, (_, data, _) in enumerate(sectors) if data.strip(b"\0")), default=0)
        kept_max = rng.randint(0, filled) if loss == IN_PART else len(sectors)
        chance = rng.choice([0.1, 0.5, 0.9]) if loss == OUT_OF_ORDER else 0.0 if loss == WHOLLY else 1.0
        kept = dropped = 0
        for number, (offset, data, is_durable) in enumerate(sectors):
            if is_durable or (number < kept_max and (chance == 1.0 or rng.random() < chance)):
                self._keep(data, offset)
                kept += not is_durable
            else:
                dropped += 1
                if tears and rng.random() < TEAR_CHANCE:
                    self._keep(data[: rng.randrange(len(data))], offset)
                    counts[TORN] += 1
        if dropped:
            counts[loss if kept else WHOLLY] += 1
        self.now = bytearray(self.durable)

    def copy(self) -> Inode:
        """A copy of the content as a backup taken now has it; all of it is durable."""
        other = Inode()
        other._keep(bytes(self.now), 0)
        other.now = bytearray(self.now)
        return other


def _put(content: bytearray, data: bytes, offset: int) -> None:
    size = len(content)
    if offset > size:
        content.extend(bytes(offset - size))
        size = offset
    if offset == size:
        content += data
    else:
        content[offset : offset + len(data)] = data


class MapState:
    """The index database: a map, and the batches since the last sync."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.keys: list[bytes] = []  # sorted
        self.durable: dict[bytes, bytes] = {}
        self.pending: list[Sequence[Operation]] = []
        # Keys in blocks with a wrong checksum. Never iterated: its order may differ from run to run.
        self.damaged: set[bytes] = set()

    def apply(self, operations: Sequence[Operation]) -> None:
        values, keys = self.values, self.keys
        for key, value in operations:
            if self.damaged:
                self.damaged.discard(key)
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
        """Cut the power: a prefix of the pending batches survives."""
        batches = self.pending[: rng.randint(0, len(self.pending))]
        self.reset(self.durable)
        for batch in batches:
            self.apply(batch)
        self.sync()

    def reset(self, values: dict[bytes, bytes]) -> None:
        self.values, self.keys, self.pending = dict(values), sorted(values), []
        self.durable = dict(values)
        self.damaged.intersection_update(values)

    def copy(self) -> MapState:
        other = MapState()
        other.reset(self.values)
        return other


@attrs.define(eq=False)
class Troubles:
    """The current faults of a disk. Chances are per operation."""

    read_error: float = 0.0
    write_error: float = 0.0
    sync_error: float = 0.0
    is_full: bool = False
    growths_left: int = 0  # operations that still find room on a full disk
    free_bytes: int | None = None  # that a full disk reports; None: half a percent of it
    slowness: float = 1.0
    cut_at_step: int | None = None  # the power is cut, or the process killed, at this step from now
    # Which steps count: "sync" (a cut there is certain to lose something), "journal" (its syncs), "" all.
    cut_at: str = ""
    on_cut: Callable[[], None] = lambda: None


NameChange = tuple[str, Inode | None]  # a path, and its file from now on; None: the name is removed


def _apply(names: dict[str, Inode], changes: Sequence[NameChange]) -> None:
    for path, inode in changes:
        if inode is None:
            del names[path]
        else:
            names[path] = inode


class Platter:
    """One machine's disk. It outlives the processes of the machine."""

    def __init__(
        self, name: str, timeline: Timeline, rng: random.Random, trace: Trace, counts: Counter[str]
    ) -> None:
        self.name = name
        self.timeline, self.rng, self.trace, self.counts = timeline, rng, trace, counts
        self.troubles = Troubles()
        self.steps = 0  # operations that change something, so far
        self.power_cuts = 0  # and exchanges of the disk
        self.latency_s = (0.001, 0.008)  # of an operation in a thread; the range
        self.names: dict[str, Inode] = {}  # by path
        self.durable_names: dict[str, Inode] = {}
        self.losses: tuple[str, ...] = LOSSES
        self.tears = True
        self.name_changes: list[tuple[NameChange, ...]] = []  # since the last sync, in order
        self.maps: dict[Path, MapState] = {}
        # Cache of ``_durably_named``: files that have a name now and after a power cut; None: out of date.
        self._sure: dict[Inode, None] | None = None
        self._found: dict[bytes, tuple[Inode, int]] = {}  # the place of each token found before
        self._recent: dict[Inode, int] = {}  # the last place found in each file: the next token is near it

    def holds_durably(self, token: bytes) -> bool:
        """Whether some file would still contain these bytes after a power cut now."""
        sure = self._sure
        if sure is None:
            sure = self._sure = self._durably_named()
        found = self._found.get(token)
        if found is not None:
            inode, at = found
            if inode in sure and inode.durable.startswith(token, at):
                return True
        for inode, last in reversed(self._recent.items()):
            if inode in sure:
                at = inode.find_durable(token, last, last + NEAR_BYTES)
                if at < 0:
                    at = inode.find_durable(token, max(0, last - NEAR_BYTES), last + len(token))
                if at >= 0:
                    self._remember(token, inode, at)
                    return True
        for inode in sure:
            at = inode.find_durable(token)
            if at >= 0:
                self._remember(token, inode, at)
                return True
        return False

    def _remember(self, token: bytes, inode: Inode, at: int) -> None:
        self._found[token] = inode, at
        recent = self._recent
        recent.pop(inode, None)
        recent[inode] = at
        if len(recent) > RECENT_FILES:
            del recent[next(iter(recent))]

    def _durably_named(self) -> dict[Inode, None]:
        # A file that was renamed counts, a deleted one does not: the change may be durable before the next
        # sync.
        there = set(self.names.values())  # used for membership only: its order does not matter
        return {inode: None for inode in reversed(self.durable_names.values()) if inode in there}

    def cut_power(self) -> None:
        """Cut the power: unsynced names, writes and batches survive or not, as the generator decides."""
        rng = self.rng
        self.power_cuts += 1
        loss = rng.choice(["", *self.losses])
        if self.name_changes:
            self.counts["unsynced name"] += 1
        kept = self.name_changes[: rng.randint(0, len(self.name_changes))]
        self.names = dict(self.durable_names)
        for changes in kept:
            _apply(self.names, changes)
        self.synced_names()
        seen: set[int] = set()
        for inode in self.names.values():
            if id(inode) not in seen:  # ``seen`` is used for membership only: its order does not matter
                seen.add(id(inode))
                inode.lose(rng, loss, self.counts, tears=self.tears)
                inode.now = bytearray(inode.durable)
        for state in self.maps.values():
            state.lose(rng)
        self.troubles.cut_at_step = None

    def change_names(self, *changes: NameChange) -> None:
        """Apply these changes atomically; a power cut before the next sync may lose them."""
        _apply(self.names, changes)
        self.name_changes.append(changes)
        self._sure = None

    def synced_names(self) -> None:
        """Make the current names durable."""
        self.durable_names = dict(self.names)
        self.name_changes.clear()
        self._sure = None

    def lose_directory(self, directory: Path) -> None:
        """Remove a directory's files and index databases, durably."""
        prefix = f"{directory}/"
        self.names = {path: inode for path, inode in self.names.items() if not path.startswith(prefix)}
        self.synced_names()
        self.maps = {path: state for path, state in self.maps.items() if directory not in path.parents}

    def paths(self) -> Iterator[tuple[Path, Inode]]:
        """All files with their paths."""
        return ((Path(path), inode) for path, inode in self.names.items())

    def snapshot(self) -> tuple[dict[str, Inode], dict[Path, MapState]]:
        """A copy of the disk for ``restore``."""
        copies = {path: inode.copy() for path, inode in self.names.items()}
        return copies, {path: state.copy() for path, state in self.maps.items()}

    def restore(self, copy: tuple[dict[str, Inode], dict[Path, MapState]]) -> None:
        """Replace the content by a copy, durably."""
        files, maps = copy
        self.power_cuts += 1
        self.names = {path: inode.copy() for path, inode in files.items()}
        self.synced_names()
        self.maps = {path: state.copy() for path, state in maps.items()}

    def wipe(self) -> None:
        """Replace the disk by a new, empty one."""
        self.restore(({}, {}))

    def flip_index_bit(self, rng: random.Random) -> str | None:
        """Damage the block of one key of an index: reads of the key fail. Return the place, None if empty."""
        states = [state for _, state in sorted(self.maps.items()) if state.keys]
        if not states:
            return None
        state = rng.choice(states)
        key = rng.choice(state.keys)
        state.damaged.add(key)
        return f"index at {key!r}"

    def flip_bit(self, pick: Callable[[Path], bool], rng: random.Random) -> tuple[Path, int] | None:
        """Flip one bit at rest in a file that ``pick`` accepts; return its place, or None if no file is."""
        candidates = sorted(path for path, inode in self.paths() if inode.now and pick(path))
        if not candidates:
            return None
        path = rng.choice(candidates)
        inode = self.names[str(path)]
        filled = len(bytes(inode.now).rstrip(b"\0")) or 1
        at = rng.randrange(filled)
        mask = 1 << rng.randrange(8)
        inode.flip(at, mask)
        return path, at

    def is_near_the_end(self, path: Path, at: int) -> bool:
        """Whether this byte belongs to the file's last or second to last write."""
        inode = self.names[str(path)]
        return any(offset <= at < offset + size for offset, size in inode.last_writes)
