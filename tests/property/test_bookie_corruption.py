"""One flipped bit, one truncation, one zeroed block in each field of each file type of a bookie's store.

A run takes ``DLOG_CORRUPTION`` of some thousand cases, chosen by a seed that it prints; ``all`` takes all of
them, ``bits`` flips every bit. What comes of them stands in docs/storage-damage.md: run this file as a
program to print its table anew.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from damage import Damage, damages_of
from damaged_store import STATES, Truth, Verdict, config_below, fields_of, judge, make_store

from bookie.index_kinds import IndexKind

MODE = os.environ.get("DLOG_CORRUPTION", "100")
DOCUMENT = Path(__file__).parents[2] / "docs/storage-damage.md"
# Its files are RocksDB's own: which bytes mean what changes from run to run, and so does what comes of it.
DATABASE = {"harmless", "start refused", "I/O error for the entry"}

Seen = dict[tuple[str, str], set[str]]  # type of file, field -> what came of it


@attrs.frozen
class Matrix:
    """One store, and copies of it to be hurt."""

    kind: IndexKind
    work: Path  # where the store always lies: its cookies name the place
    kept: Path
    truth: Truth

    def verdict(self, which: str, damage: Damage | None) -> Verdict:
        """What comes of one damage."""
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.kept / which, self.work)
        damaged = self.work
        if damage is not None:
            damage.apply(self.work)
            damaged /= damage.field.file
        return judge(config_below(self.work, self.kind), self.truth, which, damaged)

    def damages(self) -> Iterator[tuple[str, Damage]]:
        """All of them: the state of the store, and what happens to it."""
        for which in STATES:
            for field in fields_of(self.kept / which, pieces=6):
                for damage in damages_of(field, every_bit=MODE == "bits"):
                    yield which, damage


def make_matrix(directory: Path, kind: IndexKind) -> Matrix:
    work, kept = directory / "store", directory / "kept"
    kept.mkdir()
    return Matrix(kind, work, kept, make_store(work, kept, kind))


def some_of(damages: list[tuple[str, Damage]], count: int, rng: random.Random) -> list[tuple[str, Damage]]:
    """Fields in turn, and of each a way and a place by chance: a rare field is hurt as often as others."""
    groups: defaultdict[tuple[str, str], list[tuple[str, Damage]]] = defaultdict(list)
    for which, damage in damages:
        groups[damage.field.kind, damage.field.name].append((which, damage))
    names = rng.sample(list(groups), len(groups))
    return [rng.choice(groups[names[number % len(names)]]) for number in range(count)]


def run(matrix: Matrix, damages: list[tuple[str, Damage]], seen: Seen) -> list[str]:
    """What must never be, and was; ``seen`` gets what came of each damage."""
    wrongs = []
    for which, damage in damages:
        verdict = matrix.verdict(which, damage)
        key = damage.field.kind, damage.field.name
        seen.setdefault(key, set()).update(verdict.outcomes or {"harmless"})
        wrongs += [f"{which} {damage}: {wrong}" for wrong in verdict.wrongs[:2]]
    return wrongs


@pytest.fixture(scope="module", params=IndexKind, ids=lambda kind: kind.value)
def matrix(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Matrix:
    return make_matrix(tmp_path_factory.mktemp("matrix"), request.param)


@pytest.mark.parametrize("which", STATES)
def test_a_store_that_nobody_hurt_gives_everything_back(matrix: Matrix, which: str) -> None:
    verdict = matrix.verdict(which, None)
    assert verdict.wrongs == []
    assert verdict.outcomes == set()


def test_damage_anywhere_is_found_or_does_no_harm_and_the_document_says_what_comes_of_it(
    matrix: Matrix,
) -> None:
    damages = list(matrix.damages())
    if matrix.kind is IndexKind.PAGES:  # all else is as with the other index
        damages = [one for one in damages if one[1].field.kind.startswith("index")]
    if MODE.isdecimal():
        seed = random.randrange(1 << 32)
        print(f"seed {seed}")
        count = int(MODE) if matrix.kind is IndexKind.CHUNKS else int(MODE) // 3
        damages = some_of(damages, count, random.Random(seed))
    seen: Seen = {}
    wrongs = run(matrix, damages, seen)
    print(f"{len(damages)} cases, {len(wrongs)} wrong")
    assert wrongs == []
    told = documented()
    for (kind, field), outcomes in seen.items():
        assert (kind, field) in told, f"{kind}, {field}: not documented"
        allowed = DATABASE if is_database(kind) else told[kind, field]
        assert outcomes <= allowed, f"{kind}, {field}: {outcomes - allowed} is not documented"


def is_database(kind: str) -> bool:
    return kind.startswith("index") and not kind.endswith(".idx file")


# --- the document ---------------------------------------------------------------------------------


def documented() -> Seen:
    """The table of the document."""
    found: Seen = {}
    for line in DOCUMENT.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3:
            found[cells[0], cells[1]] = set(cells[2].split("; "))
    return found


def table(seen: Seen) -> str:
    """The same, from what was seen."""
    lines = ["| file | field | what comes of damage to it |", "|---|---|---|"]
    lines += [
        f"| {kind} | {field} | {'; '.join(sorted(outcomes))} |" for (kind, field), outcomes in seen.items()
    ]
    return "\n".join(lines)


def main() -> None:
    """Run everything and print the table; wrongs go to the end."""
    seen: Seen = {}
    wrongs: list[str] = []
    for kind in IndexKind:
        with tempfile.TemporaryDirectory() as directory:
            matrix = make_matrix(Path(directory), kind)
            damages = list(matrix.damages())
            if kind is IndexKind.PAGES:
                damages = [one for one in damages if one[1].field.kind.startswith("index")]
            wrongs += run(matrix, damages, seen)
            print(f"{kind.value}: {len(damages)} cases")
    for key in list(seen):
        if is_database(key[0]):
            seen[key] |= DATABASE
    print(table(seen))
    print("\n".join(wrongs) or "nothing wrong")


if __name__ == "__main__":
    main()
