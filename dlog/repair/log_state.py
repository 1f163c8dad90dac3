"""The nodes of a log as they are, also where they do not parse, and the ends of its ledgers.

Inside: the values. Not inside: reading them (``log_reading``), what is wrong with them (``findings``).
Always: nothing is corrected or left out; data that does not parse is kept with the reason.

Source: DistributedLog, LogSegmentMetadata.java, DLUtils.java.
"""

from __future__ import annotations

import re

import attrs

from ledger.replication_asked import AskedReplication
from namespace.dlsn import DLSN
from namespace.segments.segment import LogSegment

_DECIMAL = re.compile(rb"-?[0-9]{1,19}")


@attrs.frozen
class LogNode:
    """A node's data and version."""

    value: bytes
    version: int

    @property
    def number(self) -> int | None:
        """The data as a decimal number; None if they are none."""
        if not _DECIMAL.fullmatch(self.value) or not -(2**63) <= (number := int(self.value)) < 2**63:
            return None
        return number


@attrs.frozen
class SegmentNode:
    """A child of ``ledgers`` that has the name of a segment."""

    name: str
    stored: LogNode
    segment: LogSegment | None  # None if the data do not parse
    problem: str = ""  # why not


@attrs.frozen
class LastRecord:
    """The last record of a ledger, or its last user record."""

    dlsn: DLSN
    txid: int
    position: int  # the number of user records up to it


@attrs.frozen
class LedgerEnd:
    """The end of a segment's ledger."""

    is_missing: bool = False
    is_closed: bool = True
    last: LastRecord | None = None  # of any kind
    last_user: LastRecord | None = None
    problem: str = ""  # why the end cannot be read
    bookies: int = 0  # of its ensemble
    asked: AskedReplication | None = None  # what it should have, if it began on fewer bookies


@attrs.frozen
class LogState:
    """Everything that a check of one log looks at, as of one moment."""

    log: str
    missing: tuple[str, ...]  # paths of the log's own nodes that do not exist
    layout: LogNode
    max_seqno: LogNode
    max_txid: LogNode
    segments: tuple[SegmentNode, ...]  # sorted by name
    ends: dict[int, LedgerEnd]  # by ledger id; of the ledgers that were looked at
    writer: str | None  # the owner of the lock

    @property
    def parsed(self) -> list[LogSegment]:
        """The segments whose data parse, in the order of their numbers."""
        found = [each.segment for each in self.segments if each.segment is not None]
        return sorted(found, key=lambda each: (each.segment_seqno, not each.in_progress))
