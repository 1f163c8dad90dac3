"""Offsets: how far a query has consumed its streams, in the form that Spark keeps in a checkpoint.

    {"v": 1, "streams": {"orders": [7, 1041, 3]}, "logs": {"orders": "6f1cbd0e6a0e4f6a9a4e2f7f6c4b7c55"}}

means that all records *through* DLSN (7, 1041, 3) are consumed. Slot -1 means the whole entry: a planner
that cuts between entries does not know the number of slots of an entry. ``[7, -1, -1]`` is before all of
segment 7. ``[0, -1, -1]`` is before everything: planning replaces it by the position of the first record that
is left.
``logs`` has the identity of each log that has one (``Namespace.log_identity``): another log of the same name
is not read from the middle. Offsets of older releases have no ``logs``.
A range is (start, end]. At the end of a segment, "consumed through" has one spelling, and "next to read"
would have two; Spark compares offsets as text.

Always: keys are sorted and numbers are integers, so that equal offsets are equal text.

Source: measured behaviour of Spark 4.3's Python sources (docs/stream-format.md 10); Apache DistributedLog,
DLSN.java.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from spark_integration.errors import OffsetFormatError

FORMAT_VERSION = 1
WHOLE_ENTRY = -1
_AFTER_EVERY_SLOT = 2**63


def _slot_order(slot: int) -> int:
    return _AFTER_EVERY_SLOT if slot == WHOLE_ENTRY else slot


@attrs.frozen(order=True)
class Position:
    """All records through this place are consumed. Positions compare in stream order.

    A whole entry compares greater than each of its slots.
    """

    segment: int  # log segment sequence number; 0: before the first
    entry: int
    slot: int = attrs.field(order=_slot_order)  # WHOLE_ENTRY or a slot

    def __str__(self) -> str:
        return f"{self.segment}:{self.entry}:{self.slot}"

    def covers(self, segment: int, entry: int, slot: int) -> bool:
        """True if the record with this DLSN is consumed at this position."""
        return (segment, entry, slot) <= (self.segment, self.entry, _slot_order(self.slot))


BEFORE_EVERYTHING = Position(0, -1, -1)


def just_before(segment: int, entry: int, slot: int) -> Position:
    """The position at which all records before this DLSN are consumed, and none from it on."""
    return Position(segment, entry, slot - 1) if slot else Position(segment, entry - 1, WHOLE_ENTRY)


def to_offset(
    positions: Mapping[str, Position], identities: Mapping[str, str | None] | None = None
) -> dict[str, Any]:
    """The offset object for the position of each stream, and for the identities of their logs."""
    streams = {
        stream: [position.segment, position.entry, position.slot]
        for stream, position in sorted(positions.items())
    }
    logs = {stream: one for stream, one in sorted((identities or {}).items()) if one and stream in streams}
    return {"v": FORMAT_VERSION, "streams": streams} | ({"logs": logs} if logs else {})


def identities_in(offset: object) -> dict[str, str]:
    """The identities of logs in an offset object; none of an older release.

    Raises:
        OffsetFormatError: They are none.
    """
    logs = offset.get("logs", {}) if isinstance(offset, Mapping) else {}
    if not isinstance(logs, Mapping) or not all(
        isinstance(each, str) for pair in logs.items() for each in pair
    ):
        raise OffsetFormatError(
            f"{offset!r} has no identities of logs in 'logs'; use another checkpoint location"
        )
    return dict(logs)


def from_offset(offset: object) -> dict[str, Position]:
    """The position of each stream in an offset object.

    Raises:
        OffsetFormatError: The object is no offset of this connector.
    """
    if not isinstance(offset, Mapping) or not isinstance(offset.get("streams"), Mapping):
        raise OffsetFormatError(
            f"{offset!r} is no offset of the dlog source; use a checkpoint location of this source"
        )
    if offset.get("v") != FORMAT_VERSION:
        raise OffsetFormatError(
            f"the offset {offset!r} has format {offset.get('v')!r}, but this version reads format"
            f" {FORMAT_VERSION}; use the version of dlog that wrote the checkpoint"
        )
    return {stream: position_from_list(value) for stream, value in offset["streams"].items()}


def position_from_list(value: object) -> Position:
    """``[segment, entry, slot]`` as a position.

    Raises:
        OffsetFormatError: The value is no list of three integers, or no record can have this DLSN.
    """
    if not isinstance(value, list) or len(value) != 3 or not all(type(part) is int for part in value):
        raise OffsetFormatError(f"{value!r} is no position; give [segment, entry, slot] with integers")
    segment, entry, slot = value
    if value == [0, -1, -1]:
        return BEFORE_EVERYTHING
    if segment < 1 or entry < -1 or slot < -1 or max(value) >= 2**63:
        raise OffsetFormatError(
            f"{value!r} is no position of a record; segments start at 1, entries and slots at 0 or -1"
        )
    return Position(segment, entry, slot)
