"""Where bookies stand: network locations such as ``/rack`` or ``/region/rack``.

Inside: reading a location, the rack and the region of a bookie. Not inside: where locations are looked up
(``locations``), what follows from them (``placement_policy``).
Always: two bookies with one location share a fault domain; a bookie without one stands in the default
location, of which nothing is known.

Source: NetworkTopologyImpl.java, NetworkTopology.java; reference on operations 1.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from ledger.errors import LocationError

DEFAULT_RACK = "/default-rack"
DEFAULT_REGION_RACK = "/default-region/default-rack"


def parse_location(text: str) -> str:
    """A location as it is compared: ``/region/rack``, without a slash at the end.

    Raises:
        LocationError: No slash in front, or a part that is empty or holds white space.
    """
    parts = text.strip().removesuffix("/").split("/")
    if len(parts) < 2 or parts[0] or not all(parts[1:]) or any(map(str.isspace, text.strip())):
        raise LocationError(f"{text!r} is no network location; it must look like /rack or /region/rack")
    return "/".join(parts)


def region_of(location: str) -> str:
    """The first part of a location."""
    return location.split("/", 2)[1]


@attrs.frozen
class Topology:
    """The locations of bookies, as far as they are known."""

    locations: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    default: str = DEFAULT_RACK
    local: str | None = None  # where this program runs

    def rack(self, bookie: str) -> str:
        """The fault domain of a bookie: its whole location."""
        return self.locations.get(bookie, self.default)

    def region(self, bookie: str) -> str:
        """The region of a bookie."""
        return region_of(self.rack(bookie))

    def is_known(self, bookie: str) -> bool:
        """Whether anything is known of where it stands."""
        return self.rack(bookie) != self.default

    def racks(self, bookies: Iterable[str]) -> set[str]:
        """The fault domains of these bookies, the default one included."""
        return {self.rack(bookie) for bookie in bookies}

    def distance(self, bookie: str) -> int:
        """0: in this program's rack, 1: in its region, 2: further, or nothing is known."""
        rack = self.rack(bookie)
        if self.local is None or rack == self.default:
            return 2
        if rack == self.local:
            return 0
        return 1 if rack.count("/") > 1 and region_of(rack) == region_of(self.local) else 2
