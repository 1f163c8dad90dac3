"""What each side of a promotion stores about it, and its bytes.

Inside: the two records, as JSON. Not inside: their nodes (``nodes``), which step follows (``steps``).
Always: both sides hold the same id; a text of another form is refused, not guessed.

Source: our own; docs/promotion.md.
"""

from __future__ import annotations

import enum
import json
from typing import Any, TypeVar

import attrs

from dlog.errors import LogMetadataError

VERSION = 1

Phase = TypeVar("Phase", bound=enum.Enum)


class SourcePhase(enum.Enum):
    """How far the promotion is, in the log that is moved."""

    COPYING = "copying"  # the log takes records here
    HANDED_OVER = "handed over"  # it takes none here; the rest is copied, then it takes them at the target
    DONE = "done"  # the log at the target is complete and takes records
    UNDOING = "undoing"  # the log takes records here again; the copies are being deleted


class TargetPhase(enum.Enum):
    """How far the promotion is, in the log that is made of the copies."""

    COPYING = "copying"  # it has the first segments of the log and takes no records
    ACTIVE = "active"  # complete; it takes records
    UNDOING = "undoing"  # its copies are being deleted


@attrs.frozen
class SourceRecord:
    """Stored with the log that is moved."""

    id: str
    target: str  # the URI of the namespace
    phase: SourcePhase
    last_seqno: int = 0  # once done: of the newest segment here; later ones are at the target only
    is_purged: bool = False  # the segments here are being deleted, or are deleted
    node_version: int = attrs.field(default=-1, eq=False)  # of the node that it was read from

    @property
    def is_closed(self) -> bool:
        """True if the log takes no records here any more."""
        return self.phase in (SourcePhase.HANDED_OVER, SourcePhase.DONE)


@attrs.frozen
class TargetRecord:
    """Stored with the log that is made of the copies."""

    id: str
    source: str  # the URI of the namespace
    phase: TargetPhase
    node_version: int = attrs.field(default=-1, eq=False)


def encode_source(record: SourceRecord) -> bytes:
    """The text of the node ``dlog-promoted-to``."""
    return _encode(
        {
            "version": VERSION,
            "id": record.id,
            "target": record.target,
            "phase": record.phase.value,
            "last_seqno": record.last_seqno,
            "is_purged": record.is_purged,
        }
    )


def decode_source(data: bytes, node_version: int, path: str) -> SourceRecord:
    """Read the node ``dlog-promoted-to``.

    Raises:
        LogMetadataError: It is no such record, or one of a newer release.
    """
    found = _decode(
        data, path, {"id": str, "target": str, "phase": str, "last_seqno": int, "is_purged": bool}
    )
    return SourceRecord(
        found["id"],
        found["target"],
        _phase(SourcePhase, found["phase"], path),
        found["last_seqno"],
        found["is_purged"],
        node_version,
    )


def encode_target(record: TargetRecord) -> bytes:
    """The text of the node ``dlog-promoted-from``."""
    return _encode(
        {"version": VERSION, "id": record.id, "source": record.source, "phase": record.phase.value}
    )


def decode_target(data: bytes, node_version: int, path: str) -> TargetRecord:
    """Read the node ``dlog-promoted-from``.

    Raises:
        LogMetadataError: It is no such record, or one of a newer release.
    """
    found = _decode(data, path, {"id": str, "source": str, "phase": str})
    return TargetRecord(found["id"], found["source"], _phase(TargetPhase, found["phase"], path), node_version)


def _encode(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode("ascii")


def _decode(data: bytes, path: str, fields: dict[str, type]) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise LogMetadataError(f"{path}: no record of a promotion: {exc}; nothing was changed") from None
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise LogMetadataError(
            f"{path}: no record of a promotion of version {VERSION}, the one that this release knows;"
            " nothing was changed"
        )
    for name, kind in fields.items():
        if type(document.get(name)) is not kind:
            raise LogMetadataError(
                f"{path}: {name!r} of the promotion is no {kind.__name__}; nothing was changed"
            )
    return document


def _phase(phases: type[Phase], text: str, path: str) -> Phase:
    try:
        return phases(text)
    except ValueError:
        raise LogMetadataError(
            f"{path}: unknown phase {text!r} of a promotion; nothing was changed"
        ) from None
