"""The matrix of faces, ways of ending and moments, by pairs; ``make soak`` runs every cell."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from tests.edge import matrix
from tests.edge.matrix import CELLS, ENDS, FRAMES_OF_A_CELL, SPECIAL, differences, sweep

Cell = tuple[str, str, str]


def pairs_of(cell: Cell) -> set[tuple[str, ...]]:
    """What meets in a cell; and the cell if it has an expectation of its own."""
    face, ending, moment = cell
    own = {cell} if cell in SPECIAL else set()
    return {("of a face", face, ending), ("at a moment", face, moment), (ending, moment), *own}


def by_pairs() -> list[Cell]:
    """Few cells in which each pair meets, the same ones each time."""
    left = set().union(*map(pairs_of, CELLS))
    chosen = []
    while left:
        best = max(CELLS, key=lambda cell: len(pairs_of(cell) & left))
        left -= pairs_of(best)
        chosen.append(best)
    return chosen


@pytest.mark.slow
@pytest.mark.parametrize("cell", by_pairs(), ids="-".join)
def test_a_program_keeps_its_records_and_says_only_what_is_meant_however_it_ends(
    tmp_path: Path, cell: Cell
) -> None:
    assert differences(tmp_path, *cell) == []


def test_each_turn_takes_other_cells_until_all_had_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[tuple[str, ...]] = []

    def note(_: Path, *cell: str) -> list[str]:
        checked.append(cell)
        return []

    monkeypatch.setattr(matrix, "differences", note)
    for seed in range(len(CELLS) // 10 + 1):
        assert sweep(seed, 10 * FRAMES_OF_A_CELL) == []
    assert checked[: len(CELLS)] == CELLS


@pytest.mark.slow
def test_what_a_cell_must_not_give_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = ("blocking", "exit", "idle")
    monkeypatch.setattr(matrix, "CELLS", [cell])
    assert sweep(0, FRAMES_OF_A_CELL) == []
    monkeypatch.setitem(ENDS, "exit", attrs.evolve(ENDS["exit"], exit_code=4))
    (report,) = sweep(0, FRAMES_OF_A_CELL)
    assert report == "python -m tests.edge.matrix blocking exit idle:\n  exit code 3, not 4"
