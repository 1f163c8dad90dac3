"""Settings of a ledger client, all with defaults that are safe.

Source: reference section 10.1; lessons rows 34 and 48 (every wait and every window has a bound).
"""

from __future__ import annotations

import attrs
from attrs.validators import ge, gt

from ledger.transport_config import TransportConfig


@attrs.frozen(kw_only=True)
class ClientConfig:
    """How long a client waits, how much it keeps in memory."""

    transport: TransportConfig = attrs.field(factory=TransportConfig)

    bytes_in_flight_max: int = attrs.field(default=32 * 1024 * 1024, validator=gt(0))
    """Per writer: encoded bytes that some replica has not answered yet."""
    entries_in_flight_max: int = attrs.field(default=16_384, validator=gt(0))
    """Per writer: entries that some replica has not answered yet."""

    unavailable_patience_s: float = attrs.field(default=10.0, validator=ge(0))
    """How long a writer keeps trying while no ack quorum can be reached, or no metadata store."""
    retry_backoff_min_s: float = attrs.field(default=0.05, validator=gt(0))
    """Pause before a failing bookie is tried again; doubled each time."""
    retry_backoff_max_s: float = attrs.field(default=2.0, validator=gt(0))

    speculative_poll_s: float = attrs.field(default=1.5, validator=gt(0))
    """A long poll unanswered for so long asks the next bookie too."""
    long_poll_max_s: float = attrs.field(default=4.0, validator=gt(0))
    """The longest a bookie is asked to hold one long poll; longer waits are made of several."""

    batch_read_bytes_max: int = attrs.field(default=1024 * 1024, validator=gt(0))
    """What one batch read asks for at most."""
    recovery_read_ahead: int = attrs.field(default=16, validator=gt(0))
    """Entries that a recovery reads at once."""
