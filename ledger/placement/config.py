"""The settings of placement: policy, source of locations, weights, quarantine.

Source: docs/protocol.md 11, where Java's keys and defaults are.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs
from attrs.validators import ge, gt, instance_of, le, optional

from ledger.placement.topology import parse_location


class PlacementPolicy(enum.Enum):
    """How the bookies of an ensemble are spread. Each policy avoids bookies that failed recently."""

    RANDOM = "random"
    RACK_AWARE = "rack-aware"
    REGION_AWARE = "region-aware"


@attrs.frozen(kw_only=True)
class ScriptLocations:
    """A topology script as Hadoop and BookKeeper use it: its arguments are hosts, its output locations."""

    path: Path = attrs.field(converter=Path)
    arguments_max: int = attrs.field(default=100, validator=gt(0))
    """Hosts in one call of the script (``networkTopologyScriptNumberArgs``)."""
    timeout_s: float = attrs.field(default=10.0, validator=gt(0))


@attrs.frozen(kw_only=True)
class TableLocations:
    """A text file with a bookie's id or host and its location on each line; ``#`` begins a comment.

    A changed file is read again when the next bookie is located.
    """

    path: Path = attrs.field(converter=Path)


@attrs.frozen
class AnnouncedLocations:
    """The location that each bookie announces: property ``networkLocation`` of its service info."""


@attrs.frozen
class FixedLocations:
    """Locations that the program passes: from a bookie's id or host to its location."""

    locations: Mapping[str, str] = attrs.field(hash=False)

    def __attrs_post_init__(self) -> None:
        for location in self.locations.values():
            parse_location(location)


LocationSource = ScriptLocations | TableLocations | AnnouncedLocations | FixedLocations


_POSITIVE_OR_NONE: Any = optional(gt(0))


def _names(regions: Iterable[str]) -> frozenset[str]:
    return frozenset(regions)


def _parsed(location: str | None) -> str | None:
    return None if location is None else parse_location(location)


@attrs.frozen(kw_only=True)
class PlacementConfig:
    """How bookies are chosen for new ensembles and as replacements for failed ones."""

    policy: PlacementPolicy = attrs.field(
        default=PlacementPolicy.RANDOM, validator=instance_of(PlacementPolicy)
    )
    """``RANDOM`` needs no locations."""
    locations: LocationSource = attrs.field(factory=AnnouncedLocations)
    """The source of the locations (``reppDnsResolverClass``)."""
    local_location: str | None = attrs.field(default=None, converter=_parsed)
    """The location of this program. The first member of an ensemble comes from there, and reads go there
    first. None: no preference (``ignoreLocalNodeInPlacementPolicy``)."""

    racks_min: int = attrs.field(default=2, validator=gt(0))
    """Racks that each write quorum should span (``minNumRacksPerWriteQuorum``), at most the write quorum."""
    enforce_racks: bool = False
    """Fail if fewer racks are spanned, and choose no bookie with an unknown location
    (``enforceMinNumRacksPerWriteQuorum``)."""
    enforce_fault_domains: bool = False
    """Confirm an entry only when the bookies that acknowledged it span ``racks_min`` racks, and
    ``regions_min`` regions if that is enforced (``enforceMinNumFaultDomainsForWrite``). Bookies that
    certainly span fewer are not chosen together: creation fails, and a failed bookie stays in the ensemble
    and is tried again. Combine it with ``ClientConfig.add_quorum_timeout_s``, because entries wait while
    locations are unknown."""

    regions: tuple[str, ...] = attrs.field(default=(), converter=tuple[str, ...])
    """Regions to write to (``reppRegionsToWrite``). If there are two or more, an entry must be in
    ``regions_min`` of them."""
    regions_min: int | None = attrs.field(default=None, validator=_POSITIVE_OR_NONE)
    """Regions that must store an acknowledged entry (``reppMinimumRegionsForDurability``). It needs
    ``regions``. None: two of them."""
    enforce_regions_in_replace: bool = True
    """Enforce that also when a failed bookie is replaced (``reppEnableDurabilityEnforcementInReplace``)."""
    regions_disallowed: Collection[str] = attrs.field(default=frozenset(), converter=_names)
    """Regions in which no bookie is chosen (``reppDisallowBookiePlacementInRegionFeatureName``)."""

    weighted: bool = False
    """Prefer bookies with more free disk (``diskWeightBasedPlacementEnabled``)."""
    weight_multiple_max: float = attrs.field(default=3.0, validator=ge(1))
    """The largest weight, as a multiple of the median (``bookieMaxMultipleForWeightBasedPlacement``)."""
    weight_interval_s: float = attrs.field(default=86_400.0, validator=gt(0))
    """How often free disk is requested (``getBookieInfoIntervalSeconds``)."""
    weight_retry_s: float = attrs.field(default=60.0, validator=gt(0))
    """The same for a bookie that did not reply (``getBookieInfoRetryIntervalSeconds``)."""

    quarantine_errors_min: int | None = attrs.field(default=100, validator=_POSITIVE_OR_NONE)
    """Errors in one interval from which on a bookie is quarantined (``bookieErrorThresholdPerInterval``).
    None: no quarantine (``bookieHealthCheckEnabled``)."""
    quarantine_interval_s: float = attrs.field(default=60.0, validator=gt(0))
    """The interval in which errors are counted (``bookieHealthCheckIntervalSeconds``)."""
    quarantine_s: float = attrs.field(default=1800.0, validator=gt(0))
    """How long a quarantined bookie is avoided, if others suffice (``bookieQuarantineTimeSeconds``)."""
    quarantine_ratio: float = attrs.field(default=1.0, validator=[ge(0), le(1)])
    """The probability that a bookie with this many errors is quarantined (``bookieQuarantineRatio``). Below
    1, not all clients avoid it at once."""

    def __attrs_post_init__(self) -> None:
        if self.regions and self.policy is not PlacementPolicy.REGION_AWARE:
            raise ValueError(f"regions={self.regions} need policy=REGION_AWARE, not {self.policy.name}")
        if self.regions_min is not None and not self.regions:
            raise ValueError(
                f"regions_min={self.regions_min} has no effect without regions: name the regions"
            )
        if self.regions and len(self.regions) < self._regions_min:
            raise ValueError(f"regions_min={self._regions_min}, but regions names {len(self.regions)} only")
        if (self.enforce_racks or self.enforce_fault_domains) and self.policy is PlacementPolicy.RANDOM:
            raise ValueError("RANDOM cannot enforce racks: set policy to RACK_AWARE or REGION_AWARE")

    @property
    def durable_regions(self) -> int | None:
        """The regions that must store an entry; None: any."""
        return self._regions_min if len(self.regions) > 1 else None

    @property
    def _regions_min(self) -> int:
        return self.regions_min or 2  # Apache's default
