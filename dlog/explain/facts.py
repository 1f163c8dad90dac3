"""The facts about a log, a ledger or a bookie at one moment, and a reason as the answer.

Inside: values. Not inside: finding them (``collecting``), conclusions (``ledger_reasons``, ``log_reasons``).
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from dlog.description import SegmentDescription
from ledger.metadata import LedgerMetadata
from namespace.dlsn import DLSN


@attrs.frozen
class Reason:
    """One thing that is true now and explains what is seen."""

    what: str  # one sentence
    evidence: str  # the values that prove it
    next_command: str  # the command that shows more, or mends it
    is_fault: bool = True  # False: all is as it should be


@attrs.frozen(kw_only=True)
class ClusterFacts:
    """The bookies and the auto-recovery of a cluster."""

    writable: frozenset[str]
    readonly: frozenset[str] = frozenset()
    with_cookie: frozenset[str] = frozenset()
    has_recovery: bool = True  # False: a directory, which has one bookie and no auto-recovery
    is_recovery_enabled: bool = True
    auditor: str | None = None
    delay_s: int = 0

    @property
    def registered(self) -> frozenset[str]:
        """The bookies that can be read from."""
        return self.writable | self.readonly


@attrs.frozen(kw_only=True)
class LedgerFacts:
    """One ledger."""

    ledger_id: int
    cluster: ClusterFacts
    metadata: LedgerMetadata | None  # None: there is no such ledger
    # The last confirmed entry as each bookie of the last ensemble has it, or why it does not say. Only of a
    # ledger that is not closed.
    lacs: Mapping[str, int | str] = attrs.field(factory=dict)
    marked_missing: tuple[str, ...] | None = None  # bookies in its mark; None: no mark
    marked_ms: int | None = None
    is_being_restored: bool = False  # a worker holds its lock
    now_ms: int = 0


@attrs.frozen(kw_only=True)
class CursorFacts:
    """One cursor of a log."""

    name: str
    position: DLSN
    lag_records: int | None  # None: it could not be counted


@attrs.frozen(kw_only=True)
class LockMember:
    """One client that holds the writer's lock of a log, or waits for it."""

    owner: str
    session_id: int | None
    since_ms: int


@attrs.frozen(kw_only=True)
class LogFacts:
    """One log."""

    name: str
    cluster: ClusterFacts
    segments: tuple[SegmentDescription, ...]
    first_dlsn: DLSN | None
    last_dlsn: DLSN | None  # of the last record that readers see
    lock: tuple[LockMember, ...]  # the holder first
    ensemble_size: int  # of the next segment
    bookies_min: int  # with fewer writable bookies no segment begins
    is_sealed: bool = False
    moved_to: str | None = None  # the namespace that has the log now
    denied: tuple[str, ...] = ()  # operations that access control entries deny to everyone
    cursors: tuple[CursorFacts, ...] = ()
    ledgers: tuple[LedgerFacts, ...] = ()  # of its newest segments, oldest first
    unread: str | None = None  # why the end of the log could not be read
    now_ms: int = 0


@attrs.frozen(kw_only=True)
class BookieFacts:
    """One bookie."""

    bookie: str
    cluster: ClusterFacts
    total_bytes: int | None = None  # of its ledger disks; None: it did not say
    free_bytes: int | None = None
    silence: str | None = None  # why it did not reply
    marked_ledgers: int = 0  # that miss a replica on it
    rack: str | None = None  # None: not known
