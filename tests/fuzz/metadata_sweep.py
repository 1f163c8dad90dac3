"""Damage to each place of a directory's metadata: each byte flipped, each 4 KiB zeroed, a cut at each 4 KiB.

Inside: the files that a killed process left, the places, checking one damage, the sweep.
Not inside: damage to a bookie's files (``tests.property.test_bookie_corruption``).
Always: metadata that were damaged show every node or are refused, and a repair of those shows every node; the
turns of a run take one place after the other, in an order of their own, until all were taken.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import attrs
import trio

from ledger.metadata_store.errors import MetadataError
from ledger.metadata_store.sqlite_store.reader import open_sqlite_reader
from ledger.metadata_store.sqlite_store.repair import repair_store
from ledger.metadata_store.sqlite_store.tree import SqliteTree

NAME = "metadata.sqlite"
FILES = (NAME, f"{NAME}-wal", "metadata.copy")
BLOCK_BYTES = 4096
READERS_SHARE = 6  # one damage of six is shown to a reader, too
_SHARE = 20  # frames of a sweep for one damage
_ORDER = 27  # of the places, the same in each turn


@attrs.frozen
class Damage:
    """A change of one file."""

    name: str
    kind: str
    at: int

    def apply(self, data: bytes) -> bytes:
        match self.kind:
            case "flip":
                return data[: self.at] + bytes([data[self.at] ^ 0x10]) + data[self.at + 1 :]
            case "zero":
                return (data[: self.at] + bytes(BLOCK_BYTES) + data[self.at + BLOCK_BYTES :])[: len(data)]
        return data[: self.at]


@attrs.frozen
class Killed:
    """What a killed process left, with changes in the database and in the WAL."""

    directory: Path
    nodes: dict[str, bytes]

    def damages(self, name: str) -> list[Damage]:
        """Every damage of a file."""
        size_bytes = (self.directory / name).stat().st_size
        blocks = range(0, size_bytes, BLOCK_BYTES)
        return [
            *(Damage(name, "flip", at) for at in range(size_bytes)),
            *(Damage(name, kind, at) for kind in ("zero", "cut") for at in blocks),
        ]

    def apply(self, damage: Damage, to: Path) -> Path:
        """Make a damaged copy."""
        here = copied(self.directory, to)
        (here / damage.name).write_bytes(damage.apply((self.directory / damage.name).read_bytes()))
        return here


def nodes_of(tree: SqliteTree) -> dict[str, bytes]:
    return {path: row[0] for path, row in tree._rows().items()}


def opened(directory: Path) -> dict[str, bytes]:
    tree = SqliteTree(directory / NAME, must_exist=True)
    try:
        return nodes_of(tree)
    finally:
        tree.close()


def copied(killed: Path, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(killed, to)
    return to


def make_killed(directory: Path) -> Killed:
    """Write a store, and keep the files that it has while it is open."""
    live, kept = directory / "live", directory / "killed"
    live.mkdir()
    kept.mkdir()
    tree = SqliteTree(live / NAME)
    for number in range(20):
        tree.create(f"/n{number}", b"value %d" % number, ephemeral=False, sequential=False, parents=False)
        if number == 10:
            tree.checkpoint()
    tree.put("/n3", b"changed", -1)
    tree.delete("/n4", -1)
    for name in FILES:
        shutil.copy(live / name, kept / name)
    nodes = nodes_of(tree)
    tree.close()
    return Killed(kept, nodes)


def check(killed: Killed, damage: Damage, work: Path) -> str:
    """``healed`` if the store opens, ``refused`` if it does after a repair; else an ``AssertionError``."""
    here = killed.apply(damage, work)
    try:
        found = opened(here)
    except (MetadataError, sqlite3.Error):
        assert damage.name != "metadata.copy", f"{damage}: the copy alone is never needed"
        repair_store(here / NAME)
        assert opened(here) == killed.nodes, f"{damage}: the repair lost nodes"
        return "refused"
    assert found == killed.nodes, f"{damage}: it shows other nodes"
    return "healed"


async def check_reader(killed: Killed, damage: Damage, work: Path) -> None:
    """A reader sees every node, or is refused."""
    here = killed.apply(damage, work)
    try:
        async with open_sqlite_reader(here / NAME, is_fixed=True) as reader:
            found = {path: (await reader.get(path)).value for path in reader._nodes}
    except (MetadataError, sqlite3.Error):
        return
    assert found == killed.nodes, f"{damage}: a reader sees other nodes"


def turn_of(damages: list[Damage], seed: int, count: int) -> list[Damage]:
    """The damages of one turn: those of successive seeds are all, before one comes again."""
    mixed = random.Random(_ORDER).sample(damages, len(damages))
    return [mixed[number % len(mixed)] for number in range(seed * count, (seed + 1) * count)]


@contextlib.contextmanager
def _killed() -> Iterator[tuple[Killed, Path]]:
    with tempfile.TemporaryDirectory(prefix="metadata-sweep-") as directory:
        yield make_killed(Path(directory)), Path(directory) / "here"


def sweep(seed: int, count: int) -> list[str]:
    """Try as many damages as cost about as much as ``count`` frames; a report of each that fails."""
    with _killed() as (killed, work):
        every = [damage for name in FILES for damage in killed.damages(name)]
        return _reports(killed, turn_of(every, seed, max(1, count // _SHARE)), work)


def _reports(killed: Killed, damages: list[Damage], work: Path) -> list[str]:
    reports = []
    for number, damage in enumerate(damages):
        try:
            check(killed, damage, work)
            if number % READERS_SHARE == 0:
                trio.run(check_reader, killed, damage, work)
        except Exception as exc:  # the sweep goes on to the next damage
            again = f"python -m tests.fuzz.metadata_sweep --damage {damage.name} {damage.kind} {damage.at}"
            reports.append(f"FAILED metadata_sweep: {type(exc).__name__}: {exc}\n  replay: {again}")
    return reports


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.metadata_sweep", description=__doc__)
    parser.add_argument("--damage", nargs=3, metavar=("FILE", "KIND", "AT"), help="only this one")
    options = parser.parse_args(arguments)
    with _killed() as (killed, work):
        if options.damage is None:
            damages = [damage for name in FILES for damage in killed.damages(name)]
        else:
            name, kind, at = options.damage
            damages = [Damage(name, kind, int(at))]
        reports = _reports(killed, damages, work)
    print("\n".join(reports) or f"{len(damages)} damages: each was healed, or refused and repaired")
    return 1 if reports else 0


if __name__ == "__main__":
    sys.exit(main())
