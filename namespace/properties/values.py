"""The properties of a log: the map, its limits, its stored form.

Inside: the value, its JSON. Not inside: the node (``node``).
Always: a map that does not parse is never replaced by one that was computed from it.

The node ``dlog-properties`` of a log holds JSON. Apache's programs ignore it, but cannot delete a log that
has one: ``dlog log delete`` can::

    {"version": 1, "properties": {"owner": "shop"}}

Source: our own; docs/metadata.md 16.3.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import attrs

from namespace.errors import ConfigError, DLogError

VERSION = 1
KEY_CHARACTERS_MAX = 128
STORED_BYTES_MAX = 65_536  # a node of ZooKeeper holds 1 MiB


@attrs.frozen
class LogProperties:
    """The properties of a log as they were read, and what shows whether they are still the same."""

    values: Mapping[str, str]
    version: int | None  # of the stored map; None: nothing was ever stored


class PropertiesConflictError(DLogError):
    """Another client has changed the properties. Nothing was changed; read them again and decide again."""

    code = 502

    def __init__(self, log: str, expected: dict[str, str], actual: dict[str, str]) -> None:
        now = ", ".join(f"{key}={value}" for key, value in sorted(actual.items())) or "none"
        super().__init__(
            f"log {log!r}: another client has changed its properties; they are now: {now}. Read them again"
            " and decide again"
        )
        self.log, self.expected, self.actual = log, expected, actual


def changed(values: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """The map with some keys set, and those whose new value is None removed.

    Raises:
        ConfigError: A key is empty, too long, or has a character that is not printable or "=".
        TypeError: A key or a value is no text.
    """
    for key, value in changes.items():
        if not isinstance(key, str) or not isinstance(value, str | None):
            raise TypeError(f"property {key!r}: keys and values are texts, not {value!r}")
        if not 0 < len(key) <= KEY_CHARACTERS_MAX or not key.isprintable() or "=" in key:
            raise ConfigError(
                f'property {key!r}: a key has 1 to {KEY_CHARACTERS_MAX} printable characters, without "="'
            )
    merged = {key: value for key, value in ({**values, **changes}).items() if value is not None}
    return dict(sorted(merged.items()))


def encode_properties(values: Mapping[str, str]) -> bytes:
    """The stored bytes.

    Raises:
        ConfigError: They are more than ``STORED_BYTES_MAX``.
    """
    try:
        data = json.dumps({"version": VERSION, "properties": dict(values)}, ensure_ascii=False).encode()
    except UnicodeEncodeError as exc:
        raise ConfigError(f"a property is no valid text: {exc}") from None
    if len(data) > STORED_BYTES_MAX:
        raise ConfigError(f"the properties take {len(data)} bytes; at most {STORED_BYTES_MAX} are stored")
    return data


def decode_properties(data: bytes) -> dict[str, str]:
    """Read the stored bytes.

    Raises:
        ConfigError: They are no map of a version that this release knows.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"the properties are not JSON: {exc}") from None
    if (
        not isinstance(document, dict)
        or set(document) != {"version", "properties"}
        or document["version"] != VERSION
        or not isinstance(values := document["properties"], dict)
        or not all(isinstance(value, str) for value in values.values())
    ):
        raise ConfigError(f"the properties are no object of version {VERSION} with texts")
    return values
