"""A number that grows on the disks and in the metadata store together, so that an old copy is recognised.

A disk put back from a backup, or a machine from a snapshot, has a fitting cookie, a sound journal, and lacks
what was acknowledged since. Nothing on it can tell. So the number lies in two places:

- ``INCARNATION`` in each directory: when the cookie's node was created, and a version of that node;
- the node's own version in the metadata store, which grows when the same bytes are written again. No program
  of Apache's looks at it, but to write or delete exactly the cookie it has read.

It is raised in this order: version + 1 is written to every directory, durably; then the node is written over
the version it had. So a bookie that stopped anywhere finds the node's version in each directory, or the one
before it. A greater one in the store: the disks are older than the last raise. Any other difference (a cookie
created anew by hand, a metadata store put back) leaves the same doubt.

Raised at each start before anything is served, and while serving whenever something was written since, each
``raise_interval_s``. What this cannot see: a copy taken after the last raise that came through. A bookie put
back to such a copy has lost what it acknowledged in that interval, and does not know it.

Inside: the number, the comparison, the raise. Not inside: what follows from doubt (``admission``).
Always: the directories are ahead of the store, never behind; an error while serving is told and tried again.

Source: our own; lessons 1.1 row 2 and 2.4 (an old version restored), apache/bookkeeper#2612.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import trio

from bookie.errors import CookieError
from namespace.errors import BadVersionError, NamespaceError, NoNodeError
from namespace.store import MetadataStore

if TYPE_CHECKING:
    from bookie.disk import Disk

INCARNATION = "INCARNATION"
_ATTEMPTS = 5
_VERSION_MAX = 2**31 - 1  # ZooKeeper's; afterwards it turns negative, and a comparison means nothing

log = logging.getLogger(__name__)


@attrs.frozen
class Number:
    """One cookie's node, and how often it had been written."""

    created_ms: int
    version: int

    def __str__(self) -> str:
        return f"version {self.version} of the cookie created at {self.created_ms} ms"


def encode_number(number: Number) -> bytes:
    """The content of ``INCARNATION``."""
    return f"{number.created_ms} {number.version}\n".encode()


def decode_number(data: bytes) -> Number | None:
    """The number; None if the bytes are none."""
    words = data.split()
    if len(words) != 2 or not data.endswith(b"\n") or not all(len(w) < 20 and w.isdigit() for w in words):
        return None
    return Number(int(words[0]), int(words[1]))


def doubt_of(found: Mapping[str, Number | None], registered: Number) -> str | None:
    """Why a bookie with these directories may lack something; None if they are as it left them.

    Args:
        found: The number of each directory that has a cookie of its own.
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
    """The number of one running bookie."""

    def __init__(self, disk: Disk, directories: Sequence[Path], path: str, data: bytes) -> None:
        """Args:
        path: Of the cookie's node.
        data: Its bytes, written again with each raise.
        """
        self._disk, self._directories = disk, directories
        self._path, self._data = path, data
        self._raised_to: Number | None = None  # what the store said when it was last raised

    def read(self) -> dict[str, Number | None]:
        """What the directories have. Blocks."""
        found = {}
        for directory in self._directories:
            try:
                found[str(directory)] = decode_number(self._disk.read_file(directory / INCARNATION))
            except FileNotFoundError:
                found[str(directory)] = None
        return found

    async def registered(self, store: MetadataStore) -> Number:
        """The number in the metadata store.

        Raises:
            CookieError: The cookie is gone.
            NamespaceError: It could not be asked.
        """
        await store.sync(self._path)
        try:
            stat = (await store.get(self._path)).stat
        except NoNodeError as exc:
            raise CookieError(
                f"node {self._path} is gone: the bookie was decommissioned, or the cluster formatted"
            ) from exc
        return Number(stat.created_ms, stat.version)

    async def raise_number(self, store: MetadataStore) -> None:
        """Raise it in the directories, then in the store. If cancelled, perhaps in the directories alone.

        On a full disk it stays as it is: older copies are recognised, newer ones are not.

        Raises:
            OSError: A directory cannot be written.
            CookieError, NamespaceError: As ``registered``; the directories are ahead then, which is fine.
        """
        for _ in range(_ATTEMPTS):
            # What it was raised to last is what it is, or the store will say: one request instead of three.
            now, self._raised_to = self._raised_to, None
            if now is None:
                now = await self.registered(store)
            if now.version >= _VERSION_MAX:
                log.warning(
                    "%s has been written %d times; old copies are not told any more", self._path, now.version
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
                # An attempt of ours whose answer was lost, or an operator: either way this process has all
                # it acknowledged, so the next number is its own.
                continue
            except NoNodeError:
                continue  # ``registered`` says it better
            if stat.created_ms != now.created_ms:
                continue  # a node that was created anew, with the version that the old one had
            self._raised_to = Number(stat.created_ms, stat.version)
            return
        raise CookieError(
            f"node {self._path} is being written all the time: is another bookie of this name running?"
        )

    def write(self, number: Number) -> None:
        """Put it into every directory, durably on return. Blocks."""
        for directory in self._directories:
            self._disk.replace_file(directory / INCARNATION, encode_number(number))

    async def keep(
        self, store: Callable[[], MetadataStore], progress: Callable[[], object], interval_s: float
    ) -> None:
        """Raise it every ``interval_s`` while something is written; never returns.

        Args:
            progress: Differs from what it was when something was written since.
        """
        last = progress()
        while True:
            await trio.sleep(interval_s)
            now = progress()
            if now == last:
                continue
            try:
                await self.raise_number(store())
            except (NamespaceError, CookieError, OSError) as exc:
                log.warning("an old copy of the disks taken from now on would not be recognised: %s", exc)
            else:
                last = now
