"""Settings of placement: which policy, where locations come from, weights, quarantine.

Source: reference on operations 1.1 to 1.7, where Java's keys and defaults are.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import attrs
from attrs.validators import ge, gt, instance_of, le, optional

from ledger.topology import parse_location


class PlacementPolicy(enum.Enum):
    """How the bookies of an ensemble are spread. A bookie that failed lately is avoided by each of them."""

    RANDOM = "random"
    RACK_AWARE = "rack-aware"
    REGION_AWARE = "region-aware"


@attrs.frozen(kw_only=True)
class ScriptLocations:
    """A topology script as Hadoop and BookKeeper use it: hosts are its arguments, locations its output."""

    path: Path = attrs.field(converter=Path)
    arguments_max: int = attrs.field(default=100, validator=gt(0))
    """Hosts given to one run (``networkTopologyScriptNumberArgs``)."""
    timeout_s: float = attrs.field(default=10.0, validator=gt(0))


@attrs.frozen(kw_only=True)
class TableLocations:
    """A text file: on each line a bookie's id or host and its location; ``#`` begins a comment.

    It is read again when it has changed and a bookie is to be located.
    """

    path: Path = attrs.field(converter=Path)


@attrs.frozen
class AnnouncedLocations:
    """What each bookie says of itself: property ``networkLocation`` of its service info."""


@attrs.frozen
class FixedLocations:
    """Locations given by the program: bookie's id or host to location."""

    locations: Mapping[str, str] = attrs.field(hash=False)

    def __attrs_post_init__(self) -> None:
        for location in self.locations.values():
            parse_location(location)


LocationSource = ScriptLocations | TableLocations | AnnouncedLocations | FixedLocations


_POSITIVE_OR_NONE: Any = optional(gt(0))


def _parsed(location: str | None) -> str | None:
    return None if location is None else parse_location(location)


@attrs.frozen(kw_only=True)
class PlacementConfig:
    """How bookies are chosen for new ensembles and in the place of failed ones."""

    policy: PlacementPolicy = attrs.field(
        default=PlacementPolicy.RANDOM, validator=instance_of(PlacementPolicy)
    )
    """``RANDOM`` needs no locations."""
    locations: LocationSource = attrs.field(factory=AnnouncedLocations)
    """Where bookies' locations come from (``reppDnsResolverClass``)."""
    local_location: str | None = attrs.field(default=None, converter=_parsed)
    """Where this program runs: first members of ensembles come from there, reads go there first. None: no
    preference (``ignoreLocalNodeInPlacementPolicy``)."""

    racks_min: int = attrs.field(default=2, validator=gt(0))
    """Racks that every write quorum should span (``minNumRacksPerWriteQuorum``); capped at the write
    quorum."""
    enforce_racks: bool = False
    """Fail rather than span fewer, and take no bookie whose location is unknown
    (``enforceMinNumRacksPerWriteQuorum``)."""
    enforce_fault_domains: bool = False
    """Confirm an entry only once those who acknowledged it span ``racks_min`` racks, and ``regions_min``
    regions if that is active (``enforceMinNumFaultDomainsForWrite``). Bookies that certainly stand in fewer
    are not chosen together: creation fails, and one that failed is tried again where it is. Combine it with
    ``ClientConfig.add_quorum_timeout_s``: while it is not known where bookies stand, entries wait."""

    regions: tuple[str, ...] = attrs.field(default=(), converter=tuple[str, ...])
    """Regions to write to (``reppRegionsToWrite``). With two or more, ``regions_min`` is enforced."""
    regions_min: int = attrs.field(default=2, validator=gt(0))
    """Regions that must hold an acknowledged entry (``reppMinimumRegionsForDurability``)."""
    enforce_regions_in_replace: bool = True
    """Keep that promise when a failed bookie is replaced (``reppEnableDurabilityEnforcementInReplace``)."""
    regions_disallowed: Collection[str] = attrs.field(default=frozenset(), converter=frozenset)
    """Regions in which nothing is placed now (``reppDisallowBookiePlacementInRegionFeatureName``)."""

    weighted: bool = False
    """Prefer bookies with more free disk (``diskWeightBasedPlacementEnabled``)."""
    weight_multiple_max: float = attrs.field(default=3.0, validator=ge(1))
    """No weight is larger than so many times the median (``bookieMaxMultipleForWeightBasedPlacement``)."""
    weight_interval_s: float = attrs.field(default=86_400.0, validator=gt(0))
    """How often free disk is asked for (``getBookieInfoIntervalSeconds``)."""
    weight_retry_s: float = attrs.field(default=60.0, validator=gt(0))
    """The same for a bookie that did not answer (``getBookieInfoRetryIntervalSeconds``)."""

    quarantine_errors_min: int | None = attrs.field(default=100, validator=_POSITIVE_OR_NONE)
    """A bookie with so many errors in one interval is avoided (``bookieErrorThresholdPerInterval``). None: no
    quarantine (``bookieHealthCheckEnabled``)."""
    quarantine_interval_s: float = attrs.field(default=60.0, validator=gt(0))
    """The interval in which errors are counted (``bookieHealthCheckIntervalSeconds``)."""
    quarantine_s: float = attrs.field(default=1800.0, validator=gt(0))
    """How long it is avoided (``bookieQuarantineTimeSeconds``), unless there are too few others."""
    quarantine_ratio: float = attrs.field(default=1.0, validator=[ge(0), le(1)])
    """The chance that a bookie with so many errors is quarantined (``bookieQuarantineRatio``). Below 1, not
    all clients turn away from it at once."""

    def __attrs_post_init__(self) -> None:
        if self.regions and self.policy is not PlacementPolicy.REGION_AWARE:
            raise ValueError(f"regions={self.regions} need policy=REGION_AWARE, not {self.policy.name}")
        if self.regions and len(self.regions) < self.regions_min:
            raise ValueError(f"regions_min={self.regions_min}, but regions names {len(self.regions)} only")
        if (self.enforce_racks or self.enforce_fault_domains) and self.policy is PlacementPolicy.RANDOM:
            raise ValueError("racks can only be enforced by a policy that knows them, not by RANDOM")

    @property
    def durable_regions(self) -> int | None:
        """``regions_min`` if it is to be enforced."""
        return self.regions_min if len(self.regions) > 1 else None
