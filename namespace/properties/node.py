"""The node of a log that holds its properties.

Inside: reading and changing the node. Not inside: the map (``values``).
Always: a change is conditional on what was read, so two changes at once do not undo each other.

Source: our own; docs/metadata.md 16.3.
"""

from __future__ import annotations

from collections.abc import Mapping

from ledger.metadata_store.errors import BadVersionError, NodeExistsError, NoNodeError
from namespace.errors import ConfigError, LogMetadataError, LogNotFoundError
from namespace.log_nodes import LogNodes
from namespace.properties.values import (
    LogProperties,
    PropertiesConflictError,
    changed,
    decode_properties,
    encode_properties,
)


async def read_properties(log: LogNodes) -> LogProperties:
    """The properties of a log.

    Raises:
        LogNotFoundError: There is no such log.
        LogMetadataError: They do not parse.
    """
    path = log.properties_path
    try:
        node = await log.store.get(path)
    except NoNodeError:
        if await log.store.exists(log.segments_path) is None:
            raise LogNotFoundError(log.name) from None
        return LogProperties({}, None)
    try:
        return LogProperties(decode_properties(node.value), node.stat.version)
    except ConfigError as exc:
        raise LogMetadataError(f"log {log.name!r}, node {path}: {exc}; nothing was changed") from None


async def change_properties(
    log: LogNodes,
    changes: Mapping[str, str | None],
    expected: LogProperties | None,
) -> LogProperties:
    """Set or remove some properties; see ``Namespace.properties.change``. Repeating it is safe.

    If cancelled, or if the connection is lost, the change may or may not be stored.

    Raises:
        LogNotFoundError, LogMetadataError, ConfigError
        PropertiesConflictError: They are no longer those expected.
    """
    path = log.properties_path
    while True:
        await log.store.sync(path)
        found = await read_properties(log)
        if expected is not None and found != expected:
            wanted = changed(expected.values, changes)
            if found.version == (0 if expected.version is None else expected.version + 1) and (
                found.values == wanted
            ):
                return found  # stored already: by this call, whose first reply was lost, or by an equal one
            raise PropertiesConflictError(log.name, dict(expected.values), dict(found.values))
        values = changed(found.values, changes)
        data = encode_properties(values)
        try:
            if found.version is None:
                await log.store.create(path, data)
                return LogProperties(values, 0)
            stat = await log.store.put(path, data, expected=found.version)
            return LogProperties(values, stat.version)
        except (BadVersionError, NodeExistsError, NoNodeError):
            continue  # another client was faster
