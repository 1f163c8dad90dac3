"""The actions that the machine of a log's writer asks for, one at a time.

Inside: the actions, and the segment that they are about. Not inside: when an action is asked for
(``writer_machine``), performing it (``writer_shell``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from dlog.errors import LogFencedError
from dlog.write.segment_writer import SegmentWriter
from ledger.replication_asked import AskedReplication
from namespace.segments.segment import LogSegment

if TYPE_CHECKING:
    from ledger.handle import WriteHandle


@attrs.frozen
class SegmentInUse:
    """A segment with its ledger."""

    writer: SegmentWriter
    handle: WriteHandle
    segment: LogSegment
    began_s: float
    asked: AskedReplication | None
    """What the segment's ledger should have, if it began on fewer bookies; else None."""


@attrs.frozen
class Begin:
    """Begin a segment, and report it with ``begin``."""

    first_txid: int


@attrs.frozen
class Roll:
    """Make the ledger of the next segment, call ``roll``, and ``finish`` until it is True; then as Begin.

    If the ledger cannot be made, report ``roll_later``.
    """

    in_use: SegmentInUse


@attrs.frozen
class Recover:
    """Find out where the failed ledger ends, and report it with ``settle``."""

    in_use: SegmentInUse
    cause: BaseException


@attrs.frozen
class Complete:
    """Close and complete the oldest segment that is not in use any more; then ``completed``."""

    oldest: SegmentInUse


@attrs.frozen
class Follow:
    """Find the log in the namespace that it was moved to: ``moved``, then ``settle``. Or ``stop``."""

    cause: LogFencedError


@attrs.frozen
class Stop:
    """Call ``stop``: another writer has the log, and nothing is left to follow it for."""

    cause: LogFencedError


class Wait:
    """Nothing to do now; ``Shell.wake`` says when to ask again."""


class End:
    """Nothing is left to do, now and later."""


Action = Begin | Roll | Recover | Complete | Follow | Stop | Wait | End
WAIT, END = Wait(), End()
