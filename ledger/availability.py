"""Which entries of a ledger a bookie holds, in few bytes.

offset  size  field, big-endian
     0     4  version           0
     4     4  number of groups
     8    56  zero
    64    24  each group: first entry of its first run (8), first entry of its last run (8), entries in each
              run (4), distance between the starts of two runs (4; 0 if there is one run only)

So {0, 1, 2, 6, 7, 8, 20} is two groups: (0, 6, 3, 6) and (20, 20, 1, 0). A bookie that holds one stripe of a
ledger needs a single group for it.

Inside: both directions; asking which entries are there without listing them. Not inside: who asks
(``wire.messages.ListEntriesRequest``).
Always: decoding costs what the bytes are long, not what the groups in them would hold.

Source: AvailabilityOfEntriesOfLedger.java (whose encoder makes a group of every run); reference 3.6.
"""

from __future__ import annotations

import bisect
import struct
from collections.abc import Iterable

import attrs

from ledger.errors import WireError

_HEADER = struct.Struct(">ii56x")
_GROUP = struct.Struct(">qqii")
_RUN_MAX = 2**31 - 1
_ENTRY_ID_STOP = 2**63
assert _HEADER.size == 64
assert _GROUP.size == 24


@attrs.frozen
class _Group:
    first: int
    last: int  # first entry of the last run
    run: int
    period: int  # 0: one run

    def holds(self, entry_id: int) -> bool:
        offset = entry_id - self.first
        if self.period == 0:
            return 0 <= offset < self.run
        return offset >= 0 and entry_id < self.last + self.run and offset % self.period < self.run

    def count(self) -> int:
        return self.run if self.period == 0 else ((self.last - self.first) // self.period + 1) * self.run


class Availability:
    """A set of entry ids, asked by ``in``; ``len`` counts them."""

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

    def __repr__(self) -> str:
        return f"<Availability of {self._count} entries>"


def encode_availability(entry_ids: Iterable[int]) -> bytes:
    """The bytes for ascending entry ids without repetition, none below zero."""
    groups: list[_Group] = []
    for first, run in _runs(entry_ids):
        if groups:
            group = groups[-1]
            # A group takes one more run of the same length and distance; its second run sets the distance.
            distance = first - group.last
            if run == group.run and distance <= _RUN_MAX and group.period in (0, distance):
                groups[-1] = _Group(group.first, first, run, distance)
                continue
        groups.append(_Group(first, first, run, 0))
    packed = [_GROUP.pack(group.first, group.last, group.run, group.period) for group in groups]
    return b"".join((_HEADER.pack(0, len(groups)), *packed))


def _runs(entry_ids: Iterable[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    first, run = 0, 0
    for entry_id in entry_ids:
        if run and entry_id == first + run and run < _RUN_MAX:
            run += 1
            continue
        assert entry_id >= first + run, "entry ids must ascend"
        if run:
            runs.append((first, run))
        first, run = entry_id, 1
    if run:
        runs.append((first, run))
    return runs


def decode_availability(data: bytes) -> Availability:
    """The set that a bookie's answer stands for.

    Raises:
        WireError: A newer version, fewer bytes than groups, or groups that no entries could make.
    """
    if len(data) < _HEADER.size:
        raise WireError(f"a list of entries in {len(data)} bytes; its header alone has {_HEADER.size}")
    version, count = _HEADER.unpack_from(data)
    if version != 0:
        raise WireError(f"a list of entries of version {version}; this program knows version 0")
    if not 0 <= count * _GROUP.size <= len(data) - _HEADER.size:
        raise WireError(f"a list of entries with {count} groups in {len(data)} bytes")
    end = _HEADER.size + count * _GROUP.size
    groups = tuple(_Group(*fields) for fields in _GROUP.iter_unpack(data[_HEADER.size : end]))
    beyond = 0
    for group in groups:
        one_run = group.period == 0 and group.last == group.first
        more_runs = group.period >= group.run and (group.last - group.first) % max(group.period, 1) == 0
        too_far = group.last + group.run > _ENTRY_ID_STOP
        if (
            too_far
            or group.first < beyond
            or group.run < 1
            or group.last < group.first
            or not (one_run or more_runs)
        ):
            raise WireError(f"a list of entries with an impossible group: {group}")
        beyond = group.last + group.run
    if sum(group.count() for group in groups) >= _ENTRY_ID_STOP:
        raise WireError("a list of every entry that could ever be")
    return Availability(groups)
