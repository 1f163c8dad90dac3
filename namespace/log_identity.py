"""The identity of a log: a random number in its root node, which moves with the log when it is renamed.

Inside: the node's data, giving an identity to a log that has none. Not inside: the marks of ledgers, which
repeat it (``dlog.ownership``); the name that a log's records are bound to (``origin``).
Always: two logs never have the same identity, neither two of one name after each other nor two of different
namespaces; a log keeps its identity as long as it exists, unless Apache's library renames it.

The root node (``<log>/<default>``) holds JSON. Apache's programs create it without data, and never read its
data. They leave the data of a log that exists as they are::

    {"version": 1, "id": "6f1cbd0e6a0e4f6a9a4e2f7f6c4b7c55", "hash_chain": true}

``hash_chain`` is there once a writer keeps a hash chain: every later writer of ours continues with it.

A log that Apache or an older release created gets its identity when a writer or a batch of ours makes the
first ledger for it.

Source: our own; docs/metadata.md 16.18.
"""

from __future__ import annotations

import json
import re
import secrets

from ledger.metadata_store.errors import BadVersionError, NoNodeError
from namespace.errors import LogMetadataError, LogNotFoundError, LogUnavailableError
from namespace.log_nodes import LogNodes

VERSION = 1
ATTEMPTS_MAX = 100  # to store an identity; each is lost to another client in the same moment
_LOG_ID = re.compile("[0-9a-f]{32}")


def new_log_id() -> str:
    """The identity of a new log."""
    return secrets.token_hex(16)


def encode_log_id(log_id: str, *, keeps_chain: bool = False) -> bytes:
    """The data of the root node."""
    return json.dumps(
        {"version": VERSION, "id": log_id} | ({"hash_chain": True} if keeps_chain else {})
    ).encode()


def log_id_in(data: bytes) -> str | None:
    """The identity in a root node; None if it holds none, or data that this release does not know."""
    fields = _fields_in(data)
    return None if fields is None else str(fields["id"])


def keeps_chain_in(data: bytes) -> bool:
    """Whether a root node says that the log has a hash chain."""
    fields = _fields_in(data)
    return fields is not None and "hash_chain" in fields


def _fields_in(data: bytes) -> dict[str, object] | None:
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if (
        not isinstance(fields, dict)
        or fields.get("version") != VERSION
        or not isinstance(fields.get("id"), str)
    ):
        return None
    chain = {"hash_chain"} if fields.get("hash_chain") is True else set()
    if set(fields) != {"version", "id"} | chain or not _LOG_ID.fullmatch(fields["id"]):
        return None
    return fields


async def ensure_log_id(log: LogNodes, wanted: str | None, *, keeps_chain: bool = False) -> str:
    """The identity of a log, which gets one if it has none. If cancelled, it may or may not have one.

    Args:
        wanted: The identity to give; None for a new one.
        keeps_chain: The log has a hash chain from now on.

    Raises:
        LogNotFoundError: There is no such log.
        LogMetadataError: The node holds other data.
        LogUnavailableError: Other clients changed the node at every attempt.
    """
    path = log.root_path
    for _ in range(ATTEMPTS_MAX):
        try:
            node = await log.store.get(path)
            found = log_id_in(node.value)
            if found is not None and (keeps_chain_in(node.value) or not keeps_chain):
                return found
            if node.value and found is None:
                raise LogMetadataError(
                    f"log {log.name!r}: the node {path} holds {node.value[:40]!r}, which is no identity of a"
                    " log; nothing was changed. If no program needs these data, empty the node"
                )
            log_id = found or wanted or new_log_id()
            data = encode_log_id(log_id, keeps_chain=keeps_chain)
            await log.store.put(path, data, expected=node.stat.version)
        except NoNodeError:
            raise LogNotFoundError(log.name, f"there is no node {path}") from None
        except BadVersionError:
            continue  # another client gave it an identity
        return log_id
    raise LogUnavailableError(
        f"log {log.name!r}: other clients changed the node {path} {ATTEMPTS_MAX} times in that moment; try"
        " again"
    )
