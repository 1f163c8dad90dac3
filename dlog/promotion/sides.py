"""The two namespaces of a promotion, and how far it is.

Inside: values. Not inside: what is done with them (``promoter``).
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from dlog.config import NamespaceConfig
from ledger.client import LedgerClient
from ledger.metadata_store.store import MetadataStore
from ledger.runtime.clock import wall_ms


@attrs.frozen(kw_only=True)
class Side:
    """One of the two namespaces, open."""

    uri: str
    store: MetadataStore
    client: LedgerClient
    path: str
    config: NamespaceConfig
    first_segment_seqno: int
    wall_ms: Callable[[], int] = wall_ms


@attrs.frozen
class PromotionProgress:
    """Where a running promotion is."""

    log: str
    step: str
    segments_copied: int
    segments: int
    bytes_copied: int  # by this call


@attrs.frozen
class PromotionStatus:
    """What both sides store about a promotion."""

    log: str
    target: str
    phase: str  # of the source: copying, handed over, done, undoing
    is_purged: bool
    segments: int  # at the source
    segments_copied: int  # of them, at the target
    takes_records: str | None  # the URI of the side that does; None in the middle of the hand-over
