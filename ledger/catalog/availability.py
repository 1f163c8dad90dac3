"""The set of entries of a ledger that a bookie has, in few bytes.

A sequence is several consecutive entry ids. A group is one or more sequences of the same size at equal
distances.

offset  size  field, big-endian
     0     4  version           0
     4     4  number of groups
     8    56  zero
    64    24  each group: first entry of its first sequence (8), first entry of its last sequence (8), entries
              in each sequence (4), distance between the starts of two sequences (4; 0 if there is only one)

For example, {0, 1, 2, 6, 7, 8, 20} is two groups: (0, 6, 3, 6) and (20, 20, 1, 0). One stripe of a ledger is
a single group.

Inside: encoding, decoding, membership, count and periods without listing the entries. Not inside: the request
(``wire.messages.ListEntriesRequest``).
Always: the cost of decoding depends on the number of bytes, not on the number of entries in the groups.

Source: AvailabilityOfEntriesOfLedger.java (its encoder makes a group of each sequence); docs/protocol.md 3.6.
"""

from __future__ import annotations

import bisect
import struct
from collections.abc import Iterable

import attrs

from ledger.errors import WireError

_HEADER = struct.Struct(">ii56x")
_GROUP = struct.Struct(">qqii")
_SIZE_MAX = 2**31 - 1
_ENTRY_ID_STOP = 2**63
assert _HEADER.size == 64  # a constant
assert _GROUP.size == 24  # a constant


@attrs.frozen
class _Group:
    first: int
    last: int  # first entry of the last sequence
    size: int  # entries in each sequence
    period: int  # distance between the starts of two sequences; 0: there is only one

    def holds(self, entry_id: int) -> bool:
        offset = entry_id - self.first
        if self.period == 0:
            return 0 <= offset < self.size
        return offset >= 0 and entry_id < self.last + self.size and offset % self.period < self.size

    def count(self) -> int:
        return self.size if self.period == 0 else ((self.last - self.first) // self.period + 1) * self.size


class Availability:
    """A set of entry ids, with ``in`` and ``len``."""

    def __init__(self, groups: tuple[_Group, ...]) -> None:
        self._groups = groups
        self._firsts = [group.first for group in groups]
        self._count = sum(group.count() for group in groups)

    def __contains__(self, entry_id: object) -> bool:
        if not isinstance(entry_id, int):
            return False
        index = bisect.bisect_right(self._firsts, entry_id) - 1
        return index >= 0 and self._groups[index].holds(entry_id)

    def __len__(self) -> int:
        return self._count

    def covers(self, first: int, last: int) -> bool:
        """True if one sequence holds all ids from ``first`` to ``last``; else look at each of them."""
        index = bisect.bisect_right(self._firsts, first) - 1
        if index < 0:
            return False
        group = self._groups[index]
        is_in_one = group.period in (0, group.size) or (first - group.first) % group.period < group.size - (
            last - first
        )
        return is_in_one and last < group.last + group.size

    def repeats(self, first: int) -> tuple[int | None, int]:
        """How far from this id on membership repeats, and after how many ids: the last such id, the period.

        None as the last id: without end.
        """
        index = bisect.bisect_right(self._firsts, first) - 1
        if index >= 0:
            group = self._groups[index]
            last = group.last + group.size - 1
            if first <= last:
                return last, 1 if group.period in (0, group.size) else group.period
        return (self._firsts[index + 1] - 1, 1) if index + 1 < len(self._firsts) else (None, 1)

    def __repr__(self) -> str:
        return f"<Availability of {self._count} entries>"


def encode_availability(entry_ids: Iterable[int]) -> bytes:
    """Encode entry ids, which must ascend without repetition from 0 or above."""
    groups: list[_Group] = []
    for first, size in _sequences(entry_ids):
        if groups:
            group = groups[-1]
            # Extend the group by a sequence of the same size and distance; the second sequence sets the
            # distance.
            distance = first - group.last
            if size == group.size and distance <= _SIZE_MAX and group.period in (0, distance):
                groups[-1] = _Group(group.first, first, size, distance)
                continue
        groups.append(_Group(first, first, size, 0))
    packed = [_GROUP.pack(group.first, group.last, group.size, group.period) for group in groups]
    return b"".join((_HEADER.pack(0, len(groups)), *packed))


def _sequences(entry_ids: Iterable[int]) -> list[tuple[int, int]]:
    """The first entry and the size of each sequence."""
    sequences: list[tuple[int, int]] = []
    first, size = 0, 0
    for entry_id in entry_ids:
        if size and entry_id == first + size and size < _SIZE_MAX:
            size += 1
            continue
        assert entry_id >= first + size, "entry ids must ascend"  # callers pass ids in ascending order
        if size:
            sequences.append((first, size))
        first, size = entry_id, 1
    if size:
        sequences.append((first, size))
    return sequences


def decode_availability(data: bytes) -> Availability:
    """Decode the reply of a bookie.

    Raises:
        WireError: The version is unknown, bytes are missing, or a group is impossible.
    """
    if len(data) < _HEADER.size:
        raise WireError(f"a list of entries in {len(data)} bytes; the header alone has {_HEADER.size}")
    version, count = _HEADER.unpack_from(data)
    if version != 0:
        raise WireError(f"a list of entries of version {version}; this program knows version 0")
    if not 0 <= count * _GROUP.size <= len(data) - _HEADER.size:
        raise WireError(f"a list of entries with {count} groups in {len(data)} bytes")
    end = _HEADER.size + count * _GROUP.size
    groups = tuple(_Group(*fields) for fields in _GROUP.iter_unpack(data[_HEADER.size : end]))
    beyond = 0
    for group in groups:
        is_single = group.period == 0 and group.last == group.first
        is_periodic = group.period >= group.size and (group.last - group.first) % max(group.period, 1) == 0
        too_far = group.last + group.size > _ENTRY_ID_STOP
        if (
            too_far
            or group.first < beyond
            or group.size < 1
            or group.last < group.first
            or not (is_single or is_periodic)
        ):
            raise WireError(f"a list of entries with an impossible group: {group}")
        beyond = group.last + group.size
    if sum(group.count() for group in groups) >= _ENTRY_ID_STOP:
        raise WireError("a list of entries that contains every possible entry id")
    return Availability(groups)
