"""The keys of garbage collection and compaction."""

# covers: bookie/config/settings.py

from __future__ import annotations

import pytest

from bookie.config.bookie_config import parse_config
from bookie.config.classes import BookieConfig
from bookie.entrylog.writer import PerLedgerConfig
from bookie.errors import BookieConfigError
from bookie.gc.collector import GcConfig
from bookie.gc.compaction_rules import CompactionConfig, CompactionLevel

BASE = "zkServers=zk1\njournalDirectories=/j\nledgerDirectories=/l\n"


def parse(more: str = "") -> BookieConfig:
    return parse_config(BASE + more, "test.conf")


def compaction(more: str = "") -> CompactionConfig:
    return parse(more).storage.compaction


def test_defaults_are_those_of_apache_except_for_the_throttle() -> None:
    config = compaction()
    assert (config.minor_threshold, config.minor_interval_s, config.minor_time_max_s) == (0.2, 3600, None)
    assert (config.major_threshold, config.major_interval_s, config.major_time_max_s) == (0.8, 86400, None)
    assert not config.counts_target_size
    assert not config.may_force_disabled
    assert not config.forces_when_full
    assert (config.rate_bytes_per_s, config.rate_entries_per_s) == (16 << 20, None)
    assert parse().gc == GcConfig(
        interval_s=600, over_replicated_interval_s=86400, metadata_requests_per_s=1000
    )
    assert parse().storage.per_ledger_logs is None


def test_values_arrive_with_their_units() -> None:
    config = compaction(
        "gcWaitTime=5000\nminorCompactionThreshold=0.1\nminorCompactionInterval=60\n"
        "majorCompactionThreshold=0.5\nmajorCompactionInterval=600\nminorCompactionMaxTimeMillis=1500\n"
        "majorCompactionMaxTimeMillis=9000\nuseTargetEntryLogSizeForGc=true\nforceAllowCompaction=true\n"
        "isForceGCAllowWhenNoSpace=true\ncompactionReserveBytes=1000\nuseTransactionalCompaction=true\n"
    )
    assert (config.minor_threshold, config.minor_interval_s, config.minor_time_max_s) == (0.1, 60, 1.5)
    assert (config.major_threshold, config.major_interval_s, config.major_time_max_s) == (0.5, 600, 9)
    assert config.counts_target_size
    assert config.may_force_disabled
    assert config.forces_when_full
    assert config.reserve_bytes == 1000
    gc = parse("gcWaitTime=5000\ngcOverreplicatedLedgerWaitTime=-1\ngcMetadataOpRateLimit=7").gc
    assert (gc.interval_s, gc.metadata_requests_per_s) == (5, 7)
    assert gc.over_replicated_interval_s <= 0
    logs = parse(
        "entryLogPerLedgerEnabled=true\nmaximumNumberOfActiveEntryLogs=9\n"
        "entrylogMapAccessExpiryTimeInSeconds=30"
    ).storage.per_ledger_logs
    assert logs == PerLedgerConfig(open_logs_max=9, idle_s=30)


@pytest.mark.parametrize("value", ["0", "-1"])
@pytest.mark.parametrize("key", ["Threshold", "Interval"])
def test_zero_or_less_switches_a_level_off(key: str, value: str) -> None:
    config = compaction(f"minorCompaction{key}={value}")
    assert not config.is_enabled(CompactionLevel.MINOR)
    assert config.is_enabled(CompactionLevel.MAJOR)


@pytest.mark.parametrize(
    ("lines", "bytes_per_s", "entries_per_s"),
    [
        ("compactionRateByBytes=500", 500, None),
        ("isThrottleByBytes=true", 1_000_000, None),
        ("isThrottleByBytes=true\ncompactionRateByBytes=500\ncompactionRateByEntries=9", 500, None),
        ("isThrottleByBytes=false", 1_000_000, 1000),
        ("compactionRate=50", 16 << 20, 50),
        ("compactionRate=50\ncompactionRateByEntries=60", 16 << 20, 60),
    ],
)
def test_the_keys_in_the_file_choose_the_throttle(
    lines: str, bytes_per_s: int, entries_per_s: int | None
) -> None:
    config = compaction(lines)
    assert (config.rate_bytes_per_s, config.rate_entries_per_s) == (bytes_per_s, entries_per_s)


@pytest.mark.parametrize(
    ("lines", "expectation"),
    [
        ("minorCompactionInterval=599", "at least gcWaitTime"),
        ("gcWaitTime=4000000", "at least gcWaitTime"),
        ("majorCompactionInterval=3600", "less than majorCompactionInterval"),
        ("minorCompactionThreshold=0.8", "less than majorCompactionThreshold"),
        ("minorCompactionThreshold=1.1", "share from 0 to 1"),
        ("majorCompactionThreshold=much", "share from 0 to 1"),
        ("compactionRate=0", "of at least 1"),
        ("maximumNumberOfActiveEntryLogs=0", "from 1"),
    ],
)
def test_contradicting_values_are_refused_with_their_line(lines: str, expectation: str) -> None:
    with pytest.raises(BookieConfigError, match=expectation) as caught:
        parse(lines)
    assert "test.conf, line 4" in str(caught.value)


def test_compaction_without_transactions_gives_a_warning() -> None:
    warnings = parse("useTransactionalCompaction=false").warnings
    assert any("compaction is always transactional" in warning for warning in warnings)
