"""Looking up the locations of bookies: in a script, a table, their announcements, or the program's settings.

Inside: running the script, reading the table and the announcements. Not inside: the meaning of a location
(``topology``), the times of look-ups (``placer``).
Always: the result lacks each bookie whose location is unknown; a source that cannot be used raises an error.
A bookie is looked up by its id first, then by the host it listens at.

Source: ScriptBasedMapping.java, TableMapping.java (Hadoop); docs/protocol.md 11.2.
"""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

import trio

from ledger.errors import BookieError, LocationError
from ledger.placement.config import (
    AnnouncedLocations,
    FixedLocations,
    LocationSource,
    ScriptLocations,
    TableLocations,
)
from ledger.placement.membership import Membership
from ledger.placement.topology import parse_location


class Locator(Protocol):
    """A source of locations."""

    async def locate(self, bookies: Collection[str]) -> dict[str, str]:
        """The locations of these bookies, as far as the source knows them.

        Raises:
            LocationError: The source cannot be used now.
        """


def make_locator(source: LocationSource, membership: Membership) -> Locator:
    """A locator for this source."""
    match source:
        case ScriptLocations():
            return _Script(source, membership)
        case TableLocations():
            return _TableFile(source, membership)
        case AnnouncedLocations():
            return _Announced(membership)
        case FixedLocations():
            return _Fixed(source.locations, membership)


def parse_table(text: str, source: str) -> dict[str, str]:
    """Parse a table: on each line a bookie's id or host, and its location.

    Raises:
        LocationError: A line does not parse; the message has its number.
    """
    table: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2:
            raise LocationError(
                f"{source}, line {number}: {len(words)} words; expected a host and its location"
            )
        try:
            table[words[0]] = parse_location(words[1])
        except LocationError as exc:
            raise LocationError(f"{source}, line {number}: {exc}") from None
    return table


def parse_script_output(output: bytes, hosts: Collection[str], source: str) -> list[str]:
    """Parse the output of a script: one location for each host, in their order.

    Raises:
        LocationError: The number of words differs from the number of hosts, or a word is no location.
    """
    words = output.decode("utf-8", "replace").split()
    if len(words) != len(hosts):
        raise LocationError(f"{source} printed {len(words)} words for {len(hosts)} hosts: {words[:10]}")
    try:
        return [parse_location(word) for word in words]
    except LocationError as exc:
        raise LocationError(f"{source}: {exc}") from None


class _Script:
    def __init__(self, source: ScriptLocations, membership: Membership) -> None:
        self._source, self._membership = source, membership

    async def locate(self, bookies: Collection[str]) -> dict[str, str]:
        hosts = {bookie: await _host_of(bookie, self._membership) for bookie in bookies}
        unique = sorted(set(hosts.values()))
        found: dict[str, str] = {}
        for first in range(0, len(unique), self._source.arguments_max):
            arguments = unique[first : first + self._source.arguments_max]
            output = await self._run_script(arguments)
            found.update(zip(arguments, parse_script_output(output, arguments, self._name), strict=True))
        return {bookie: found[host] for bookie, host in hosts.items()}

    @property
    def _name(self) -> str:
        return f"topology script {self._source.path}"

    async def _run_script(self, hosts: Iterable[str]) -> bytes:
        try:
            with trio.fail_after(self._source.timeout_s):
                done = await trio.run_process([self._source.path, *hosts], capture_stdout=True)
        except (OSError, subprocess.CalledProcessError) as exc:
            raise LocationError(f"{self._name} failed: {exc}") from None
        except trio.TooSlowError as exc:
            raise LocationError(f"{self._name} took longer than {self._source.timeout_s:g} s") from exc
        output: bytes = done.stdout
        return output


class _Fixed:
    def __init__(self, table: Mapping[str, str], membership: Membership) -> None:
        self._table = {name: parse_location(location) for name, location in table.items()}
        self._membership = membership

    async def locate(self, bookies: Collection[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for bookie in bookies:
            location = self._table.get(bookie)
            if location is None:
                location = self._table.get(await _host_of(bookie, self._membership))
            if location is not None:
                found[bookie] = location
        return found


class _TableFile:
    def __init__(self, source: TableLocations, membership: Membership) -> None:
        self._path, self._membership = trio.Path(source.path), membership
        self._read_at: tuple[int, int] | None = None  # time of the last change, size
        self._table = _Fixed({}, membership)

    async def locate(self, bookies: Collection[str]) -> dict[str, str]:
        try:
            stat = await self._path.stat()
            if (stat.st_mtime_ns, stat.st_size) != self._read_at:
                text = await self._path.read_text("utf-8")
                self._table = _Fixed(parse_table(text, f"table {self._path}"), self._membership)
                self._read_at = stat.st_mtime_ns, stat.st_size
        except (OSError, UnicodeDecodeError) as exc:
            raise LocationError(f"table {self._path} cannot be read: {exc}") from None
        return await self._table.locate(bookies)


class _Announced:
    def __init__(self, membership: Membership) -> None:
        self._membership = membership

    async def locate(self, bookies: Collection[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for bookie in bookies:
            try:
                location = (await self._membership.service_info(bookie)).network_location
                if location is not None:
                    found[bookie] = parse_location(location)
            except (BookieError, LocationError):
                pass  # it announces no usable location
        return found


async def _host_of(bookie: str, membership: Membership) -> str:
    try:
        return (await membership.resolve(bookie)).host
    except BookieError:
        return bookie
