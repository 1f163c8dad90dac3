"""A number that grows on the disks and in the metadata store together, so that an old copy is recognised.

A disk restored from a backup, or a machine restored from a snapshot, has a matching cookie and an undamaged
journal, but lacks the entries acknowledged since. The disk alone cannot show that. So the number is stored in
two places:

- ``INCARNATION`` in each directory: the creation time of the cookie's node, and a version of that node;
- the version of the node in the metadata store, which grows when the same bytes are written again. Apache's
  programs use that version only to write or delete exactly the cookie they have read.

A raise first writes version + 1 to every directory, durably; then it writes the node over its old version. So
a bookie that stopped at any point finds in each directory the version of the node or the one after it. If the
version in the store is greater, the disks are older than the last raise. Any other difference (an operator
created the cookie again, or restored the metadata store) is treated in the same way.

The number is raised at each start before the bookie serves, and while it serves, each ``raise_interval_s`` if
something was written since. A copy taken after the last completed raise is not recognised. A bookie restored
to such a copy has lost the entries that it acknowledged in that interval, without noticing.

Inside: the number, the comparison, the raise. Not inside: the consequences of a mismatch (``startup_check``).
Always: the directories are ahead of the store or equal, never behind; an error while serving is logged, and
the raise is repeated.

Source: our own; docs/storage-format.md 7.6; docs/known-bugs.md 2 and 83 (an old copy put back).
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import trio

from bookie.errors import CookieError
from ledger.metadata_store.errors import BadVersionError, MetadataError, NoNodeError
from ledger.metadata_store.store import MetadataStore
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tasks.failure_domain import report_contained

if TYPE_CHECKING:
    from bookie.disk.disk import Disk

INCARNATION = "INCARNATION"
_ATTEMPTS = 5
_VERSION_MAX = 2**31 - 1  # ZooKeeper's; afterwards it turns negative, and a comparison means nothing

log = get_logger(__name__)


@attrs.frozen
class IncarnationNumber:
    """The creation time of the cookie's node, and how often the node was written."""

    created_ms: int
    version: int

    def __str__(self) -> str:
        return f"version {self.version} of the cookie created at {self.created_ms} ms"


def encode_incarnation(number: IncarnationNumber) -> bytes:
    """The content of ``INCARNATION``."""
    return f"{number.created_ms} {number.version}\n".encode()


def decode_incarnation(data: bytes) -> IncarnationNumber | None:
    """The number; None if the bytes do not parse."""
    words = data.split()
    if len(words) != 2 or not data.endswith(b"\n") or not all(len(w) < 20 and w.isdigit() for w in words):
        return None
    return IncarnationNumber(int(words[0]), int(words[1]))


def incarnation_mismatch(
    found: Mapping[str, IncarnationNumber | None], registered: IncarnationNumber
) -> str | None:
    """Why these directories may lack entries; None if they are as the bookie left them.

    Args:
        found: The number of each directory that has a VERSION file.
        registered: The number in the metadata store.
    """
    for name, number in found.items():
        if number is None:
            if registered.version > 0:
                return f"{name} has no {INCARNATION} file; the metadata store has {registered}"
        elif number.created_ms != registered.created_ms or number.version not in (
            registered.version,
            registered.version + 1,
        ):
            is_older = number.created_ms == registered.created_ms and number.version < registered.version
            what = "is an old copy: it has" if is_older else "has"
            return f"{name} {what} {number}; the metadata store has {registered}"
    return None


class Incarnation:
    """The incarnation of one running bookie."""

    def __init__(self, disk: Disk, directories: Sequence[Path], path: str, data: bytes) -> None:
        """Args:
        path: The node of the cookie.
        data: The bytes of the node, written again with each raise.
        """
        self._disk, self._directories = disk, directories
        self._path, self._data = path, data
        self._raised_to: IncarnationNumber | None = None  # the number in the store after the last raise

    def read(self) -> dict[str, IncarnationNumber | None]:
        """The number in each directory. Blocks."""
        found = {}
        for directory in self._directories:
            try:
                found[str(directory)] = decode_incarnation(self._disk.read_file(directory / INCARNATION))
            except FileNotFoundError:
                found[str(directory)] = None
        return found

    async def registered(self, store: MetadataStore) -> IncarnationNumber:
        """The number in the metadata store.

        Raises:
            CookieError: The cookie is gone.
            MetadataError: The store cannot be read.
        """
        await store.sync(self._path)
        try:
            stat = (await store.get(self._path)).stat
        except NoNodeError as exc:
            raise CookieError(
                f"node {self._path} is gone: the bookie was decommissioned, or the cluster formatted"
            ) from exc
        return IncarnationNumber(stat.created_ms, stat.version)

    async def raise_number(self, store: MetadataStore) -> None:
        """Raise it in the directories, then in the store. If cancelled, perhaps only in the directories.

        On a full disk it is not raised: older copies are recognised, newer ones are not.

        Raises:
            OSError: A directory cannot be written.
            CookieError, MetadataError: As ``registered``; the directories may then be ahead of the store.
        """
        for _ in range(_ATTEMPTS):
            # Start from the last raise: if the store has moved on, the conditional write below fails. One
            # request instead of three.
            now, self._raised_to = self._raised_to, None
            if now is None:
                now = await self.registered(store)
            if now.version >= _VERSION_MAX:
                log.warning(
                    "%s has been written %d times; old copies of the disks are not recognised any more",
                    self._path,
                    now.version,
                )
                return
            try:
                await self._disk.run(self.write, attrs.evolve(now, version=now.version + 1))
            except OSError as exc:
                if exc.errno != errno.ENOSPC:
                    raise
                log.warning("the disk is full: %s is not raised", INCARNATION)
                return
            try:
                stat = await store.put(self._path, self._data, expected=now.version)
            except BadVersionError:
                # Either the reply to an earlier attempt was lost, or an operator wrote the node. In both
                # cases this process has all that it acknowledged, so it may take the next number.
                continue
            except NoNodeError:
                continue  # ``registered`` raises the better error
            if stat.created_ms != now.created_ms:
                continue  # the node was deleted and created again, and had reached the same version
            self._raised_to = IncarnationNumber(stat.created_ms, stat.version)
            return
        raise CookieError(
            f"node {self._path} changes at each attempt to raise it: is another bookie with this id running?"
        )

    def write(self, number: IncarnationNumber) -> None:
        """Write the number to every directory, durably on return. Blocks."""
        for directory in self._directories:
            self._disk.replace_file(directory / INCARNATION, encode_incarnation(number))

    async def keep_raising(
        self, store: Callable[[], MetadataStore], progress: Callable[[], object], interval_s: float
    ) -> None:
        """Raise it every ``interval_s`` while something is written; never returns.

        Args:
            progress: Returns a value that changes with each write.
        """
        last, said = progress(), ""
        while True:
            await trio.sleep(interval_s)
            now = progress()
            if now == last:
                continue
            try:
                await self.raise_number(store())
            except (MetadataError, CookieError, OSError) as exc:
                if str(exc) != said:  # once, also if the metadata store is out of reach for hours
                    said = str(exc)
                    log.warning(
                        "a copy of the disks made from now on would not be recognised as old: %s", exc
                    )
            except Exception as exc:
                report_contained("raising the incarnation", exc)
            else:
                last, said = now, ""
