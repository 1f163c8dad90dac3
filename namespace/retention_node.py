"""The node of a log that says how long its records are kept.

Inside: reading and replacing the node. Not inside: the meaning of the rule (``retention``).

Source: our own; docs/stream-format.md 6.3.
"""

from __future__ import annotations

from ledger.metadata_store.errors import NodeExistsError, NoNodeError
from namespace.errors import ConfigError, LogMetadataError, LogNotFoundError
from namespace.log_nodes import LogNodes
from namespace.segments.retention import Retention, decode_retention, encode_retention


async def read_retention(log: LogNodes) -> Retention | None:
    """The rule of a log; None if it has none.

    Raises:
        LogMetadataError: It does not parse.
    """
    path = log.retention_path
    try:
        data = (await log.store.get(path)).value
    except NoNodeError:
        return None
    try:
        return decode_retention(data)
    except ConfigError as exc:
        raise LogMetadataError(
            f"log {log.name!r}, node {path}: {exc}; no record is given up until `dlog log retention`"
            " replaces it"
        ) from None


async def write_retention(log: LogNodes, retention: Retention | None) -> None:
    """Replace the rule of a log; None removes it. If cancelled, it may or may not be replaced.

    Raises:
        LogNotFoundError: There is no such log.
    """
    path = log.retention_path
    if await log.store.exists(log.segments_path) is None:
        raise LogNotFoundError(log.name)
    try:
        if retention is None:
            await log.store.delete(path)
            return
        data = encode_retention(retention)
        try:
            await log.store.create(path, data)
        except NodeExistsError:
            await log.store.put(path, data)
    except NoNodeError as exc:
        if retention is not None:
            raise LogNotFoundError(log.name) from exc
