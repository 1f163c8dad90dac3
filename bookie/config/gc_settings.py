"""The keys of ``bk_server.conf`` for garbage collection, new ledgers, compaction and kinds of entry logs.

Inside: their defaults, and the check for contradictions. Not inside: other keys (``config``).
Always: a value has the same meaning as for Apache's bookie. Two defaults differ. Compaction is throttled by
bytes
unless the file asks for entries: Apache's 1,000 entries a second are 1 MB/s of small entries, a fraction of
what the bookie takes in meanwhile. And compaction is always transactional.

Source: ServerConfiguration.java, GarbageCollectorThread.java (its constructor's checks);
docs/storage-format.md 9.
"""

from __future__ import annotations

from bookie.config.settings import Settings
from bookie.entrylog.writer import PerLedgerConfig
from bookie.gc.collector import GcConfig
from bookie.gc.compaction_rules import CompactionConfig
from bookie.requests.new_ledgers import NewLedgersConfig

_OFF = -(2**31)


def read_gc(settings: Settings) -> GcConfig:
    """The intervals and the rate of garbage collection. Raises ``BookieConfigError``."""
    return GcConfig(
        interval_s=_gc_wait_s(settings),
        over_replicated_interval_s=settings.integer(
            "gcOverreplicatedLedgerWaitTime", 86_400_000, least=_OFF, unit="milliseconds"
        )
        / 1000,
        metadata_requests_per_s=settings.integer("gcMetadataOpRateLimit", 1000, least=1),
    )


def read_new_ledgers(settings: Settings) -> NewLedgersConfig:
    """The limits of ledgers that the metadata have not confirmed. Apache has no such keys."""
    defaults = NewLedgersConfig()
    return NewLedgersConfig(
        unconfirmed_max=settings.integer("unconfirmedLedgersMax", defaults.unconfirmed_max, least=0),
        per_second_max=settings.integer("newLedgersPerSecondMax", defaults.per_second_max, least=1),
        grace_s=settings.integer("unconfirmedLedgerGraceSeconds", int(defaults.grace_s), unit="seconds"),
    )


def read_compaction(settings: Settings) -> CompactionConfig:
    """When and how fast entry logs are compacted. Raises ``BookieConfigError``."""
    defaults = CompactionConfig()
    rate_bytes, rate_entries = _rates(settings, defaults)
    config = CompactionConfig(
        minor_threshold=settings.fraction("minorCompactionThreshold", 0.2, may_be_off=True),
        minor_interval_s=settings.integer("minorCompactionInterval", 3600, least=_OFF, unit="seconds"),
        minor_time_max_s=_time_max_s(settings, "minorCompactionMaxTimeMillis"),
        major_threshold=settings.fraction("majorCompactionThreshold", 0.8, may_be_off=True),
        major_interval_s=settings.integer("majorCompactionInterval", 86_400, least=_OFF, unit="seconds"),
        major_time_max_s=_time_max_s(settings, "majorCompactionMaxTimeMillis"),
        counts_target_size=settings.boolean("useTargetEntryLogSizeForGc", False),
        may_force_disabled=settings.boolean("forceAllowCompaction", False),
        forces_when_full=settings.boolean("isForceGCAllowWhenNoSpace", False),
        rate_bytes_per_s=rate_bytes,
        rate_entries_per_s=rate_entries,
        reserve_bytes=settings.integer("compactionReserveBytes", defaults.reserve_bytes, unit="bytes"),
    )
    _check(settings, config)
    return config


def read_per_ledger_logs(settings: Settings) -> PerLedgerConfig | None:
    """The settings of one entry log for each ledger; None if that is off. Raises ``BookieConfigError``."""
    config = PerLedgerConfig(
        open_logs_max=settings.integer("maximumNumberOfActiveEntryLogs", 500, least=1, most=100_000),
        idle_s=settings.integer("entrylogMapAccessExpiryTimeInSeconds", 300, least=1, unit="seconds"),
    )
    return config if settings.boolean("entryLogPerLedgerEnabled", False) else None


def _gc_wait_s(settings: Settings) -> float:
    return settings.integer("gcWaitTime", 600_000, least=1, unit="milliseconds") / 1000


def _time_max_s(settings: Settings, key: str) -> float | None:
    value = settings.integer(key, -1, least=_OFF, unit="milliseconds")
    return None if value < 0 else value / 1000


def _rates(settings: Settings, defaults: CompactionConfig) -> tuple[float, float | None]:
    """Bytes per second; entries per second or None. If the latter is set, it replaces the former."""
    is_by_entries = "compactionRate" in settings or "compactionRateByEntries" in settings
    is_by_entries |= "isThrottleByBytes" in settings
    by_bytes = settings.boolean("isThrottleByBytes", not is_by_entries)
    rate = settings.integer("compactionRate", 1000, least=1)
    entries = settings.integer("compactionRateByEntries", rate, least=1)
    default_bytes = 1_000_000 if "isThrottleByBytes" in settings else int(defaults.rate_bytes_per_s)
    size_bytes = settings.integer("compactionRateByBytes", default_bytes, least=1, unit="bytes")
    return size_bytes, None if by_bytes else entries


def _check(settings: Settings, config: CompactionConfig) -> None:
    """Refuse the contradictions that Apache's bookie refuses."""
    minor = config.minor_threshold > 0 and config.minor_interval_s > 0
    major = config.major_threshold > 0 and config.major_interval_s > 0
    wait_s = _gc_wait_s(settings)
    for is_on, key, interval_s in (
        (minor, "minorCompactionInterval", config.minor_interval_s),
        (major, "majorCompactionInterval", config.major_interval_s),
    ):
        if is_on and interval_s < wait_s:
            raise settings.error(
                _first_set(settings, key, "gcWaitTime"),
                f"{key} ({interval_s:g} s) to be at least gcWaitTime ({wait_s:g} s)",
            )
    if minor and major and config.minor_interval_s >= config.major_interval_s:
        raise settings.error(
            _first_set(settings, "minorCompactionInterval", "majorCompactionInterval"),
            f"minorCompactionInterval ({config.minor_interval_s:g} s) to be less than majorCompactionInterval"
            f" ({config.major_interval_s:g} s)",
        )
    if minor and major and config.minor_threshold >= config.major_threshold:
        raise settings.error(
            _first_set(settings, "minorCompactionThreshold", "majorCompactionThreshold"),
            f"minorCompactionThreshold ({config.minor_threshold}) to be less than majorCompactionThreshold"
            f" ({config.major_threshold})",
        )


def _first_set(settings: Settings, *keys: str) -> str:
    """The key whose line the error message shows."""
    return next((key for key in keys if key in settings), keys[0])
