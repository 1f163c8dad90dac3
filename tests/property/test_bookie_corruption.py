"""One flipped bit, one truncation, one zeroed block in each field of each file type of a bookie's store.

A test run takes ``DLOG_CORRUPTION`` of some thousand cases, chosen by a seed that it prints. ``all`` takes
all cases, ``bits`` flips every bit. docs/storage-damage.md has the table of outcomes; run this file as a
program to print the table.
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

from bookie.index.index_factory import IndexKind
from tests.effort import examples
from tests.fakes.damage import Damage, damages_of
from tests.fakes.damaged_store import (
    STATES,
    AcknowledgedState,
    CheckReport,
    check_store,
    config_below,
    fields_of,
    make_store,
)
from tests.places import ROOT

MODE = os.environ.get("DLOG_CORRUPTION", str(examples()))
DOCUMENT = ROOT / "docs/storage-damage.md"
# RocksDB's files: the meaning of their bytes differs from one execution to the next, and so do the outcomes.
DATABASE = {"harmless", "start refused", "I/O error for the entry"}

Seen = dict[tuple[str, str], set[str]]  # (type of file, field) -> outcomes


@attrs.frozen
class Matrix:
    """One store, and copies of its states to be damaged."""

    kind: IndexKind
    work: Path  # the path of the store in each case: its cookies contain the path
    kept: Path
    acknowledged: AcknowledgedState

    def check(self, which: str, damage: Damage | None) -> CheckReport:
        """Apply one damage and check the store."""
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.kept / which, self.work)
        damaged = self.work
        if damage is not None:
            damage.apply(self.work)
            damaged /= damage.field.file
        return check_store(config_below(self.work, self.kind), self.acknowledged, which, damaged)

    def damages(self) -> Iterator[tuple[str, Damage]]:
        """All cases: a state of the store, and a damage."""
        for which in STATES:
            for field in fields_of(self.kept / which, pieces=6):
                for damage in damages_of(field, every_bit=MODE == "bits"):
                    yield which, damage


def make_matrix(directory: Path, kind: IndexKind) -> Matrix:
    work, kept = directory / "store", directory / "kept"
    kept.mkdir()
    return Matrix(kind, work, kept, make_store(work, kept, kind))


def some_of(damages: list[tuple[str, Damage]], count: int, rng: random.Random) -> list[tuple[str, Damage]]:
    """Each field in turn with a random kind of damage, so that rare fields are damaged as often as others."""
    groups: defaultdict[tuple[str, str], list[tuple[str, Damage]]] = defaultdict(list)
    for which, damage in damages:
        groups[damage.field.kind, damage.field.name].append((which, damage))
    names = rng.sample(list(groups), len(groups))
    return [rng.choice(groups[names[number % len(names)]]) for number in range(count)]


def check_all(matrix: Matrix, damages: list[tuple[str, Damage]], seen: Seen) -> list[str]:
    """Check all cases; return the violations. ``seen`` gets the outcomes."""
    violations = []
    for which, damage in damages:
        report = matrix.check(which, damage)
        key = damage.field.kind, damage.field.name
        seen.setdefault(key, set()).update(report.outcomes or {"harmless"})
        violations += [f"{which} {damage}: {violation}" for violation in report.violations[:2]]
    return violations


@pytest.fixture(scope="module", params=IndexKind, ids=lambda kind: kind.value)
def matrix(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Matrix:
    return make_matrix(tmp_path_factory.mktemp("matrix"), request.param)


@pytest.mark.slow
@pytest.mark.parametrize("which", STATES)
def test_an_undamaged_store_returns_all_entries(matrix: Matrix, which: str) -> None:
    report = matrix.check(which, None)
    assert report.violations == []
    assert report.outcomes == set()


@pytest.mark.slow
def test_damage_is_detected_or_has_no_effect_and_each_outcome_is_documented(
    matrix: Matrix,
) -> None:
    damages = list(matrix.damages())
    if matrix.kind is IndexKind.PAGES:  # other files do not depend on the index
        damages = [one for one in damages if one[1].field.kind.startswith("index")]
    if MODE.isdecimal():
        seed = random.randrange(1 << 32)
        print(f"seed {seed}")
        count = int(MODE) if matrix.kind is IndexKind.CHUNKS else int(MODE) // 3
        damages = some_of(damages, count, random.Random(seed))
    seen: Seen = {}
    violations = check_all(matrix, damages, seen)
    print(f"{len(damages)} cases, {len(violations)} violations")
    assert violations == []
    table_rows = documented()
    for (kind, field), outcomes in seen.items():
        assert (kind, field) in table_rows, f"{kind}, {field}: not documented"
        allowed = DATABASE if is_database(kind) else table_rows[kind, field]
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
    """The table, from the outcomes of this execution."""
    lines = ["| file | field | outcome of damage |", "|---|---|---|"]
    lines += [
        f"| {kind} | {field} | {'; '.join(sorted(outcomes))} |" for (kind, field), outcomes in seen.items()
    ]
    return "\n".join(lines)


def main() -> None:
    """Check all cases, and print the table, then the violations."""
    seen: Seen = {}
    violations: list[str] = []
    for kind in IndexKind:
        with tempfile.TemporaryDirectory() as directory:
            matrix = make_matrix(Path(directory), kind)
            damages = list(matrix.damages())
            if kind is IndexKind.PAGES:
                damages = [one for one in damages if one[1].field.kind.startswith("index")]
            violations += check_all(matrix, damages, seen)
            print(f"{kind.value}: {len(damages)} cases")
    for key in list(seen):
        if is_database(key[0]):
            seen[key] |= DATABASE
    print(table(seen))
    print("\n".join(violations) or "no violations")


if __name__ == "__main__":
    main()
