"""The network locations of bookies, such as ``/rack`` or ``/region/rack``.

Inside: parsing a location, the rack and the region of a bookie. Not inside: looking locations up
(``locations``), the rules that use them (``placement.spread_policy``).
Always: two bookies with the same location share a fault domain. A bookie with an unknown location has the
default location.

Source: NetworkTopologyImpl.java, NetworkTopology.java; docs/protocol.md 11.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from ledger.errors import LocationError

DEFAULT_RACK = "/default-rack"
DEFAULT_REGION_RACK = "/default-region/default-rack"


def parse_location(text: str) -> str:
    """A location in its normal form: ``/region/rack``, without a slash at the end.

    Raises:
        LocationError: The text lacks the leading slash, or has an empty part or white space.
    """
    parts = text.strip().removesuffix("/").split("/")
    if len(parts) < 2 or parts[0] or not all(parts[1:]) or any(map(str.isspace, text.strip())):
        raise LocationError(f"{text!r} is no network location; expected a path such as /rack or /region/rack")
    return "/".join(parts)


def region_of(location: str) -> str:
    """The first part of a location."""
    return location.split("/", 2)[1]


@attrs.frozen
class Topology:
    """The known locations of bookies."""

    locations: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    default: str = DEFAULT_RACK
    local: str | None = None  # the location of this program

    def rack(self, bookie: str) -> str:
        """The fault domain of a bookie: its whole location."""
        return self.locations.get(bookie, self.default)

    def region(self, bookie: str) -> str:
        """The region of a bookie."""
        return region_of(self.rack(bookie))

    def is_known(self, bookie: str) -> bool:
        """Whether the location of the bookie is known."""
        return self.rack(bookie) != self.default

    def racks(self, bookies: Iterable[str]) -> set[str]:
        """The fault domains of these bookies, the default one included."""
        return {self.rack(bookie) for bookie in bookies}

    def distance(self, bookie: str) -> int:
        """0: in the rack of this program, 1: in its region, 2: elsewhere or unknown."""
        rack = self.rack(bookie)
        if self.local is None or rack == self.default:
            return 2
        if rack == self.local:
            return 0
        return 1 if rack.count("/") > 1 and region_of(rack) == region_of(self.local) else 2
