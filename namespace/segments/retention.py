"""How long the records of a log are kept: the rule, its stored form, and which records it gives up.

Inside: the value, its JSON, the decision. Not inside: the node (``retention_node``), marking and deleting
segments (``dlog.write.space``).
Always: whole completed segments are given up, from the oldest on, never the segment in use; a rule that does
not parse gives up nothing; with ``keep_unread`` no record goes that a cursor has not consumed, and every
cursor stays in a segment that exists.

The node ``dlog-retention`` of a log holds JSON. Apache's programs ignore it, but cannot delete a log that has
one: ``dlog log delete`` can::

    {"version": 1, "age_s": 604800, "size_bytes": null, "keep_unread": true}

Source: our own; docs/stream-format.md 6.3.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Iterable, Mapping, Sequence

import attrs

from namespace.dlsn import DLSN
from namespace.errors import ConfigError
from namespace.segments.segment import LogSegment

VERSION = 1
_KEYS = {"version", "age_s", "size_bytes", "keep_unread"}


@attrs.frozen(kw_only=True)
class Retention:
    """Which records of a log are kept.

    A segment is given up if it was completed longer than ``age_s`` seconds ago, or if the later completed
    segments alone hold at least ``size_bytes``. With ``keep_unread``, records that some cursor has not
    consumed stay, and so does the segment that a cursor is in. With ``keep_unread`` alone, the segments that
    all cursors have left are given up; a log without a cursor keeps all.

    Raises:
        ConfigError: Nothing is set, a value has a wrong type, or a number is not positive.
    """

    age_s: float | None = None
    size_bytes: int | None = None
    keep_unread: bool = False

    def __attrs_post_init__(self) -> None:
        numbers = ((self.age_s, int | float), (self.size_bytes, int))
        are_numbers = all(
            number is None or (isinstance(number, kind) and not isinstance(number, bool))
            for number, kind in numbers
        )
        if not are_numbers or not isinstance(self.keep_unread, bool):
            raise ConfigError(f"the retention has a value of the wrong type: {self}")
        if self.age_s is not None and not (0 < self.age_s < math.inf):
            raise ConfigError(f"retention: an age of {self.age_s} s; it must be positive and finite")
        if self.size_bytes is not None and self.size_bytes <= 0:
            raise ConfigError(f"retention: a size of {self.size_bytes} bytes; it must be positive")
        if self.age_s is None and self.size_bytes is None and not self.keep_unread:
            raise ConfigError("retention: give an age, a size or keep_unread; None removes the rule")

    @staticmethod
    def of(
        *, age: datetime.timedelta | None = None, size_bytes: int | None = None, keep_unread: bool = False
    ) -> Retention:
        """The rule for these limits. Raises like the class."""
        if not isinstance(age, datetime.timedelta | None):
            raise ConfigError(f"retention: an age is a datetime.timedelta, not {age!r}")
        age_s = None if age is None else age.total_seconds()
        return Retention(age_s=age_s, size_bytes=size_bytes, keep_unread=keep_unread)


def first_retained(
    retention: Retention,
    segments: Sequence[LogSegment],
    *,
    now_ms: int,
    sizes: Mapping[int, int],
    cursors: Iterable[DLSN],
) -> DLSN | None:
    """The first position to keep; None if nothing is given up.

    Args:
        segments: In log order.
        now_ms: The clock of the caller, epoch milliseconds. A clock that is ahead gives up records too early.
        sizes: The bytes of each completed segment, by ledger id; needed with ``size_bytes`` only.
        cursors: The positions of all cursors.
    """
    slowest = min(cursors, default=None)
    by_cursors_only = retention.age_s is None and retention.size_bytes is None
    if by_cursors_only and slowest is None:
        return None
    completed = []
    for segment in segments:
        if segment.in_progress:
            break
        completed.append(segment)
    later_bytes = sum(sizes.get(segment.ledger_id, 0) for segment in completed)
    first: DLSN | None = None
    for segment in completed:
        later_bytes -= sizes.get(segment.ledger_id, 0)
        is_old = retention.age_s is not None and segment.completed_ms < now_ms - retention.age_s * 1000
        is_beyond = retention.size_bytes is not None and later_bytes >= retention.size_bytes
        if not (is_old or is_beyond or by_cursors_only):
            break
        # The segment of a cursor stays even if all of it is consumed. Once it is purged, nothing shows that
        # no record lies after the cursor, and a reader that opens there is refused.
        if retention.keep_unread and slowest is not None and slowest.segment_seqno <= segment.segment_seqno:
            break
        first = segment.first_dlsn.next_segment()
    return first


def encode_retention(retention: Retention) -> bytes:
    """The bytes to store."""
    return json.dumps({"version": VERSION, **attrs.asdict(retention)}).encode()


def decode_retention(data: bytes) -> Retention:
    """Read the stored bytes.

    Raises:
        ConfigError: They are no rule of a version that this release knows.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"the retention is not JSON: {exc}") from None
    if not isinstance(document, dict) or set(document) != _KEYS or document["version"] != VERSION:
        raise ConfigError(f"the retention is not an object of version {VERSION} with its keys")
    del document["version"]
    return Retention(**document)
