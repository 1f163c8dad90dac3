"""Settings of a ledger client, all with defaults that are safe.

Source: reference section 10.1; lessons rows 34 and 48 (every wait and every window has a bound).
"""

from __future__ import annotations

from typing import Any

import attrs
from attrs.validators import ge, gt, optional

from ledger.placement_config import PlacementConfig
from ledger.transport_config import TransportConfig

_POSITIVE_OR_NONE: Any = optional(gt(0))


@attrs.frozen(kw_only=True)
class ClientConfig:
    """How long a client waits, how much it keeps in memory."""

    transport: TransportConfig = attrs.field(factory=TransportConfig)
    placement: PlacementConfig = attrs.field(factory=PlacementConfig)

    bytes_in_flight_max: int = attrs.field(default=32 * 1024 * 1024, validator=gt(0))
    """Per writer: encoded bytes that some replica has not answered yet."""
    entries_in_flight_max: int = attrs.field(default=16_384, validator=gt(0))
    """Per writer: entries that some replica has not answered yet."""

    unavailable_patience_s: float = attrs.field(default=10.0, validator=ge(0))
    """How long a writer keeps trying while no ack quorum can be reached, or no metadata store."""
    retry_backoff_min_s: float = attrs.field(default=0.05, validator=gt(0))
    """Pause before a failing bookie is tried again; doubled each time."""
    retry_backoff_max_s: float = attrs.field(default=2.0, validator=gt(0))

    add_quorum_timeout_s: float | None = attrs.field(default=None, validator=_POSITIVE_OR_NONE)
    """An entry not confirmed for so long, a quarter longer at most, ends its writer, and the ledger is closed
    in front of it (``addEntryQuorumTimeoutSec``). None: only ``unavailable_patience_s`` ends it."""
    delay_ensemble_change: bool = False
    """Replace a failing bookie only when entries cannot be confirmed without it, or it is read-only
    (``delayEnsembleChange``). Until then it is tried again where it is. With ``enforce_fault_domains`` those
    that are left must also stand in enough of them."""
    ensemble_changes_max: int | None = attrs.field(default=None, validator=_POSITIVE_OR_NONE)
    """Per writer; one more ends it (``maxNumEnsembleChanges``)."""
    overload_patience_s: float = attrs.field(default=5.0, validator=ge(0))
    """How long a bookie that answers TOO_MANY_REQUESTS is tried again before it is replaced; half of
    ``unavailable_patience_s`` at most where nothing can be confirmed without it."""
    explicit_lac_interval_s: float | None = attrs.field(default=None, validator=_POSITIVE_OR_NONE)
    """A writer idle for so long tells its bookies the LAC, for readers that follow
    (``explicitLacInterval``)."""

    speculative_read_s: float | None = attrs.field(default=2.0, validator=_POSITIVE_OR_NONE)
    """A read unanswered for so long asks the next replica too (``speculativeReadTimeout``)."""
    sticky_reads: bool = True
    """Whether a handle stays with one replica, whose caches know it, where every replica holds every entry
    (``stickyReadSEnabled``). Without it each read begins at the replica of its turn."""
    speculative_poll_s: float = attrs.field(default=1.5, validator=gt(0))
    """A long poll unanswered for so long asks the next bookie too."""
    long_poll_max_s: float = attrs.field(default=4.0, validator=gt(0))
    """The longest a bookie is asked to hold one long poll; longer waits are made of several."""

    batch_read_bytes_max: int = attrs.field(default=1024 * 1024, validator=gt(0))
    """What one batch read asks for at most."""
    recovery_denial_grace_s: float = attrs.field(default=1.0, validator=ge(0))
    """When enough bookies deny an entry to end a ledger in front of it, how long the others are given to show
    that they have it."""
    recovery_read_ahead: int = attrs.field(default=16, validator=gt(0))
    """Entries that a recovery reads at once."""
