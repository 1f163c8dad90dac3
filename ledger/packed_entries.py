"""Consecutive entries in one byte string, each after its size, as batch replies and entry logs hold them.

offset  size  field
     0     4  n     signed, big-endian: the size of the entry
     4     n  the entry (``digest``)

Inside: the sequence of such entries, and where each begins. Not inside: what an entry holds (``digest``).
Always: an entry lies within the byte string; nothing is copied before an entry is taken.

Source: BookKeeper, BatchedReadEntryProcessor.java; docs/protocol.md 2.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import overload

SIZE = struct.Struct(">i")
SIZE_BYTES = 4
_UNIFORM_MIN = 4  # of fewer entries each one is looked at


class PackedEntries(Sequence[bytes]):
    """The entries of ``data[starts[0] - 4 : stop]``. An element is the whole entry; taking one copies it."""

    __slots__ = ("data", "starts", "stop")

    def __init__(self, data: bytes, starts: Sequence[int], stop: int) -> None:
        """``starts``: where each entry begins, after its size. A ``range``: all entries have one size."""
        self.data, self.starts, self.stop = data, starts, stop

    def __repr__(self) -> str:
        return f"<PackedEntries, {len(self)} in {len(self.packed)} bytes>"

    def __len__(self) -> int:
        return len(self.starts)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> PackedEntries: ...
    def __getitem__(self, index: int | slice) -> bytes | PackedEntries:
        starts = self.starts
        if isinstance(index, slice):
            first, stop, step = index.indices(len(starts))
            if step != 1:
                raise ValueError("the entries are consecutive: a slice has no step")
            if first == 0 and stop == len(starts):
                return self
            end = starts[stop] - SIZE_BYTES if stop < len(starts) else self.stop
            return PackedEntries(self.data, starts[first:stop], end)
        at = index + len(starts) if index < 0 else index
        if not 0 <= at < len(starts):
            raise IndexError(f"there is no entry {index} among {len(starts)}")
        return self.data[starts[at] : starts[at + 1] - SIZE_BYTES if at + 1 < len(starts) else self.stop]

    def __eq__(self, other: object) -> bool:
        """True if the other sequence holds the same entries."""
        if not isinstance(other, (PackedEntries, tuple, list)):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    @property
    def packed(self) -> memoryview:
        """The entries with their sizes, as they are stored and sent."""
        if not self.starts:
            return memoryview(b"")
        return memoryview(self.data)[self.starts[0] - SIZE_BYTES : self.stop]

    def stops(self) -> list[int]:
        """Where each entry ends."""
        stops = [start - SIZE_BYTES for start in self.starts[1:]]
        if self.starts:
            stops.append(self.stop)
        return stops


def unpack_entries(data: bytes, start: int, stop: int) -> PackedEntries:
    """The entries in ``data[start:stop]``.

    Raises:
        ValueError: A size is negative, or its entry does not end within the bytes.
    """
    if stop - start >= SIZE_BYTES:
        (size,) = SIZE.unpack_from(data, start)
        step = SIZE_BYTES + size
        if size >= 0 and not (stop - start) % step and _are_uniform(data, start, stop, step):
            return PackedEntries(data, range(start + SIZE_BYTES, stop + 1, step), stop)
    starts: list[int] = []
    position = start
    while position < stop:
        if stop - position < SIZE_BYTES:
            raise ValueError(f"a batch of entries ends with {stop - position} bytes where a size should be")
        (size,) = SIZE.unpack_from(data, position)
        position += SIZE_BYTES
        if not 0 <= size <= stop - position:
            raise ValueError(f"entry of {size} bytes in a batch that has {stop - position} left")
        starts.append(position)
        position += size
    return PackedEntries(data, starts, stop)


def _are_uniform(data: bytes, start: int, stop: int, step: int) -> bool:
    """True if each of the sizes, one every ``step`` bytes, is the first one."""
    count = (stop - start) // step
    # Compared byte by byte of the size, for all entries at once: a slice with a step is one call.
    return count >= _UNIFORM_MIN and all(
        data[at:stop:step] == data[at : at + 1] * count for at in range(start, start + SIZE_BYTES)
    )


def unpack_whole_entries(data: bytes, count_max: int) -> PackedEntries:
    """The entries at the start of ``data`` that are complete there, at most ``count_max``. Ends before a size
    below 0."""
    size_bytes = len(data)
    if size_bytes >= SIZE_BYTES:
        (size,) = SIZE.unpack_from(data, 0)
        step = SIZE_BYTES + size
        if size >= 0:
            stop = min(count_max, size_bytes // step) * step
            if _are_uniform(data, 0, stop, step):
                return PackedEntries(data, range(SIZE_BYTES, stop + 1, step), stop)
    starts: list[int] = []
    position = 0
    while len(starts) < count_max and size_bytes - position >= SIZE_BYTES:
        (size,) = SIZE.unpack_from(data, position)
        if not 0 <= size <= size_bytes - position - SIZE_BYTES:
            break
        starts.append(position + SIZE_BYTES)
        position += SIZE_BYTES + size
    return PackedEntries(data, starts, position)


def pack_entries(entries: Sequence[bytes]) -> PackedEntries:
    """These entries in one byte string; a copy unless they are packed already."""
    if isinstance(entries, PackedEntries):
        return entries
    data = b"".join([part for entry in entries for part in (SIZE.pack(len(entry)), entry)])
    return unpack_entries(data, 0, len(data))


def join_entries(parts: Sequence[PackedEntries]) -> PackedEntries:
    """The entries of all parts in one byte string; a copy unless there is one part."""
    if len(parts) == 1:
        return parts[0]
    data = b"".join([part.packed for part in parts])
    return unpack_entries(data, 0, len(data))
