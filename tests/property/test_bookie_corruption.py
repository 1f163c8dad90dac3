"""One flipped bit, one truncation, one zeroed block in each field of each file type of a bookie's store.

``DLOG_CORRUPTION=all`` flips every bit of every field and cuts the database's files in many more places.
"""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from pathlib import Path

import attrs
import pytest
from damage import Damage, Field, damages_of
from damaged_store import Truth, Verdict, fields_of, judge, make_store

EVERYTHING = os.environ.get("DLOG_CORRUPTION") == "all"


@attrs.define
class Matrix:
    work: Path  # where the store always lies: its cookies name the place
    kept: Path
    truth: Truth
    seen: dict[tuple[str, str], set[str]] = attrs.field(factory=lambda: defaultdict(set))

    def restore(self, which: str) -> None:
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.kept / which, self.work)

    def verdict(self, which: str, damage: Damage) -> Verdict:
        self.restore(which)
        damage.apply(self.work)
        return judge(self.work, self.truth, which, self.work / damage.field.file)


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Matrix:
    work, kept = tmp_path_factory.mktemp("matrix") / "store", tmp_path_factory.mktemp("kept")
    return Matrix(work, kept, make_store(work, kept))


@pytest.mark.parametrize("which", ["killed", "stopped"])
def test_a_store_that_nobody_hurt_gives_everything_back(matrix: Matrix, which: str) -> None:
    matrix.restore(which)
    verdict = judge(matrix.work, matrix.truth, which, matrix.work)
    assert verdict.wrongs == []
    assert verdict.outcomes == set()


def _run(matrix: Matrix, which: str, fields: list[Field]) -> None:
    wrongs = []
    count = 0
    for field in fields:
        for damage in damages_of(field, every_bit=EVERYTHING):
            verdict = matrix.verdict(which, damage)
            count += 1
            matrix.seen[field.kind, field.name].add(f"{damage.way}: {verdict}")
            wrongs += [f"{which} {damage}: {wrong}" for wrong in verdict.wrongs[:2]]
    print(f"{count} cases, {len(wrongs)} wrong")
    assert wrongs == []


@pytest.mark.parametrize("kind", ["journal", "log", "lastMark", "index", "other"])
@pytest.mark.parametrize("which", ["killed", "stopped"])
def test_damage_is_found_or_does_no_harm(matrix: Matrix, which: str, kind: str) -> None:
    fields = [field for field in fields_of(matrix.kept / which, pieces=6) if _kind(field) == kind]
    _run(matrix, which, fields)


def _kind(field: Field) -> str:
    if field.kind.startswith("index"):
        return "index"
    if field.kind.endswith("entry log"):
        return "log"
    return field.kind if field.kind in ("journal", "lastMark") else "other"
