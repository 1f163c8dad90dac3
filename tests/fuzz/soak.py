"""``make soak``: every sweep, the fuzzer and worlds of the simulation, turn by turn, from one new seed.

A sweep is a function ``sweep(seed: int, count: int) -> Sequence[str]`` at the top of any module of ``tests``.
It tries about as much as ``count`` frames cost (20,000: half a minute), and returns a report of each failure,
with a command that does it again. Such a module is found by its text; there is no list to add it to.

Inside: finding the sweeps, the turns, the report, the command line. Not inside: what a sweep tries.
Always: one seed and a number of turns give the same run again. No two turns of a run play the same world.
What raises has failed, and the other parts continue. After each part the file of progress is written:
``--resume`` continues after the last part of a run that was interrupted, with its options and the time that
it had left. The report then has both.

Exit codes: 0 nothing failed, 1 something failed, 2 the command line is invalid.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import io
import json
import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import attrs

from tests.fuzz.__main__ import main as fuzz
from tests.places import ROOT
from tests.simulation.__main__ import main as simulate
from tests.simulation.runs import SEEDS_PER_TASK

Part = Callable[[int, int], Sequence[str]]
MINUTES = 10.0
TURN_COUNT = 2000  # frames of each sweep, before the next one's turn
_FUZZ_SHARE = 100  # one input of each target of the fuzzer for so many frames
_WORLD_SHARE = 1000  # one simulated world of each kind


@attrs.define
class Progress:
    """What a run is to do, and what it has done."""

    seed: int
    count: int = TURN_COUNT
    end_turn: int | None = None  # without one, the time ends the run
    minutes: float = MINUTES
    part: list[str] | None = None  # the parts of a turn, without them all
    turn: int = 0
    done: list[str] = attrs.field(factory=list)  # parts of this turn
    seconds: dict[str, float] = attrs.field(factory=dict)  # of each part
    turns: dict[str, int] = attrs.field(factory=dict)
    reports: list[str] = attrs.field(factory=list)

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        new.write_text(json.dumps(attrs.asdict(self)), "utf-8")
        new.replace(path)

    @property
    def is_over(self) -> bool:
        """True once the run has done its turns, or has had its time."""
        if self.end_turn is not None:
            return self.turn >= self.end_turn
        return sum(self.seconds.values()) >= 60 * self.minutes

    def note(self, name: str, took_s: float, reports: Sequence[str]) -> None:
        self.done.append(name)
        self.seconds[name] = self.seconds.get(name, 0) + took_s
        self.turns[name] = self.turns.get(name, 0) + 1
        self.reports += reports

    def summary(self) -> str:
        """The report at the end of a run: the failures, then a line for each part."""
        lines = [*self.reports, f"seed {self.seed}:"]
        lines += [
            f"  {name:44} {turns:5} turns {self.seconds[name]:8.0f} s" for name, turns in self.turns.items()
        ]
        return "\n".join([*lines, f"{sum(self.turns.values())} turns of parts; {len(self.reports)} failures"])


def sweep_modules() -> list[str]:
    """The modules of ``tests`` that have a sweep."""
    found = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        text = path.read_text("utf-8")
        if "def sweep(seed: int, count: int)" in text and _has_sweep(ast.parse(text)):
            found.append(".".join(path.relative_to(ROOT).with_suffix("").parts))
    return found


def _has_sweep(module: ast.Module) -> bool:
    return any(isinstance(node, ast.FunctionDef) and node.name == "sweep" for node in module.body)


def parts() -> dict[str, Part]:
    """What a turn runs, by name."""
    found: dict[str, Part] = {}
    for name in sweep_modules():
        found[name] = importlib.import_module(name).sweep
    found["fuzz"] = _fuzz
    for kind in ((), ("--streams",), ("--healing",)):
        found[" ".join(["simulation", *kind])] = _simulation(kind)
    return found


def worlds_of(count: int) -> int:
    """How many worlds of each kind a turn plays."""
    return max(1, count // _WORLD_SHARE)


def _fuzz(seed: int, count: int) -> Sequence[str]:
    cases = max(1, count // _FUZZ_SHARE)
    failed = fuzz(["--seed", str(seed), "--cases", str(cases)])
    return [f"the fuzzer failed with seed {seed}; its report is above"] if failed else []


def _simulation(kind: Sequence[str]) -> Part:
    def play(seed: int, count: int) -> Sequence[str]:
        worlds = worlds_of(count)
        command = ["--seeds", f"{seed * worlds}:{(seed + 1) * worlds}", *kind]
        jobs = min(os.cpu_count() or 1, max(1, worlds // SEEDS_PER_TASK))
        if not simulate([*command, "--jobs", str(jobs)]):
            return []
        return [f"the simulation failed: python -m tests.simulation {' '.join(command)}"]

    return play


def run_part(name: str, part: Part, seed: int, count: int) -> list[str]:
    """The reports of one part's turn; with what it printed, if there are any."""
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output):
            reports = [str(report) for report in part(seed, count)]
    except Exception:  # one part must not end the others
        reports = [f"{name} raised, with seed {seed} and count {count}:\n{traceback.format_exc()}"]
    return [f"{reports[0]}\n{output.getvalue()}".rstrip(), *reports[1:]] if reports else []


def _chosen(progress: Progress, parts: Mapping[str, Part]) -> Iterator[tuple[str, Part]]:
    """The next part, again and again, until the run is over; the progress counts the turns."""
    while not progress.is_over:
        for name, part in parts.items():
            if name not in progress.done and not progress.is_over:
                yield name, part
        if all(name in progress.done for name in parts):
            progress.turn, progress.done = progress.turn + 1, []


def _progress(options: argparse.Namespace) -> Progress:
    """A new run, or the one to resume; options that are given replace those that it had."""
    if options.resume:
        progress = Progress(**json.loads(options.progress.read_text("utf-8")))
    else:
        seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
        progress = Progress(seed)
    for name in ("count", "minutes", "part"):
        if (value := getattr(options, name)) is not None:
            setattr(progress, name, value)
    if options.minutes is not None:
        progress.end_turn = None
    if options.turns is not None:
        progress.end_turn = options.turns
    if options.worlds is not None:
        progress.end_turn = -(-options.worlds // worlds_of(progress.count))
    return progress


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    options = _parser().parse_args(arguments)
    every = parts()
    if options.list:
        print("\n".join(every))
        return 0
    if options.resume and not options.progress.exists():
        print(f"nothing to resume: there is no {options.progress}", file=sys.stderr)
        return 2
    progress = _progress(options)
    if unknown := [name for name in progress.part or [] if name not in every]:
        print(f"no part {unknown[0]!r}; --list shows them all", file=sys.stderr)
        return 2
    again = f"--seed {progress.seed} --count {progress.count}"
    print(f"seed {progress.seed}; the same again: make soak ARGS='{again} --turns N'", flush=True)
    chosen = {name: every[name] for name in progress.part or every}
    try:
        for name, part in _chosen(progress, chosen):
            began_s, seed = time.monotonic(), progress.seed + progress.turn
            reports = run_part(name, part, seed, progress.count)
            if reports:
                print("\n".join(reports))
            took_s = time.monotonic() - began_s
            progress.note(name, took_s, reports)
            progress.write(options.progress)
            print(
                f"turn {progress.turn}: {name}, seed {seed}, {took_s:.0f} s, {len(reports)} failed",
                flush=True,
            )
    except KeyboardInterrupt:
        print("interrupted; --resume continues", file=sys.stderr)
    print(progress.summary(), flush=True)
    return 1 if progress.reports else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make soak ARGS=", description=__doc__.partition("\n")[0])
    end = parser.add_mutually_exclusive_group()
    end.add_argument("--minutes", type=float, help=f"how long to run (default {MINUTES:.0f})")
    end.add_argument("--turns", type=int, help="run this number of turns instead")
    end.add_argument("--worlds", type=int, help="run until this number of worlds of each kind are played")
    parser.add_argument("--count", type=int, help=f"frames of each sweep in a turn (default {TURN_COUNT})")
    parser.add_argument("--seed", type=int, help="default: a new one, which is printed")
    parser.add_argument("--resume", action="store_true", help="continue the run that was interrupted")
    parser.add_argument(
        "--progress",
        type=Path,
        default=ROOT / ".cache" / "soak.json",
        help="the file of progress (default .cache/soak.json)",
    )
    parser.add_argument("--part", action="append", help="only this part (may be repeated)")
    parser.add_argument("--list", action="store_true", help="print the names of the parts")
    return parser


if __name__ == "__main__":
    sys.exit(main())
