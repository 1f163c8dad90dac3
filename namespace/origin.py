"""The name that a log's records are bound to, also after the log was renamed.

Inside: the node that keeps this name, and the node of a name that logs once had. Not inside: renaming
(``rename_nodes``), what is bound to the name (``dlog.encryption``, ``dlog.format.hash_chain``).
Always: a log keeps its origin as long as it exists; two logs of a namespace never have the same one.

A log that was never renamed, with a name that no other log had before, has its name as origin, and no node.
A renamed log has a node with its origin. The old name has a node, too, with the number of renames away from
it. A later log of that name has its name and this number as origin: ``orders<1>``. No log can have such a
name. The number changes only when a log leaves the name, so it is the same as long as that log exists,
whichever program has created it.

Source: our own; docs/metadata.md 16.17.
"""

from __future__ import annotations

import json
from typing import Any

import attrs

from ledger.metadata_store.store import Node
from namespace.errors import LogMetadataError, LogNotFoundError, LogRenamedError
from namespace.log_nodes import LogNodes
from namespace.node_reads import read_nodes

VERSION = 1


@attrs.frozen
class RenamedName:
    """The record of a name that a log once had."""

    times: int  # how often a log of this name was renamed
    renamed_to: str  # by the last of these renames


async def read_origin(log: LogNodes) -> str:
    """The name that the records of a log are bound to.

    Raises:
        LogMetadataError: A node does not parse.
    """
    node, name = log.origin_path, log.renamed_path
    await log.store.sync(node)
    nodes = await read_nodes(log.store, [node, name])
    return origin_from(log.name, node, nodes[node], name, nodes[name])


def origin_from(log: str, path: str, node: Node | None, name_path: str, name: Node | None) -> str:
    """The origin of a log, from the log's node and that of its name. Raises ``LogMetadataError``."""
    if node is not None:
        return decode_origin(node.value, path)
    return log if name is None else f"{log}<{decode_renamed(name.value, name_path).times}>"


async def log_not_found(log: LogNodes) -> LogNotFoundError:
    """The error for a log that does not exist; it says whether the log was renamed."""
    path = log.renamed_path
    (node,) = (await read_nodes(log.store, [path])).values()
    if node is None:
        return LogNotFoundError(log.name)
    return LogRenamedError(log.name, decode_renamed(node.value, path).renamed_to)


def encode_origin(origin: str) -> bytes:
    """The data of a log's node."""
    return json.dumps({"version": VERSION, "origin": origin}).encode()


def decode_origin(data: bytes, path: str) -> str:
    """The origin in a log's node. Raises ``LogMetadataError``."""
    found = _fields(data, path, {"version", "origin"})["origin"]
    if not isinstance(found, str) or not found:
        raise _damaged(path, "its origin is no name")
    return found


def encode_renamed(renamed: RenamedName) -> bytes:
    """The data of a name's node."""
    return json.dumps({"version": VERSION, "times": renamed.times, "to": renamed.renamed_to}).encode()


def decode_renamed(data: bytes, path: str) -> RenamedName:
    """The content of a name's node. Raises ``LogMetadataError``."""
    fields = _fields(data, path, {"version", "times", "to"})
    times, renamed_to = fields["times"], fields["to"]
    if type(times) is not int or not 1 <= times < 2**63 or not isinstance(renamed_to, str):
        raise _damaged(path, "it has no number of renames, or no name")
    return RenamedName(times, renamed_to)


def _fields(data: bytes, path: str, names: set[str]) -> dict[str, Any]:
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise _damaged(path, "it is not JSON") from exc
    if not isinstance(fields, dict) or set(fields) != names or type(fields["version"]) is not int:
        raise _damaged(path, f"it is no object of {', '.join(sorted(names))}")
    if fields["version"] != VERSION:
        raise _damaged(path, f"it has version {fields['version']}, this release knows {VERSION}")
    return fields


def _damaged(path: str, evidence: str) -> LogMetadataError:
    return LogMetadataError(f"{path}: {evidence}; nothing was changed")
