"""The properties of a log: a small map of texts that its users keep beside the records.

``values`` has the map and its stored form, ``node`` reads and changes the node of a log.
"""

from __future__ import annotations

from namespace.properties.node import change_properties, read_properties
from namespace.properties.values import LogProperties, PropertiesConflictError

__all__ = ["LogProperties", "PropertiesConflictError", "change_properties", "read_properties"]
