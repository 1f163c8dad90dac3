"""Programs that end at random moments, of one seed; ``make soak`` takes others."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.edge import random_endings
from tests.edge.random_endings import ENDINGS, FRAMES_OF_A_CASE, Output, programs, run_case, sweep
from tests.effort import IS_SAMPLE

SEED = 30
CASES = 1 if IS_SAMPLE else 3


def test_what_programs_acknowledged_is_there_at_whatever_moments_they_end() -> None:
    assert sweep(SEED, CASES * FRAMES_OF_A_CASE) == []


def test_a_seed_gives_the_same_programs_again_and_many_give_each_ending_of_each_face() -> None:
    def drawn(seed: int) -> list[random_endings.Program]:
        return list(programs(random.Random(seed)))

    assert drawn(1) == drawn(1) != drawn(2)
    found = {(program.face, program.ending) for seed in range(200) for program in drawn(seed)}
    assert found == {(face, ending) for face, endings in ENDINGS.items() for ending in endings}


@pytest.mark.parametrize(
    ("program", "reader", "is_well"),
    [
        (Output("acknowledged 5\n", "", 0), Output("found 5\n", "", 0), True),
        (Output("acknowledged 5\n", "", -9), Output("found 7\n", "", 0), True),
        (Output("acknowledged 4\nacknowledged 5\n", "", 0), Output("found 4\n", "", 0), False),
        (Output("acknowledged 5\n", "", 0), Output("", "the namespace does not open", 1), False),
        (Output("acknowledged 5\n", "Timeout (0:02:00)!", 1), Output("found 5\n", "", 0), False),
        (Output("", "trio.TrioInternalError: x", 1), Output("found 0\n", "", 0), False),
    ],
)
def test_a_lost_record_a_hang_and_a_broken_loop_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Output, reader: Output, is_well: bool
) -> None:
    outputs = iter([program, reader, *[Output("", "", 0), reader] * 9])
    monkeypatch.setattr(random_endings, "forked", lambda *_: next(outputs))
    assert (run_case(1, tmp_path) == []) is is_well
