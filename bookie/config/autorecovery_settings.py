"""The keys of ``bk_server.conf`` for auto-recovery in the bookie's process.

Inside: their defaults, which are Apache's, except that the check of all replicas is on; the placement of
replicas that take the place of lost ones. Not inside: auto-recovery (``bookie.cluster.autorecovery``).
Always: an interval of 0 or less switches a check off. A class of placement or of locations that is not known
here gives a warning, and rack-aware placement by announced locations is used.

Source: ServerConfiguration.java, ClientConfiguration.java; docs/autorecovery.md.
"""

from __future__ import annotations

from bookie.cluster.autorecovery import AutoRecoveryConfig
from bookie.config.settings import Settings
from ledger.placement.config import (
    AnnouncedLocations,
    LocationSource,
    PlacementConfig,
    PlacementPolicy,
    ScriptLocations,
)
from ledger.replication import ReplicationConfig

_OFF = -(2**31)
_POLICIES = {
    "RackawareEnsemblePlacementPolicy": PlacementPolicy.RACK_AWARE,
    "RegionAwareEnsemblePlacementPolicy": PlacementPolicy.REGION_AWARE,
    "DefaultEnsemblePlacementPolicy": PlacementPolicy.RANDOM,
}
_SCRIPT = "ScriptBasedMapping"


def read_auto_recovery(settings: Settings, warnings: list[str]) -> AutoRecoveryConfig | None:
    """Auto-recovery in this process; None if it is off. Raises ``BookieConfigError``.

    Args:
        warnings: Gets what is replaced by something else, if auto-recovery is on.
    """
    is_on = settings.boolean("autoRecoveryDaemonEnabled", False)
    found: list[str] = []
    config = AutoRecoveryConfig(replication=_replication(settings), placement=_placement(settings, found))
    if is_on:
        warnings += found
    return config if is_on else None


def _replication(settings: Settings) -> ReplicationConfig:
    defaults = ReplicationConfig()
    return ReplicationConfig(
        lost_bookie_delay_s=settings.integer(
            "lostBookieRecoveryDelay", defaults.lost_bookie_delay_s, most=2**31 - 1, unit="seconds"
        ),
        bookie_check_interval_s=_interval_s(
            settings, "auditorPeriodicBookieCheckInterval", defaults.bookie_check_interval_s
        ),
        ledger_check_interval_s=_interval_s(
            settings, "auditorPeriodicCheckInterval", defaults.ledger_check_interval_s
        ),
        verified_percentage=settings.integer(
            "auditorLedgerVerificationPercentage", defaults.verified_percentage, most=100, unit="percent"
        ),
        placement_check_interval_s=_interval_s(settings, "auditorPeriodicPlacementPolicyCheckInterval", 0),
        replicas_check_interval_s=_interval_s(
            settings, "auditorReplicasCheckInterval", defaults.replicas_check_interval_s
        ),
        repairs_placement=settings.boolean("repairedPlacementPolicyNotAdheringBookieEnabled", False),
        marked_grace_s=settings.integer("underreplicatedLedgerRecoveryGracePeriod", 0, unit="seconds"),
        open_ledger_grace_s=_milliseconds(
            settings, "openLedgerRereplicationGracePeriod", defaults.open_ledger_grace_s
        ),
        failed_ledger_pause_s=_milliseconds(
            settings, "lockReleaseOfFailedLedgerGracePeriod", defaults.failed_ledger_pause_s
        ),
        retry_pause_s=_milliseconds(settings, "rwRereplicateBackoffMs", defaults.retry_pause_s, least=1),
        rate_bytes_max=max(
            0, settings.integer("replicationRateByBytes", -1, least=_OFF, unit="bytes a second")
        ),
        batch_entries=settings.integer("rereplicationEntryBatchSize", defaults.batch_entries, least=1),
    )


def _interval_s(settings: Settings, key: str, default_s: float) -> float:
    return max(0, settings.integer(key, int(default_s), least=_OFF, unit="seconds"))


def _milliseconds(settings: Settings, key: str, default_s: float, *, least: int = 0) -> float:
    return settings.integer(key, round(default_s * 1000), least=least, unit="milliseconds") / 1000


def _placement(settings: Settings, warnings: list[str]) -> PlacementConfig:
    name = settings.text("ensemblePlacementPolicy") or "RackawareEnsemblePlacementPolicy"
    policy = _POLICIES.get(name.rpartition(".")[2])
    if policy is None:
        policy = PlacementPolicy.RACK_AWARE
        warnings.append(
            f"ensemblePlacementPolicy={name}: is not known here; auto-recovery places replicas rack-aware"
        )
    locations = _locations(settings, warnings)
    racks_min = settings.integer("minNumRacksPerWriteQuorum", 2, least=1)
    enforce_racks = settings.boolean("enforceMinNumRacksPerWriteQuorum", False)
    regions = tuple(
        filter(
            None, map(str.strip, ",".join(settings.texts("reppRegionsToWrite")).replace(";", ",").split(","))
        )
    )
    regions_min = settings.integer("reppMinimumRegionsForDurability", 2, least=1)
    in_replace = settings.boolean("reppEnableDurabilityEnforcementInReplace", True)
    is_regional = policy is PlacementPolicy.REGION_AWARE
    if is_regional and 0 < len(regions) < regions_min:
        raise settings.error("reppRegionsToWrite", f"at least {regions_min} regions")
    return PlacementConfig(
        policy=policy,
        locations=locations,
        racks_min=racks_min,
        enforce_racks=enforce_racks and policy is not PlacementPolicy.RANDOM,
        regions=regions if is_regional else (),
        regions_min=regions_min if is_regional and regions else None,
        enforce_regions_in_replace=in_replace,
    )


def _locations(settings: Settings, warnings: list[str]) -> LocationSource:
    name = settings.text("reppDnsResolverClass") or _SCRIPT
    script = settings.text("networkTopologyScriptFileName")
    hosts_max = settings.integer("networkTopologyScriptNumberArgs", 100, least=1)
    if name.rpartition(".")[2] != _SCRIPT:
        warnings.append(
            f"reppDnsResolverClass={name}: is not known here; auto-recovery uses the networkLocation that"
            " each bookie announces"
        )
    elif script is not None:
        return ScriptLocations(path=script, arguments_max=hosts_max)
    return AnnouncedLocations()
