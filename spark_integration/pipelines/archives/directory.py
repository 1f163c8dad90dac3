"""The directory of an archive: its manifest and its files, durable before anything relies on them.

    manifest/00000001.json ...            the parts of the manifest
    data/00000001-3f9a01c2/segment-...    the files of an attempt to add part 1

Always: a part of the manifest is created whole or not at all, and never over another one, so of two runs at
the same time only one adds the next part. A file is deleted only if no part can ever name it: its attempt was
for a part that exists and does not name it.

Source: our own; docs/pipelines.md.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Collection
from pathlib import Path
from urllib.parse import unquote, urlsplit

import attrs

from spark_integration.errors import ArchiveDamagedError, PipelineError
from spark_integration.pipelines.archives.manifest import Manifest

_PART = re.compile(r"(\d{8})\.json")
_ATTEMPT = re.compile(r"(\d{8})-[0-9a-f]{8}")
_UNFINISHED = re.compile(r"new-(\d{8})-[0-9a-f]{8}")


@attrs.frozen
class ArchiveDirectory:
    """A directory that the driver and all executors have under the same path. It is picklable."""

    path: Path

    @staticmethod
    def at(place: str | Path) -> ArchiveDirectory:
        """The directory of a path or of a ``file:`` URI.

        Raises:
            PipelineError: The place is something else.
        """
        text = os.fspath(place)
        if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", text):
            parts = urlsplit(text)
            if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
                raise PipelineError(
                    f"an archive is in a directory that the driver and all executors see under one path, such"
                    f" as file:///archive/orders; {parts.scheme}: is not supported"
                )
            text = unquote(parts.path)
        return ArchiveDirectory(Path(text).absolute())

    def manifest(self) -> Manifest | None:
        """The manifest; None if there is no part of it.

        Raises:
            ArchiveDamagedError: A part is missing or was changed.
            OSError: The directory cannot be read.
        """
        directory = self.path / "manifest"
        if not directory.exists():
            return None
        found = {int(match[1]): each for each in directory.iterdir() if (match := _PART.fullmatch(each.name))}
        return Manifest.of({number: file.read_bytes() for number, file in found.items()}) if found else None

    def new_attempt(self, number: int) -> str:
        """A new directory for files that part ``number`` may name; its path relative to the archive."""
        name = f"data/{number:08d}-{secrets.token_hex(4)}"
        make_directory(self.path / name)
        return name

    def has_part(self, number: int) -> bool:
        """True if the manifest has this part."""
        return (self.path / "manifest" / f"{number:08d}.json").exists()

    def add_part(self, number: int, data: bytes) -> bool:
        """Create a part of the manifest, durably; False if there is one of this number already.

        Its directory gets the part whole or not at all, wherever the program dies.
        """
        directory = self.path / "manifest"
        make_directory(directory)
        name, temporary = (
            directory / f"{number:08d}.json",
            directory / f"new-{number:08d}-{secrets.token_hex(4)}",
        )
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, name)  # unlike a rename, this replaces nothing
        except OSError:
            if not name.exists():
                raise
            return False  # if the temporary file is gone, the run that added the part has swept it
        finally:
            temporary.unlink(missing_ok=True)
        sync_directory(directory)
        return True

    def sweep(self, manifest: Manifest) -> list[str]:
        """Delete what attempts for the parts of this manifest left; return the deleted files."""
        data = self.path / "data"
        deleted: list[str] = []
        for file in sorted((self.path / "manifest").iterdir()):
            match = _UNFINISHED.fullmatch(file.name)
            if match is not None and int(match[1]) <= manifest.parts:
                file.unlink(missing_ok=True)
                deleted.append(f"manifest/{file.name}")
        if not data.exists():
            return deleted
        for attempt in sorted(data.iterdir()):
            match = _ATTEMPT.fullmatch(attempt.name)
            if match is None or int(match[1]) > manifest.parts:
                continue  # of a run that may still add its part
            for file in sorted(attempt.iterdir()):
                name = f"data/{attempt.name}/{file.name}"
                if name not in manifest.files:
                    file.unlink()
                    deleted.append(name)
            if not any(attempt.iterdir()):
                attempt.rmdir()
        return deleted

    def check_files(self, manifest: Manifest, segments: Collection[int] | None = None) -> None:
        """Raise unless the files of the segments exist with their sizes; None: of all segments.

        Raises:
            ArchiveDamagedError: A file is missing or has another size.
        """
        for each in manifest.segments:
            if each.file is None or (segments is not None and each.segment not in segments):
                continue
            try:
                size = (self.path / each.file).stat().st_size
            except FileNotFoundError:
                raise ArchiveDamagedError(f"{self.path / each.file} is missing") from None
            if size != each.size_bytes:
                raise ArchiveDamagedError(f"{self.path / each.file} has {size} bytes, not {each.size_bytes}")


def read_manifest(archive: str | Path) -> Manifest:
    """The manifest of an archive.

    Args:
        archive: A directory, or its ``file:`` URI.

    Raises:
        PipelineError: There is no archive.
        ArchiveDamagedError: A part of the manifest is missing or was changed.
    """
    directory = ArchiveDirectory.at(archive)
    manifest = directory.manifest()
    if manifest is None:
        raise PipelineError(f"there is no archive in {directory.path}: it has no manifest")
    return manifest


def make_directory(path: Path) -> None:
    """Make a directory with its parents, if they do not exist, durably."""
    made = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for each in reversed(made):
        sync_directory(each.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
