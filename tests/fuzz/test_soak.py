"""``make soak`` finds the sweeps, runs them from one seed, and says what failed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.fuzz import soak
from tests.fuzz.soak import main, parts, sweep_modules


@pytest.mark.slow
def test_every_module_with_a_sweep_is_found() -> None:
    ours = ("frame_sweep", "process_sweep", "file_sweep", "metadata_sweep")
    assert {f"tests.fuzz.{name}" for name in ours} <= set(sweep_modules())
    assert {"fuzz", "simulation", "simulation --streams", "simulation --healing"} <= set(parts())


def test_turns_have_seeds_of_their_own_and_a_failure_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = ["--progress", str(tmp_path / "soak.json")]
    seen: list[tuple[str, int, int]] = []

    def good(seed: int, count: int) -> Sequence[str]:
        seen.append(("good", seed, count))
        return []

    def bad(seed: int, count: int) -> Sequence[str]:
        if seed == 8:
            raise ValueError("of the sweep itself")
        print("what it has seen")
        return ["FAILED bad: replay it"]

    monkeypatch.setattr(soak, "parts", lambda: {"bad": bad, "good": good})
    assert main([*progress, "--seed", "7", "--turns", "2", "--count", "30"]) == 1
    output = capsys.readouterr().out
    assert seen == [("good", 7, 30), ("good", 8, 30)]
    assert "FAILED bad: replay it" in output
    assert "bad raised, with seed 8 and count 30" in output
    assert "what it has seen" in output  # a part that passes prints nothing
    assert "4 turns of parts; 2 failures" in output
    assert output.count("FAILED bad: replay it") == 2  # at once, and in the report at the end
    assert main([*progress, "--seed", "7", "--turns", "1", "--part", "good"]) == 0


def test_an_interrupted_run_continues_after_its_last_part_and_reports_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = ["--progress", str(tmp_path / "soak.json"), "--turns", "2"]
    seen: list[tuple[str, int]] = []

    def part(name: str) -> soak.Part:
        def run(seed: int, count: int) -> Sequence[str]:
            if len(seen) == 2:
                seen.append(("interrupted", seed))
                raise KeyboardInterrupt
            seen.append((name, seed))
            return [f"FAILED {name}"] if len(seen) == 1 else []

        return run

    monkeypatch.setattr(soak, "parts", lambda: {name: part(name) for name in ("a", "b", "c")})
    assert main([*progress, "--resume"]) == 2  # there is none yet
    assert main([*progress, "--seed", "5"]) == 1
    assert "--resume continues" in capsys.readouterr().err
    assert main([*progress, "--resume"]) == 1
    assert seen == [("a", 5), ("b", 5), ("interrupted", 5), ("c", 5), ("a", 6), ("b", 6), ("c", 6)]
    output = capsys.readouterr().out
    assert "6 turns of parts; 1 failures" in output
    assert "FAILED a" in output
    assert main([*progress, "--resume"]) == 1  # all is done: the report only
    assert len(seen) == 7


def test_a_resumed_run_has_its_options_and_the_time_that_was_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "soak.json"
    seen: list[tuple[str, int, int]] = []
    now_s = 0.0

    def part(name: str) -> soak.Part:
        def run(seed: int, count: int) -> Sequence[str]:
            nonlocal now_s
            seen.append((name, seed, count))
            if len(seen) == 3:
                raise KeyboardInterrupt
            now_s += 40
            return []

        return run

    monkeypatch.setattr(soak, "parts", lambda: {name: part(name) for name in ("a", "b", "c")})
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    options = ["--seed", "5", "--count", "30", "--minutes", "3", "--part", "a", "--part", "b"]
    assert main(["--progress", str(file), *options]) == 0
    assert main(["--progress", str(file), "--resume"]) == 0
    assert seen[3:] == [("a", 6, 30), ("b", 6, 30), ("a", 7, 30)]  # 80 s were over, of 180
    assert main(["--progress", str(file), "--resume"]) == 0
    assert len(seen) == 6  # the time is over: the report only
    assert main(["--progress", str(file), "--resume", "--minutes", "4", "--part", "c"]) == 0
    assert seen[6:] == [("c", 7, 30)]


def test_turns_play_each_world_once_and_end_with_the_number_that_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def simulate(command: list[str]) -> int:
        commands.append(command)
        return 0

    monkeypatch.setattr(soak, "simulate", simulate)
    options = ["--seed", "3", "--count", "4000", "--worlds", "10", "--part", "simulation --streams"]
    assert main(["--progress", str(tmp_path / "soak.json"), *options]) == 0
    assert [command[1:3] for command in commands] == [
        ["12:16", "--streams"],
        ["16:20", "--streams"],
        ["20:24", "--streams"],
    ]


def test_a_run_without_a_seed_says_which_it_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = ["--progress", str(tmp_path / "soak.json")]
    monkeypatch.setattr(soak, "parts", lambda: {"good": lambda seed, count: []})
    assert main([*progress, "--turns", "1"]) == 0
    assert "the same again: make soak ARGS='--seed " in capsys.readouterr().out
    assert main([*progress, "--part", "nothing"]) == 2
    assert main([*progress, "--list"]) == 0
