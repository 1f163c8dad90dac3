"""``BOOKIE_STATUS``: whether a bookie was writable before its last stop, and whether an operator set that.

One line of ASCII in the ``current`` of each ledger directory, with ``persistBookieStatusEnabled``:

    1,<READ_WRITE|READ_ONLY>,<milliseconds of the change>,<true|false: set by hand>

A line of three fields counts as set by hand. If the directories differ, the newest line counts.

Inside: the format of the line, the choice among several. Not inside: writing it and acting on it
(``disk_watch``).

Source: BookieStatus.java, BookieStateManager.java; docs/storage-format.md 7.4.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from bookie.errors import FormatError

STATUS_NAME = "BOOKIE_STATUS"
_VERSION = "1"
_MODES = {"READ_WRITE": False, "READ_ONLY": True}


@attrs.frozen
class BookieStatus:
    """The content of one line."""

    read_only: bool
    changed_ms: int  # since 1970
    by_hand: bool


def encode_status(status: BookieStatus) -> bytes:
    """The content of the file."""
    mode = "READ_ONLY" if status.read_only else "READ_WRITE"
    by_hand = "true" if status.by_hand else "false"
    return f"{_VERSION},{mode},{status.changed_ms},{by_hand}\n".encode("ascii")


def decode_status(data: bytes) -> BookieStatus:
    """The status in a file; raises ``FormatError`` if its first line does not parse."""
    fields = data.partition(b"\n")[0].strip().decode("latin-1").split(",")
    if len(fields) not in (3, 4) or fields[0] != _VERSION:
        raise FormatError(f"bookie status {data[:80]!r}: expected 1,READ_WRITE or READ_ONLY,milliseconds")
    try:
        read_only, changed_ms = _MODES[fields[1]], int(fields[2])
    except (KeyError, ValueError):
        raise FormatError(f"bookie status {data[:80]!r}: unknown mode or invalid time") from None
    # Like Java's Boolean.parseBoolean: any text but "true" is false.
    return BookieStatus(read_only, changed_ms, len(fields) == 3 or fields[3].lower() == "true")


def newest_status(statuses: Iterable[BookieStatus]) -> BookieStatus | None:
    """The status of the latest change; None if there is no status."""
    return max(statuses, key=lambda status: status.changed_ms, default=None)
