"""The settings of auto-recovery. The names of Apache's keys are in docs/autorecovery.md."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class ReplicationConfig:
    """When an auditor looks, and how a worker copies. The defaults are Apache's unless a line says so."""

    lost_bookie_delay_s: int = attrs.field(default=0, validator=attrs.validators.ge(0))
    """Only for a cluster whose delay was never set; then the cluster stores it."""
    bookie_check_interval_s: float = attrs.field(default=86_400.0, validator=attrs.validators.ge(0))
    """Between two audits without a cause; 0: once, at the start."""
    ledger_check_interval_s: float = attrs.field(default=604_800.0, validator=attrs.validators.ge(0))
    """Between two checks that read from every ledger; 0: never."""
    verified_percentage: int = attrs.field(
        default=0, validator=[attrs.validators.ge(0), attrs.validators.le(100)]
    )
    """The share of a fragment's entries that a check reads; the first and the last are always read."""
    placement_check_interval_s: float = attrs.field(default=0.0, validator=attrs.validators.ge(0))
    """Between two checks of the placement of all closed ledgers; 0: never."""
    replicas_check_interval_s: float = attrs.field(default=86_400.0, validator=attrs.validators.ge(0))
    """Between two checks that ask every bookie for its lists of entries; 0, Apache's default: never."""
    replicas_check_ledgers_per_s: float = attrs.field(default=10.0, validator=attrs.validators.gt(0))
    """The pace of such a check, so that it takes little from bookies and from the metadata store."""
    repairs_placement: bool = False
    """The placement check marks ledgers too, and workers move replicas of marked ledgers."""
    marked_grace_s: float = attrs.field(default=0.0, validator=attrs.validators.ge(0))
    """The placement check counts the marks that are older; 0: it does not."""
    open_ledger_grace_s: float = attrs.field(default=30.0, validator=attrs.validators.ge(0))
    """A writer has this time to replace a lost bookie before its ledger is fenced and closed."""
    failed_ledger_pause_s: float = attrs.field(default=300.0, validator=attrs.validators.ge(0))
    """The longest pause before a ledger that could not be restored is tried again."""
    retry_pause_s: float = attrs.field(default=5.0, validator=attrs.validators.gt(0))
    """After an error of the metadata store."""
    rate_bytes_max: int = attrs.field(default=0, validator=attrs.validators.ge(0))
    """Bytes copied per second by one worker; 0: no limit."""
    batch_entries: int = attrs.field(default=10, validator=attrs.validators.ge(1))
    """Entries in flight at once; more if they are small."""
    batch_bytes_min: int = attrs.field(default=64 << 10, validator=attrs.validators.ge(0))
    """Small entries are in flight up to these bytes. Apache has no such limit, so its copies wait longer."""
    batch_bytes_max: int = attrs.field(default=1 << 20, validator=attrs.validators.ge(1))
    """In one read; a larger entry is read alone."""
    reads_in_flight_max: int = attrs.field(default=32, validator=attrs.validators.ge(1))
    """Ledgers whose metadata or entries an auditor reads at once."""
    ledgers_in_flight_max: int = attrs.field(default=4, validator=attrs.validators.ge(1))
    """Ledgers that a worker restores at once."""
