"""The format of a snapshot: a header, chunks and an end, each a record.

Inside: cutting a state into records, and finding the last complete snapshot among records.
Not inside: the log of snapshots (``snapshots``).
Always: an incomplete or damaged snapshot is never returned.

    header  kind u8 = 1, version u8 = 1, index u64, segment i64, entry i64, slot i64, state bytes u64
    chunk   kind u8 = 2, up to 512 KiB of the state
    end     kind u8 = 3, index u64, CRC32 of the state u32

All numbers are big-endian. The index is that of the last operation in the state; segment, entry and slot are
its position.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import attrs

from dlog.wal.errors import ReplayError
from namespace.dlsn import DLSN

CHUNK_BYTES_MAX = 512 * 1024
VERSION = 1

_HEADER = struct.Struct(">BBQqqqQ")
_END = struct.Struct(">BQI")
_HEADER_KIND, _CHUNK_KIND, _END_KIND = 1, 2, 3


@attrs.frozen(repr=False)
class StateSnapshot:
    """A state, and the last operation in it."""

    index: int
    dlsn: DLSN
    state: bytes

    def __repr__(self) -> str:
        return f"Snapshot(index={self.index}, dlsn={self.dlsn!r}, {len(self.state)} bytes)"


def encode(snapshot: StateSnapshot) -> Iterator[bytes]:
    """The payloads of a snapshot's records."""
    state = memoryview(snapshot.state)
    at = snapshot.dlsn
    yield _HEADER.pack(
        _HEADER_KIND, VERSION, snapshot.index, at.segment_seqno, at.entry_id, at.slot_id, len(state)
    )
    for start in range(0, len(state), CHUNK_BYTES_MAX):
        yield bytes([_CHUNK_KIND]) + state[start : start + CHUNK_BYTES_MAX]
    yield _END.pack(_END_KIND, snapshot.index, zlib.crc32(state))


class Decoder:
    """Takes the records of the log of snapshots in order; keeps the last complete snapshot."""

    def __init__(self, log: str) -> None:
        self.found: StateSnapshot | None = None
        self._log = log
        self._begun: tuple[int, DLSN, int] | None = None
        self._chunks: list[bytes] = []

    def add(self, payload: bytes) -> None:
        """Take the next record."""
        kind = payload[0] if payload else 0
        if kind == _CHUNK_KIND:
            if self._begun is not None:
                self._chunks.append(payload[1:])
        elif kind == _HEADER_KIND and len(payload) > 1 and payload[1] != VERSION:
            raise ReplayError(
                f"log {self._log!r} has a snapshot of version {payload[1]}; this program knows {VERSION}; "
                "use the program that wrote it, or a newer one"
            )
        elif kind == _HEADER_KIND and len(payload) == _HEADER.size:
            _, _, index, seqno, entry_id, slot, size = _HEADER.unpack(payload)
            # A header without the end before it: the service ended while it wrote that snapshot.
            self._begun, self._chunks = (index, DLSN(seqno, entry_id, slot), size), []
        elif kind == _END_KIND and len(payload) == _END.size:
            self._finish(*_END.unpack(payload)[1:])
        else:
            raise ReplayError(
                f"log {self._log!r} has a record of {len(payload)} bytes that is no part of a snapshot; "
                "another program wrote it"
            )

    def _finish(self, index: int, checksum: int) -> None:
        begun, self._begun = self._begun, None
        state, self._chunks = b"".join(self._chunks), []
        if begun is None:
            return  # its header is truncated
        if begun[0] != index or begun[2] != len(state) or zlib.crc32(state) != checksum:
            raise ReplayError(
                f"log {self._log!r}: the snapshot up to operation {index} is damaged: {len(state)} of "
                f"{begun[2]} bytes, checksum {'differs' if zlib.crc32(state) != checksum else 'matches'}"
            )
        self.found = StateSnapshot(index, begun[1], state)
