"""The keys of ``bk_server.conf`` for auto-recovery in the bookie's process."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie.cluster.autorecovery import AutoRecoveryConfig
from bookie.config.bookie_config import parse_config
from bookie.errors import BookieConfigError
from ledger.placement.config import AnnouncedLocations, PlacementPolicy, ScriptLocations
from ledger.replication import ReplicationConfig
from tests.unit.bookie.config.test_config import LEAST

ON = "autoRecoveryDaemonEnabled=true\n"


def parse(more: str) -> tuple[AutoRecoveryConfig, tuple[str, ...]]:
    config = parse_config(LEAST + ON + more, "test.conf")
    assert config.auto_recovery is not None
    return config.auto_recovery, config.warnings


def test_auto_recovery_is_off_unless_the_file_switches_it_on() -> None:
    assert parse_config(LEAST, "test.conf").auto_recovery is None
    off = parse_config(
        LEAST + "autoRecoveryDaemonEnabled=false\nensemblePlacementPolicy=a.b.Own\n", "test.conf"
    )
    assert off.auto_recovery is None
    assert off.warnings == ()


def test_without_other_keys_the_defaults_are_apaches() -> None:
    config, warnings = parse("")
    assert config.replication == ReplicationConfig()
    assert config.placement.policy is PlacementPolicy.RACK_AWARE
    assert isinstance(config.placement.locations, AnnouncedLocations)
    assert warnings == ()


def test_each_key_has_apaches_unit() -> None:
    config, _ = parse(
        "lostBookieRecoveryDelay=7\nauditorPeriodicBookieCheckInterval=8\nauditorPeriodicCheckInterval=9\n"
        "auditorLedgerVerificationPercentage=10\nopenLedgerRereplicationGracePeriod=1100\n"
        "lockReleaseOfFailedLedgerGracePeriod=1200\nrwRereplicateBackoffMs=1300\n"
        "replicationRateByBytes=1400\nrereplicationEntryBatchSize=15\n"
        "auditorPeriodicPlacementPolicyCheckInterval=16\nauditorReplicasCheckInterval=17\n"
        "repairedPlacementPolicyNotAdheringBookieEnabled=true\nunderreplicatedLedgerRecoveryGracePeriod=18\n"
    )
    assert config.replication == ReplicationConfig(
        lost_bookie_delay_s=7,
        bookie_check_interval_s=8,
        ledger_check_interval_s=9,
        verified_percentage=10,
        open_ledger_grace_s=1.1,
        failed_ledger_pause_s=1.2,
        retry_pause_s=1.3,
        rate_bytes_max=1400,
        batch_entries=15,
        placement_check_interval_s=16,
        replicas_check_interval_s=17,
        repairs_placement=True,
        marked_grace_s=18,
    )


def test_an_interval_below_zero_switches_off_and_a_rate_below_zero_is_no_limit() -> None:
    replication = parse("auditorPeriodicCheckInterval=-1\nreplicationRateByBytes=-1\n")[0].replication
    assert (replication.ledger_check_interval_s, replication.rate_bytes_max) == (0, 0)


@pytest.mark.parametrize(
    "line",
    ["auditorLedgerVerificationPercentage=101", "rereplicationEntryBatchSize=0", "rwRereplicateBackoffMs=x"],
)
def test_a_value_that_cannot_be_obeyed_is_an_error_with_its_line(line: str) -> None:
    with pytest.raises(BookieConfigError, match=rf"test\.conf, line \d+: {line.partition('=')[0]}"):
        parse(line)


def test_placement_is_that_of_the_file() -> None:
    placement = parse(
        "ensemblePlacementPolicy=org.apache.bookkeeper.client.RegionAwareEnsemblePlacementPolicy\n"
        "reppRegionsToWrite=east;west;north\nreppMinimumRegionsForDurability=3\n"
        "reppEnableDurabilityEnforcementInReplace=false\n"
        "networkTopologyScriptFileName=/etc/racks.sh\nnetworkTopologyScriptNumberArgs=5\n"
        "minNumRacksPerWriteQuorum=3\nenforceMinNumRacksPerWriteQuorum=true\n"
    )[0].placement
    assert placement.policy is PlacementPolicy.REGION_AWARE
    assert (placement.regions, placement.regions_min) == (("east", "west", "north"), 3)
    assert not placement.enforce_regions_in_replace
    assert placement.locations == ScriptLocations(path=Path("/etc/racks.sh"), arguments_max=5)
    assert (placement.racks_min, placement.enforce_racks) == (3, True)


def test_regions_without_the_policy_for_them_have_no_effect() -> None:
    assert parse("reppRegionsToWrite=east;west\n")[0].placement.regions == ()


def test_fewer_regions_than_the_least_number_are_an_error() -> None:
    with pytest.raises(BookieConfigError, match="at least 2 regions"):
        parse("ensemblePlacementPolicy=RegionAwareEnsemblePlacementPolicy\nreppRegionsToWrite=east\n")


def test_classes_that_are_not_known_give_warnings() -> None:
    config, warnings = parse("ensemblePlacementPolicy=a.b.Own\nreppDnsResolverClass=c.d.Mine\n")
    assert config.placement.policy is PlacementPolicy.RACK_AWARE
    assert any("ensemblePlacementPolicy=a.b.Own: is not known here" in warning for warning in warnings)
    assert any("reppDnsResolverClass=c.d.Mine: is not known here" in warning for warning in warnings)
