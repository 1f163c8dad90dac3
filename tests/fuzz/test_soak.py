"""``make soak`` finds the sweeps, runs them from one seed, and says what failed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.fuzz import soak
from tests.fuzz.soak import main, parts, sweep_modules


def test_every_module_with_a_sweep_is_found() -> None:
    assert {"tests.fuzz.frame_sweep", "tests.fuzz.file_sweep"} <= set(sweep_modules())
    assert {"fuzz", "simulation", "simulation --streams", "simulation --healing"} <= set(parts())


def test_turns_have_seeds_of_their_own_and_a_failure_does_not_end_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[tuple[str, int, int]] = []

    def good(seed: int, count: int) -> Sequence[str]:
        seen.append(("good", seed, count))
        return []

    def bad(seed: int, count: int) -> Sequence[str]:
        if seed == 8:
            raise ValueError("of the sweep itself")
        return ["FAILED bad: replay it"]

    monkeypatch.setattr(soak, "parts", lambda: {"bad": bad, "good": good})
    assert main(["--seed", "7", "--turns", "2", "--count", "30"]) == 1
    output = capsys.readouterr().out
    assert seen == [("good", 7, 30), ("good", 8, 30)]
    assert "FAILED bad: replay it" in output
    assert "bad raised, with seed 8 and count 30" in output
    assert "2 turns of 2 parts from seed 7; 2 failures" in output
    assert main(["--seed", "7", "--turns", "1", "--part", "good"]) == 0


def test_a_run_without_a_seed_says_which_it_took(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(soak, "parts", lambda: {"good": lambda seed, count: []})
    assert main(["--turns", "1"]) == 0
    assert "the same again: make soak ARGS='--seed " in capsys.readouterr().out
    assert main(["--part", "nothing"]) == 2
    assert main(["--list"]) == 0
