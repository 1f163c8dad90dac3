"""The input of the demo: a file of lines, or the source of Python's own library."""

from __future__ import annotations

import sysconfig
from array import array
from collections.abc import Iterator
from pathlib import Path

import attrs

DEFAULT_LINES_MIN = 100_000


class DemoInputError(Exception):
    """The input has too few lines to kill the writer half way."""


@attrs.frozen(repr=False)
class Lines:
    """A file's lines, numbered from 1, without their ends, with a fingerprint of each."""

    file: Path
    prints: array[int]  # prints[n - 1] is the fingerprint of line n; valid in this process only
    size_bytes: int

    def __len__(self) -> int:
        return len(self.prints)


def fingerprint(line: bytes) -> int:
    """64 bits of a line: enough to detect a changed record."""
    return hash(line)


def read_lines(file: Path) -> Iterator[bytes]:
    """The lines of a file without their ends. A last line without an end counts."""
    with file.open("rb") as source:
        for line in source:
            yield line.removesuffix(b"\n")


def survey(file: Path) -> Lines:
    """Read a file once and take the fingerprints of its lines.

    Raises:
        DemoInputError: The file has fewer than two lines.
        OSError: The file cannot be read.
    """
    prints, size_bytes = array("q"), 0
    for line in read_lines(file):
        prints.append(fingerprint(line))
        size_bytes += len(line)
    if len(prints) < 2:
        raise DemoInputError(
            f"{file} has {len(prints)} lines; the demo needs at least 2 to kill the writer between them"
        )
    return Lines(file, prints, size_bytes)


def write_default_lines(target: Path, *, lines_min: int = DEFAULT_LINES_MIN) -> None:
    """Fill a file with whole modules of Python's own library, in the order of their names.

    Raises:
        DemoInputError: The library has too few lines.
    """
    library = Path(sysconfig.get_path("stdlib"))
    count = 0
    with target.open("wb") as output:
        for source in sorted(library.rglob("*.py")):
            if "site-packages" in source.parts or "dist-packages" in source.parts:
                continue
            text = source.read_bytes()
            text += b"" if text.endswith(b"\n") or not text else b"\n"
            output.write(text)
            count += text.count(b"\n")
            if count >= lines_min:
                return
    raise DemoInputError(
        f"{library} holds {count} lines of Python, fewer than {lines_min}; give a FILE to write"
    )
