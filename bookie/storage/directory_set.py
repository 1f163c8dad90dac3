"""Which ledger directories belong together: none may be missing, and none may belong to another bookie.

A ledger stays in the directory that has its data, so directories may be added, and their order may change. If
a directory is left out, swapped or wiped, its ledgers are missing, and the bookie would reply "no such
ledger" for acknowledged entries. In a cluster, cookies prevent this. These stamps prevent it for every
bookie.

If there are several directories, each has a file ``POSITION``: ``position 0 of 2, a1b2c3d4``. The number
after the comma is the CRC32C, in hex, of the text before the comma. A single directory has no such file.

Inside: the stamps, the rule. Not inside: cookies (``cookie_check``), ledgers found twice (``opening``).
Always: the count in the stamps is raised only when each directory has its position. After an interrupted
start the next one continues.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import attrs
from crc32c import crc32c

from bookie.disk.disk import Disk
from bookie.entrylog.format import entry_log_id_of
from bookie.errors import FormatError, StartError
from bookie.journal.last_mark import is_mark_name

_POSITION = "POSITION"
_TEXT = re.compile(rb"(position (\d{1,6}) of (\d{1,6})), ([0-9a-f]{8})\n")


@attrs.frozen
class Stamp:
    """The content of one directory's file."""

    position: int
    count: int  # of all directories; 0: not known yet


@attrs.frozen
class FoundDirectory:
    """A configured directory, as a start finds it."""

    path: Path
    stamp: Stamp | None
    is_used: bool  # it has entry logs or marks


def encode_stamp(stamp: Stamp) -> bytes:
    """The file's content."""
    text = b"position %d of %d" % (stamp.position, stamp.count)
    return b"%s, %08x\n" % (text, crc32c(text))


def decode_stamp(data: bytes) -> Stamp:
    """The stamp in the file's content. ``FormatError`` if it is damaged."""
    match = _TEXT.fullmatch(data)
    if match is None or int(match[4], 16) != crc32c(match[1]):
        raise FormatError(f"{_POSITION} reads {data[:60]!r}")
    return Stamp(int(match[2]), int(match[3]))


def positions(found: Sequence[FoundDirectory], *, accepts_losses: bool = False) -> list[int]:
    """The position of each directory: old ones keep theirs, new ones come after them.

    Args:
        accepts_losses: Empty directories may replace missing ones.

    Raises:
        StartError: A directory is missing, is present twice, or belongs to another bookie.
    """
    count = max((one.stamp.count for one in found if one.stamp), default=0)
    taken: dict[int, Path] = {}
    for one in found:
        if one.stamp is not None:
            twin = taken.setdefault(one.stamp.position, one.path)
            if twin is not one.path:
                raise StartError(
                    f"{twin} and {one.path} are both stamped as ledger directory {one.stamp.position} of"
                    f" this bookie: one is a copy of the other. Configure the one that was last in use"
                )
    missing = [position for position in range(count) if position not in taken]
    strangers = [one for one in found if one.stamp is None and one.is_used]
    new = [one for one in found if one.stamp is None and not one.is_used]
    if len(missing) > len(strangers) + (len(new) if accepts_losses else 0):
        raise StartError(
            f"this bookie was run with {count} ledger directories, and {len(missing)} of them"
            f" {'is' if len(missing) == 1 else 'are'} not among"
            f" {', '.join(str(one.path) for one in found)}: left out of the configuration, not mounted, or"
            " wiped. The ledgers there would be missing. Bring the directories back; if their data are gone,"
            " discard this bookie and have its ledgers copied from the others"
        )
    if count and len(missing) < len(strangers):
        raise StartError(
            f"{', '.join(str(one.path) for one in strangers)}: has entries, but the {count} ledger"
            " directories of this bookie are all present without it. Configure an empty directory to add one"
        )
    free = iter(position for position in range(len(found)) if position not in taken)
    # Used ones first: a used directory without a readable stamp is older than the new ones.
    chosen = {one.path: next(free) for one in strangers}
    chosen |= {one.path: next(free) for one in new}
    return [chosen[one.path] if one.stamp is None else one.stamp.position for one in found]


class DirectorySet:
    """The stamps of all ledger directories. Blocks."""

    def __init__(self, disk: Disk, directories: Sequence[Path], *, accepts_losses: bool = False) -> None:
        self._disk = disk
        self._accepts_losses = accepts_losses
        self._directories = tuple(directories)
        self._found: list[FoundDirectory] = []
        self._positions: list[int] = []

    def check(self) -> None:
        """``StartError`` if a directory is missing or does not belong to this bookie. Changes nothing."""
        self._found = [self._look(directory) for directory in self._directories]
        self._positions = positions(self._found, accepts_losses=self._accepts_losses)

    def stamp(self) -> None:
        """Stamp these directories as the complete set."""
        count = len(self._directories)
        if count == 1:
            return
        known = max((one.stamp.count for one in self._found if one.stamp), default=0)
        for one, position in zip(self._found, self._positions, strict=True):
            if one.stamp is None:
                self._write(one.path, Stamp(position, known))
        for one, position in zip(self._found, self._positions, strict=True):
            if one.stamp != Stamp(position, count):
                self._write(one.path, Stamp(position, count))

    def _look(self, directory: Path) -> FoundDirectory:
        names = self._disk.list_directory(directory)
        stamp = None
        if _POSITION in names:
            try:
                stamp = decode_stamp(self._disk.read_file(directory / _POSITION))
            except FormatError:
                stamp = None  # it gets a position that no other directory has
        is_used = any(entry_log_id_of(name) is not None or is_mark_name(name) for name in names)
        return FoundDirectory(directory, stamp, is_used)

    def _write(self, directory: Path, stamp: Stamp) -> None:
        self._disk.replace_file(directory / _POSITION, encode_stamp(stamp))
