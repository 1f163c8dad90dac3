"""The node of a log that says how long its records are kept.

Inside: reading and replacing the node. Not inside: the meaning of the rule (``retention``).

Source: our own; docs/stream-format.md 6.3.
"""

from __future__ import annotations

from ledger.metadata_store.errors import NodeExistsError, NoNodeError
from ledger.metadata_store.store import MetadataStore
from namespace import paths
from namespace.errors import ConfigError, LogMetadataError, LogNotFoundError
from namespace.segments.retention import Retention, decode_retention, encode_retention


async def read_retention(store: MetadataStore, namespace_path: str, log: str) -> Retention | None:
    """The rule of a log; None if it has none.

    Raises:
        LogMetadataError: It does not parse.
    """
    path = paths.retention_path(namespace_path, log)
    try:
        data = (await store.get(path)).value
    except NoNodeError:
        return None
    try:
        return decode_retention(data)
    except ConfigError as exc:
        raise LogMetadataError(
            f"log {log!r}, node {path}: {exc}; no record is given up until `dlog log retention` replaces it"
        ) from exc


async def write_retention(
    store: MetadataStore, namespace_path: str, log: str, retention: Retention | None
) -> None:
    """Replace the rule of a log; None removes it. If cancelled, it may or may not be replaced.

    Raises:
        LogNotFoundError: There is no such log.
    """
    path = paths.retention_path(namespace_path, log)
    if await store.exists(paths.segments_path(namespace_path, log)) is None:
        raise LogNotFoundError(log)
    try:
        if retention is None:
            await store.delete(path)
            return
        data = encode_retention(retention)
        try:
            await store.create(path, data)
        except NodeExistsError:
            await store.put(path, data)
    except NoNodeError as exc:
        if retention is not None:
            raise LogNotFoundError(log) from exc
