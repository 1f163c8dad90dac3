"""The manifest of an archive: which segments are in which files. A format, and the rules of its growth.

A manifest is a chain of parts, one JSON file each. A part names the segments that one step of an archiving
run added, and the digest of the part before it. A part never changes and is never deleted.
Not inside: files (``directory``), the rows of a segment (``content``).
Always: the segments are without a gap and in order; a part that is missing, cut or changed is an error.

Source: our own; docs/pipelines.md.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import attrs

from spark_integration.errors import ArchiveDamagedError

FORMAT = "dlog archive"
VERSION = 1
NO_PARENT = ""


@attrs.frozen(kw_only=True)
class Content:
    """The count, bounds and digest of a segment's rows, however they are stored."""

    records: int
    first: tuple[int, int]  # entry and slot of the first record
    last: tuple[int, int]
    first_txid: int
    last_txid: int
    sha256: str  # of all columns


@attrs.frozen(kw_only=True)
class ArchivedSegment:
    """A segment in the archive. A segment without records has no content and no file."""

    segment: int  # log segment sequence number
    ledger_id: int
    completed_ms: int | None
    content: Content | None
    file: str | None  # relative to the archive
    size_bytes: int  # of the file

    @property
    def records(self) -> int:
        """The number of its records."""
        return 0 if self.content is None else self.content.records


@attrs.frozen(kw_only=True)
class ManifestPart:
    """The segments that one step added."""

    archive_id: str  # chosen at random by the first part
    log: str
    uri: str  # of the namespace, for people
    number: int  # 1, 2, ...
    parent: str  # the digest of the part before it
    segments: tuple[ArchivedSegment, ...]

    def encoded(self) -> bytes:
        """The bytes of its file."""
        body = {"format": FORMAT, "version": VERSION, **attrs.asdict(self)}
        return _text({**body, "digest": _digest(body)})

    @staticmethod
    def decoded(data: bytes, name: str) -> ManifestPart:
        """The part in a file.

        Args:
            name: Of the file, for errors.

        Raises:
            ArchiveDamagedError: The bytes are no part of a manifest, or were changed.
        """
        try:
            body = json.loads(data)
            if body["format"] != FORMAT:
                raise ValueError(f"its format is {body['format']!r}")
            if body["version"] != VERSION:
                raise ValueError(f"its version is {body['version']!r}; this release reads version {VERSION}")
            given = body.pop("digest")
            if given != _digest(body):
                raise ValueError("its digest is wrong")
            return ManifestPart(
                archive_id=body["archive_id"],
                log=body["log"],
                uri=body["uri"],
                number=body["number"],
                parent=body["parent"],
                segments=tuple(map(_segment, body["segments"])),
            )
        except (ValueError, KeyError, TypeError, RecursionError) as exc:
            raise ArchiveDamagedError(f"{name} is no intact part of a manifest: {exc}") from exc


@attrs.frozen(kw_only=True)
class Manifest:
    """All parts together."""

    archive_id: str
    log: str
    uri: str
    parts: int
    digest: str  # of the last part
    segments: tuple[ArchivedSegment, ...]

    @property
    def last_segment(self) -> int | None:
        """The sequence number of the last archived segment; None if there is none."""
        return self.segments[-1].segment if self.segments else None

    @property
    def records(self) -> int:
        """The number of archived records."""
        return sum(segment.records for segment in self.segments)

    @property
    def files(self) -> frozenset[str]:
        """The files of all segments, relative to the archive."""
        return frozenset(segment.file for segment in self.segments if segment.file is not None)

    @staticmethod
    def empty(archive_id: str, log: str, uri: str) -> Manifest:
        """The manifest of a new archive."""
        return Manifest(archive_id=archive_id, log=log, uri=uri, parts=0, digest=NO_PARENT, segments=())

    @staticmethod
    def of(files: Mapping[int, bytes]) -> Manifest:
        """The manifest in files, by the numbers in their names. There is at least one.

        Raises:
            ArchiveDamagedError: A part is missing or was changed, or segments are missing between others.
        """
        found: Manifest | None = None
        for number, expected in zip(sorted(files), range(1, len(files) + 1), strict=True):
            name = f"part {number} of the manifest"
            if number != expected:
                raise ArchiveDamagedError(f"part {expected} of the manifest is missing")
            part = ManifestPart.decoded(files[number], name)
            if found is None:
                found = Manifest.empty(part.archive_id, part.log, part.uri)
            try:
                found = found.extended(part)
            except ValueError as exc:
                raise ArchiveDamagedError(f"{name} does not follow the part before it: {exc}") from exc
        if found is None:
            raise ArchiveDamagedError("the manifest has no part")
        return found

    def next_part(self, segments: Sequence[ArchivedSegment]) -> ManifestPart:
        """The part that adds segments to this manifest."""
        return ManifestPart(
            archive_id=self.archive_id,
            log=self.log,
            uri=self.uri,
            number=self.parts + 1,
            parent=self.digest,
            segments=tuple(segments),
        )

    def extended(self, part: ManifestPart) -> Manifest:
        """This manifest and the next part.

        Raises:
            ValueError: The part is not the next one, or its segments do not follow.
        """
        if (part.archive_id, part.log) != (self.archive_id, self.log):
            raise ValueError("it belongs to another archive")
        if (part.number, part.parent) != (self.parts + 1, self.digest):
            raise ValueError("its number or the digest of its parent is wrong")
        segments = self.segments + part.segments
        for before, after in pairwise(segments):
            if after.segment != before.segment + 1:
                raise ValueError(f"segment {after.segment} follows segment {before.segment}")
        body = json.loads(part.encoded())  # encoded on this line
        return attrs.evolve(self, parts=part.number, digest=body["digest"], segments=segments)


def _segment(document: dict[str, Any]) -> ArchivedSegment:
    content = document["content"]
    if content is not None:
        first, last = content["first"], content["last"]
        content = Content(**{**content, "first": (first[0], first[1]), "last": (last[0], last[1])})
    return ArchivedSegment(**{**document, "content": content})


def _digest(body: Mapping[str, object]) -> str:
    return hashlib.sha256(_text(body)).hexdigest()


def _text(document: Mapping[str, object]) -> bytes:
    return (json.dumps(document, sort_keys=True, indent=1) + "\n").encode("ascii")
