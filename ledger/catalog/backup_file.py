"""The file with a backup of a cluster's metadata: lines of JSON, from a header to a checksum.

line     content
first    format, version, ledgers_root, namespaces, instance_id, id_series, created_ms
others   path and value (Base64) of one node, ascending by path
last     nodes (their number) and sha256 (of all bytes before this line)

Inside: these bytes and the value that they stand for. Not inside: reading and writing nodes
(``cluster_backup``).
Always: a file that was cut off, changed or put together from two is refused as a whole.

Source: our own; docs/metadata.md 18.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Sequence
from typing import Any

import attrs

from ledger.errors import BackupFileError
from ledger.metadata_store.errors import InvalidPathError
from ledger.metadata_store.store import check_new_path, parent_of

FORMAT = "dlog-metadata-backup"
VERSION = 1
ID_SERIES_MAX = 2**31 - 1


@attrs.frozen
class BackupNode:
    """A persistent node."""

    path: str
    value: bytes = attrs.field(repr=False)  # ledger metadata hold a password


@attrs.frozen(kw_only=True)
class ClusterBackup:
    """The persistent nodes of a cluster and of namespaces, without locks, registrations and id counters."""

    ledgers_root: str
    namespaces: tuple[str, ...]  # ascending; not below the ledgers root, not below each other
    instance_id: str | None
    id_series: int  # the greatest upper half of a ledger id that may have been given out, 0 to ID_SERIES_MAX
    created_ms: int  # epoch milliseconds, when the backup began
    nodes: tuple[BackupNode, ...]  # ascending by path; parents come before children

    @property
    def tops(self) -> tuple[str, ...]:
        """The trees that the backup has: the ledgers root and the namespaces."""
        return (self.ledgers_root, *self.namespaces)


def encode_backup(backup: ClusterBackup) -> bytes:
    """The content of the file. Equal backups give equal bytes."""
    header = {
        "format": FORMAT,
        "version": VERSION,
        "ledgers_root": backup.ledgers_root,
        "namespaces": list(backup.namespaces),
        "instance_id": backup.instance_id,
        "id_series": backup.id_series,
        "created_ms": backup.created_ms,
    }
    lines = [_line(header)]
    lines += [
        _line({"path": node.path, "value": base64.b64encode(node.value).decode()}) for node in backup.nodes
    ]
    body = b"".join(lines)
    return body + _line({"nodes": len(backup.nodes), "sha256": hashlib.sha256(body).hexdigest()})


def decode_backup(data: bytes) -> ClusterBackup:
    """The backup in a file.

    Raises:
        BackupFileError: The file is incomplete, damaged, of an unknown version, or no backup at all.
    """
    lines = data.splitlines(keepends=True)
    header = _parsed(lines[0]) if lines else None
    if header is None or header.get("format") != FORMAT:
        raise BackupFileError("it is no backup of metadata: the first line is no header")
    if header.get("version") != VERSION:
        raise BackupFileError(f"its version is {header.get('version')!r}; this program reads {VERSION}")
    trailer = _parsed(lines[-1]) if lines[-1].endswith(b"\n") else None
    if trailer is None or trailer.keys() != {"nodes", "sha256"}:
        raise BackupFileError("it is cut off: the last line, with the checksum, is missing")
    body = data[: -len(lines[-1])]
    if trailer["sha256"] != hashlib.sha256(body).hexdigest() or trailer["nodes"] != len(lines) - 2:
        raise BackupFileError("its checksum does not match, so a part was changed or is missing")
    try:
        backup = ClusterBackup(
            ledgers_root=header["ledgers_root"],
            namespaces=tuple(header["namespaces"]),
            instance_id=header["instance_id"],
            id_series=header["id_series"],
            created_ms=header["created_ms"],
            nodes=tuple(_node(line) for line in lines[1:-1]),
        )
        check_tops(backup.tops)
        _check_nodes(backup)
    except (KeyError, TypeError, InvalidPathError, binascii.Error) as exc:
        raise BackupFileError(f"a line does not have the form of version {VERSION}: {exc}") from None
    return backup


def check_tops(tops: Sequence[str]) -> None:
    """Check that none of the trees of a backup holds another one.

    Raises:
        BackupFileError: One holds another.
        InvalidPathError: A path is no path of a node.
    """
    for top in tops:
        check_new_path(top)
        for other in tops:
            if other is not top and f"{top}/".startswith(f"{other}/"):
                raise BackupFileError(f"{top} lies in {other}; name each tree once, and separate ones")


def _check_nodes(backup: ClusterBackup) -> None:
    known: set[str] = set()
    last = ""
    for node in backup.nodes:
        check_new_path(node.path)
        if node.path <= last:
            raise BackupFileError(f"{node.path} comes after {last}: the nodes are not in order")
        if node.path not in backup.tops and parent_of(node.path) not in known:
            raise BackupFileError(f"{node.path} has no parent in the file")
        known.add(node.path)
        last = node.path
    if missing := set(backup.tops) - known:
        raise BackupFileError(f"{min(missing)} is missing")
    if not 0 <= backup.id_series <= ID_SERIES_MAX:
        raise BackupFileError(f"id_series {backup.id_series} is out of range")


def _line(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _node(line: bytes) -> BackupNode:
    document = _parsed(line)
    if document is None:
        raise BackupFileError("a line is no JSON object")
    return BackupNode(document["path"], base64.b64decode(document["value"], validate=True))
