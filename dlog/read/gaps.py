"""Missing data of a log: a range of positions, its cause, and which failed reads prove a loss.

Inside: ``Gap``. Not inside: finding gaps (``gap_finder``).
Always: an entry is gone only if each replica denied it or returned bytes with a wrong digest.
"""

from __future__ import annotations

import enum

import attrs

from dlog.errors import DLogError
from ledger.errors import (
    CorruptEntryError,
    EntryGoneError,
    LedgerReadError,
    NoEntryRefusal,
    NoLedgerRefusal,
    NoSuchLedgerError,
)
from namespace.dlsn import DLSN


class GapCause(enum.Enum):
    """Why records are missing."""

    TRUNCATED = "truncated"  # given up on purpose: a truncation or a retention
    SEGMENT_MISSING = "segment missing"  # the metadata skip a log segment sequence number
    LEDGER_MISSING = "ledger missing"  # the metadata store has no ledger of the segment
    ENTRY_MISSING = "entry missing"  # every replica denies the entries, or has damaged bytes of them
    ENTRY_DAMAGED = "entry damaged"  # the digest is right, and the bytes are no entry
    RECORDS_MISSING = "records missing"  # the positions in the segment skip records


@attrs.frozen
class Gap:
    """A range of positions whose records are gone for good.

    A position in it need not have held a record. The number of entries or slots may not be known. Then
    ``last`` has 2**63 - 1 for it.
    """

    first: DLSN
    last: DLSN  # inclusive
    cause: GapCause
    evidence: str
    resume: DLSN  # the reader continues there


@attrs.frozen
class Missing:
    """A gap, and the error of the calls that return no gaps."""

    gap: Gap
    error: DLogError


def is_gone(error: LedgerReadError | NoSuchLedgerError) -> bool:
    """True if no replica will return the entry: each one denied it, or returned bytes with a wrong digest."""
    if isinstance(error, NoSuchLedgerError):
        return False  # a matter of the metadata
    reasons = error.reasons.values()
    return bool(reasons) and all(
        isinstance(reason, (NoEntryRefusal, NoLedgerRefusal, CorruptEntryError, EntryGoneError))
        for reason in reasons
    )


def check_gaps(subject: str, gaps: bool) -> None:
    """Raise ValueError if a reader was opened without ``gaps``."""
    if not gaps:
        raise ValueError(f"{subject}: missing data are errors for this reader; open it with gaps=True")
