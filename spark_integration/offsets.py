"""How far a stream has been consumed, as Spark keeps it in a checkpoint.

    {"v": 1, "streams": {"orders": [7, 1041, 3]}}

means: everything *through* DLSN (7, 1041, 3) is consumed. Slot -1 stands for the whole entry; a planner
that cuts between entries does not know how many slots an entry has. ``[7, -1, -1]`` is before all of segment
7. ``[0, -1, -1]`` is before everything, whatever that is by then: a query or a range that begins there is
given the position of what is left when it is planned.
Ranges are (start, end]: "consumed through" has one spelling at the end of a segment where "next to read"
would have two, and Spark compares offsets as text.

Always: keys sorted, integers only, so that equal offsets are equal text.

Source: measured behaviour of Spark 4.3's Python sources; Apache DistributedLog, DLSN.java.
"""

from __future__ import annotations

import json
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
    """Consumed through here; compares in stream order, a whole entry after each of its slots."""

    segment: int  # log segment sequence number; 0: before the first
    entry: int
    slot: int = attrs.field(order=_slot_order)  # WHOLE_ENTRY or a slot

    def covers(self, segment: int, entry: int, slot: int) -> bool:
        """Whether the record with this DLSN is consumed at this position."""
        return (segment, entry, slot) <= (self.segment, self.entry, _slot_order(self.slot))


BEFORE_EVERYTHING = Position(0, -1, -1)


def just_before(segment: int, entry: int, slot: int) -> Position:
    """Everything before this place is consumed, and nothing from it on."""
    return Position(segment, entry, slot - 1) if slot else Position(segment, entry - 1, WHOLE_ENTRY)


def to_offset(stream: str, position: Position) -> dict[str, Any]:
    """The offset object for one stream, in its one spelling."""
    return {"v": FORMAT_VERSION, "streams": {stream: [position.segment, position.entry, position.slot]}}


def from_offset(offset: object, stream: str) -> Position:
    """The position of a stream in an offset object.

    Raises:
        OffsetFormatError: Not an offset of this connector, or of another stream: a checkpoint can be
            resumed only over the stream it was begun with.
    """
    if not isinstance(offset, Mapping) or not isinstance(offset.get("streams"), Mapping):
        raise OffsetFormatError(f"not an offset of the dlog source: {offset!r}")
    if offset.get("v") != FORMAT_VERSION:
        raise OffsetFormatError(f"offset of format {offset.get('v')!r}; this version reads {FORMAT_VERSION}")
    streams = offset["streams"]
    if set(streams) != {stream}:
        raise OffsetFormatError(
            f"the checkpoint belongs to {sorted(streams)}, the query reads {stream!r};"
            " use a new checkpoint location for another stream"
        )
    return position_from_list(streams[stream])


def position_from_list(value: object) -> Position:
    """``[segment, entry, slot]`` as a position; anything else is an ``OffsetFormatError``."""
    if not isinstance(value, list) or len(value) != 3 or not all(type(part) is int for part in value):
        raise OffsetFormatError(f"a position is [segment, entry, slot] in integers, not {value!r}")
    segment, entry, slot = value
    if value == [0, -1, -1]:
        return BEFORE_EVERYTHING
    if segment < 1 or entry < -1 or slot < -1 or max(value) >= 2**63:
        raise OffsetFormatError(f"no record can stand at {value!r}")
    return Position(segment, entry, slot)


def parse_position_option(name: str, text: str, stream: str) -> Position:
    """A position given by a user as JSON: ``[7, 0, 0]`` or ``{"orders": [7, 0, 0]}``."""
    try:
        value = json.loads(text)
    except ValueError:
        raise OffsetFormatError(f"option {name}: {text!r} is neither a keyword nor JSON") from None
    if isinstance(value, dict):
        if set(value) != {stream}:
            raise OffsetFormatError(f"option {name}: names {sorted(value)}, the stream is {stream!r}")
        value = value[stream]
    return position_from_list(value)
