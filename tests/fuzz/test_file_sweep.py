"""The sweep of the files of a bookie and of a namespace: a sample from a fixed seed.

All cases: ``python -m tests.fuzz.file_sweep --count 3000``.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from bookie.errors import DirectoryError
from tests.fuzz.file_sweep import KINDS, Case, chosen, judge, replace, run

SEED = 27
CASES = 60
EVERY = [Case(number, "w", f"f{number % 7}", KINDS[number % 16], number % 2 == 0) for number in range(7 * 16)]


@pytest.mark.slow
def test_a_bad_file_is_refused_by_an_error_of_ours_that_names_it_or_harms_nothing() -> None:
    reports, _ = run(SEED, CASES)
    assert not reports, "\n".join(reports)


def test_there_are_sixteen_kinds_and_each_changes_the_file(tmp_path: Path) -> None:
    assert len(KINDS) == 16
    for kind in KINDS:
        path = tmp_path / kind.replace(" ", "-").replace("^", "")
        path.write_bytes(b"1234567890" * 5)
        replace(path, kind, random.Random(1))
        assert not path.is_file() or path.read_bytes() != b"1234567890" * 5


def test_the_cases_of_a_seed_are_the_same_again_and_visit_each_file_first() -> None:
    assert chosen(EVERY, 1, 20) == chosen(EVERY, 1, 20) != chosen(EVERY, 2, 20)
    assert len({case.file for case in chosen(EVERY, 1, 7)}) == 7
    assert sorted(case.number for case in chosen(EVERY, 1, 999)) == list(range(len(EVERY)))


def test_only_an_error_of_ours_that_names_the_file_or_its_directory_passes() -> None:
    path = Path("/d/current/lastId")
    assert judge(DirectoryError("/d/current/lastId: it is empty"), path) is None
    assert "names neither" in str(judge(DirectoryError("a file is empty"), path))
    assert "another error" in str(judge(ExceptionGroup("g", [IndexError("lastId")]), path))
