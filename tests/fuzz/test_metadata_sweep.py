"""The sweep over damaged metadata takes every place in the end, and notices a store that shows less."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import metadata_sweep
from tests.fuzz.metadata_sweep import FILES, Damage, main, make_killed, sweep, turn_of


@pytest.mark.slow
def test_the_turns_of_a_run_take_each_place_before_one_comes_again(tmp_path: Path) -> None:
    killed = make_killed(tmp_path)
    for name in FILES:
        damages = killed.damages(name)
        assert {one.at for one in damages if one.kind == "flip"} == set(
            range((killed.directory / name).stat().st_size)
        )
    turns = [turn_of(damages, 7 + number, 1000) for number in range(len(damages) // 1000)]
    taken = [damage for turn in turns for damage in turn]
    assert len(set(taken)) == len(taken) == len(damages) // 1000 * 1000
    assert turn_of(damages, 7, 1000) == turns[0]


@pytest.mark.slow
def test_a_store_that_shows_less_is_reported_with_a_command_that_does_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep(3, 100) == []
    monkeypatch.setattr(metadata_sweep, "opened", lambda _directory: {})
    report = sweep(3, 20)[0]
    assert "shows other nodes" in report or "the repair lost nodes" in report
    again = report.rpartition("metadata_sweep ")[2].split()
    assert main(again) == 1
    assert again[1] in capsys.readouterr().out


def test_a_damage_changes_one_place() -> None:
    data = bytes(range(256)) * 32
    assert Damage("f", "cut", 4096).apply(data) == data[:4096]
    assert Damage("f", "zero", 4096).apply(data) == data[:4096] + bytes(4096)
    flipped = Damage("f", "flip", 5).apply(data)
    assert [at for at in range(len(data)) if data[at] != flipped[at]] == [5]
