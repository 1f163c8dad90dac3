"""``python -m tests.simulation``: play worlds and print their faults and violations.

Inside: the command line. Not inside: playing (``runs``, ``sweep``, ``world``).

Exit codes: 0 all properties held (with ``--known-bugs``: each bug was found), 1 a property was violated (a
bug was not found), 2 the command line or a file is invalid.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.simulation.faults import KINDS, Fault, enabled
from tests.simulation.minimise import minimise
from tests.simulation.playing import Outcome
from tests.simulation.replay_file import Replay, ReplayFileError, encode_replay, read_replay
from tests.simulation.runs import KNOWN_BUG_SEEDS, Setting, Tally, find_known_bugs, play_on
from tests.simulation.shape import Shape
from tests.simulation.streams.sweep import SWEEPS as LOG_SWEEPS
from tests.simulation.streams.sweep import sweep as sweep_log
from tests.simulation.sweep import SWEEPS, sweep

PROGRESS_S = 10.0
LINES_SHOWN = 80


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    options = _parser().parse_args(arguments)
    try:
        switches = _switches(options.on, options.off)
    except ValueError as exc:
        print(exc, file=sys.stderr)
        return 2
    setting = Setting(switches, options.bookies, options.bug, options.streams, options.healing)
    if options.bug is not None and options.bug not in setting.bugs:
        print(
            f"no known bug is called {options.bug!r}; there are: {', '.join(setting.bugs)}", file=sys.stderr
        )
        return 2
    if options.known_bugs:
        return _hunt_known_bugs(options.jobs, list(setting.bugs), options.bug, setting)
    if options.sweep is not None:
        return _sweep(options.sweep, options.stride, streams=options.streams)
    if options.replay is not None:
        return _replay(options.replay)
    if options.seed is not None:
        return _play_one(options.seed, setting, show=options.trace, directory=options.directory)
    seeds: Iterable[int] = (
        range(*options.seeds) if options.seeds is not None else _for_hours(options.hours, options.first)
    )
    jobs = options.jobs
    if options.seeds is None:
        jobs = 1  # a pool would draw all seeds at once, but with --hours there is no last seed
    return _sum_up(play_on(jobs, setting, seeds, _Progress()), setting, options.directory)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation", description="Play a whole cluster under faults, from one seed."
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seed", type=int, help="one world; prints its trace hash")
    what.add_argument("--seeds", type=_seeds, metavar="A:B", help="worlds A to B-1")
    what.add_argument("--hours", type=float, help="worlds for this many hours of real time")
    what.add_argument("--replay", type=Path, metavar="FILE", help="a world that failed before")
    what.add_argument("--known-bugs", action="store_true", help="put each known bug back and look for it")
    what.add_argument("--sweep", type=int, metavar="N", help="strike a small world at each of its steps")
    parser.add_argument("--stride", type=int, default=1, help="with --sweep: strike at every n-th step")
    parser.add_argument(
        "--jobs", type=int, default=1, help="with --seeds and --known-bugs: number of processes"
    )
    parser.add_argument("--first", type=int, default=int(time.time()), help="with --hours: the first seed")
    parser.add_argument("--streams", action="store_true", help="worlds with logs, in place of ledgers")
    parser.add_argument("--healing", action="store_true", help="worlds with auto-recovery")
    parser.add_argument("--bug", help="put this known bug back")
    parser.add_argument("--bookies", type=int, help="number of bookies in each world")
    parser.add_argument("--on", action="append", default=[], metavar="FAULT", help="switch a fault on")
    parser.add_argument(
        "--off", action="append", default=[], metavar="FAULT", help="switch a fault off, or 'all'"
    )
    parser.add_argument("--trace", action="store_true", help="with --seed: print the whole trace")
    parser.add_argument("--directory", type=Path, help="directory for replay files of failures")
    return parser


def _seeds(text: str) -> tuple[int, int]:
    first, colon, stop = text.partition(":")
    if not colon or not int(first) < int(stop):
        raise argparse.ArgumentTypeError(f"{text!r} is not A:B with A below B")
    return int(first), int(stop)


def _switches(on: list[str], off: list[str]) -> dict[str, bool]:
    switches = dict.fromkeys(KINDS, False) if "all" in off else {}
    switches.update({name: False for name in off if name != "all"})
    switches.update(dict.fromkeys(on, True))
    enabled(switches)
    return switches


def _for_hours(hours: float, first: int) -> Iterator[int]:
    deadline = time.monotonic() + hours * 3600
    seed = first
    while time.monotonic() < deadline:
        yield seed
        seed += 1


def _play_one(seed: int, setting: Setting, *, show: bool, directory: Path | None) -> int:
    tally = Tally()
    with setting.patched():
        outcome = setting.play(setting.shape(seed), keep=show)
    tally.add(outcome)
    print("\n".join(outcome.lines))
    print(f"trace hash {outcome.digest}")
    return _sum_up(tally, setting, directory)


def _sum_up(tally: Tally, setting: Setting, directory: Path | None) -> int:
    for seed, violation in tally.failed:
        print(f"seed {seed}: {violation}")
    _print_counts(tally.counts)
    print(
        f"{tally.worlds} worlds, {tally.virtual_s / 3600:.2f} simulated hours, {tally.confirmed} entries"
        f" acknowledged, {tally.factor:.0f} times faster than real time; {len(tally.failed)} failed"
    )
    if tally.failed:
        with setting.patched():
            _explain(min(tally.failed)[0], setting, directory)
    return 1 if tally.failed else 0


class _Progress:
    """Prints a line on stderr every ``PROGRESS_S`` seconds, apart from the result on stdout."""

    def __init__(self) -> None:
        self._next = time.monotonic() + PROGRESS_S

    def __call__(self, tally: Tally) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + PROGRESS_S
            print(
                f"... {tally.worlds} worlds, {tally.virtual_s / 3600:.2f} simulated hours,"
                f" {len(tally.failed)} failed",
                file=sys.stderr,
                flush=True,
            )


def _print_counts(counts: Counter[str]) -> None:
    width = max(map(len, counts), default=0)
    for name in sorted(counts):
        if counts[name]:
            print(f"  {name:<{width}} {counts[name]:>8}")


def _explain(seed: int, setting: Setting, directory: Path | None) -> None:
    """Make the failing world smaller, print its trace, write it to a replay file."""
    shape = setting.shape(seed)
    failure = setting.play(shape)
    assert failure.violation is not None, f"seed {seed} failed before and holds now: it is not repeatable"
    checker = failure.violation.partition(":")[0]

    def fails(candidate: Shape, plan: tuple[Fault, ...]) -> bool:
        outcome = setting.play(candidate, plan=plan)
        return outcome.violation is not None and outcome.violation.partition(":")[0] == checker

    small, plan = minimise(shape, failure.plan, fails)
    outcome = setting.play(small, plan=plan, keep=True)
    _print_trace(outcome, len(failure.plan))
    directory = directory or Path(tempfile.mkdtemp(prefix="simulation-"))
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / f"seed-{seed}.json"
    replay = Replay(small, plan, outcome.violation, outcome.digest, setting.bug_name)
    file.write_text(encode_replay(replay), "utf-8")
    print(f"to play it again: python -m tests.simulation --replay {file}")


def _print_trace(outcome: Outcome, faults_before: int) -> None:
    print(f"\nseed {outcome.seed}, made smaller: {len(outcome.plan)} of {faults_before} faults are needed")
    for fault in outcome.plan:
        print(f"  {fault}")
    lines = outcome.lines
    end = next((at for at, line in enumerate(lines) if "VIOLATION" in line), len(lines) - 1) + 1
    shown = lines[max(0, end - LINES_SHOWN) : end]
    if end > len(shown):
        print(f"... {end - len(shown)} earlier lines")
    print("\n".join(line[:240] for line in shown))


def _replay(path: Path) -> int:
    try:
        replay = read_replay(path)
    except (OSError, ReplayFileError) as exc:
        print(f"{path}: {exc}", file=sys.stderr)
        return 2
    setting = Setting(bug_name=replay.known_bug, streams=replay.streams, healing=replay.healing)
    with setting.patched():
        outcome = setting.play(replay.shape, plan=replay.plan, keep=True)
    print("\n".join(outcome.lines))
    print(f"trace hash {outcome.digest}")
    if outcome.digest != replay.digest:
        print(f"the file has {replay.digest}: the code has changed since, or trio has another version")
    print(outcome.violation or "every property holds")
    return 1 if outcome.violation is not None else 0


def _hunt_known_bugs(jobs: int, names: list[str], only: str | None, setting: Setting) -> int:
    missed = 0
    names = names if only is None else [only]
    for name, found in find_known_bugs(jobs, names, streams=setting.streams, healing=setting.healing):
        if found is None:
            missed += 1
            print(f"{name}: NOT found in {KNOWN_BUG_SEEDS} seeds", flush=True)
        else:
            print(f"{name}: seed {found[0]}: {found[1][:160]}", flush=True)
    return 1 if missed else 0


def _sweep(seed: int, stride: int, *, streams: bool) -> int:
    failed = 0
    strike = sweep_log if streams else sweep
    for name in LOG_SWEEPS if streams else SWEEPS:
        struck = 0
        for step, outcome in strike(name, seed, stride=stride):
            struck += 1
            if outcome.violation is not None:
                failed += 1
                print(f"{name} at step {step}: {outcome.violation}")
        print(f"{name}: struck at {struck} steps", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
