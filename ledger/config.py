"""Settings of a ledger client. All defaults are safe.

Source: ClientConfiguration.java; docs/protocol.md 10.1; docs/known-bugs.md 34, 48 (every wait and every queue
has a bound).
"""

from __future__ import annotations

from typing import Any

import attrs
from attrs.validators import ge, gt, instance_of, optional

from ledger.placement.config import PlacementConfig
from ledger.transport.config import TransportConfig

_POSITIVE_OR_NONE: Any = optional(gt(0))


@attrs.frozen(kw_only=True)
class ClientConfig:
    """Timeouts and memory limits of a ledger client."""

    transport: TransportConfig = attrs.field(factory=TransportConfig)
    placement: PlacementConfig = attrs.field(factory=PlacementConfig)

    bytes_in_flight_max: int = attrs.field(default=32 * 1024 * 1024, validator=gt(0))
    """Per writer: encoded bytes of entries to which some replica has not replied yet."""
    entries_in_flight_max: int = attrs.field(default=16_384, validator=gt(0))
    """Per writer: entries to which some replica has not replied yet."""

    unavailable_timeout_s: float = attrs.field(default=10.0, validator=ge(0))
    """How long a writer retries while it cannot reach an ack quorum, or the metadata store."""
    retry_backoff_min_s: float = attrs.field(default=0.05, validator=gt(0))
    """The pause before a failing bookie is tried again; it doubles each time."""
    retry_backoff_max_s: float = attrs.field(default=2.0, validator=gt(0))

    add_quorum_timeout_s: float | None = attrs.field(default=None, validator=_POSITIVE_OR_NONE)
    """If an entry is not confirmed within this time (a quarter more at most), its writer ends and the ledger
    is closed in front of it (``addEntryQuorumTimeoutSec``). None: only ``unavailable_timeout_s`` applies."""
    delay_ensemble_change: bool = False
    """Replace a failing bookie only if entries cannot be confirmed without it, or if it is read-only
    (``delayEnsembleChange``). Until then it is tried again. With ``enforce_fault_domains`` the other bookies
    must also be in enough fault domains."""
    ensemble_changes_max: int | None = attrs.field(default=None, validator=_POSITIVE_OR_NONE)
    """Per writer; one change more ends the writer (``maxNumEnsembleChanges``)."""
    overload_timeout_s: float = attrs.field(default=5.0, validator=ge(0))
    """How long a bookie that replies TOO_MANY_REQUESTS is tried again before it is replaced. If no entry can
    be confirmed without it, at most half of ``unavailable_timeout_s``."""
    explicit_lac_interval_s: float | None = attrs.field(default=None, validator=_POSITIVE_OR_NONE)
    """A writer that is idle for this long sends the LAC to its bookies, for readers that follow it
    (``explicitLacInterval``). None: never."""
    lac_hint_delay_s: float | None = attrs.field(default=0.001, validator=_POSITIVE_OR_NONE)
    """A writer without entries in flight hints the LAC to bookies of ours, which keep it in memory: as soon
    as its callers had their turn, or after this long if they used to append again at once. Apache's bookies
    get no hint. None: never."""

    speculative_read_s: float | None = attrs.field(default=2.0, validator=_POSITIVE_OR_NONE)
    """A read without a reply for this long is sent to the next replica too (``speculativeReadTimeout``).
    None: only after a failure."""
    sticky_reads: bool = True
    """If every replica holds every entry, a handle reads from one replica, whose caches then hold its entries
    (``stickyReadSEnabled``). If False, each read begins at the first bookie of its write set."""
    speculative_poll_s: float = attrs.field(default=1.5, validator=gt(0))
    """A long poll without a reply for this long is sent to the next bookie too."""
    long_poll_max_s: float = attrs.field(default=4.0, validator=gt(0))
    """The longest time for which a bookie holds one long poll; a longer wait needs several polls."""

    batch_read_bytes_max: int = attrs.field(default=512 * 1024, validator=gt(0))
    """About how many bytes one batch read requests."""
    recovery_denial_grace_s: float = attrs.field(default=1.0, validator=ge(0))
    """If enough bookies deny an entry to end the ledger in front of it, a recovery waits this long for the
    others: one of them may have the entry."""
    recovery_read_ahead: int = attrs.field(default=16, validator=gt(0))
    """The number of entries that a recovery reads at once."""
    recovery_entries_max: int | None = attrs.field(default=1_000_000, validator=_POSITIVE_OR_NONE)
    """A recovery that finds more entries than this after the LAC fails, and leaves the end undecided: a
    bookie that knows the password could invent entries without an end. No writer has this many entries in
    flight; with deferred sync they count from the last ``force``. None: no limit."""

    statistics: bool = attrs.field(default=False, validator=instance_of(bool))
    """Measure how long operations take: ``LedgerClient.statistics`` then has histograms. Its counters are
    there without it."""
    tracing: bool = attrs.field(default=False, validator=instance_of(bool))
    """Make spans of OpenTelemetry, by the tracer provider of the program; it needs ``opentelemetry-api``."""
