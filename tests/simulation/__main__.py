"""``python -m tests.simulation``: play worlds, say what went wrong in them and whether all held.

Inside: the command line. Not inside: anything it does.

Exit codes: 0 all held (with ``--known-bugs``: each bug was found), 1 a property was violated (a bug was not
found), 2 the command line or a file makes no sense.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from tests.simulation.faults import KINDS, Fault, enabled
from tests.simulation.known_bugs import KNOWN_BUGS, KnownBug
from tests.simulation.minimise import minimise
from tests.simulation.replay_file import Replay, ReplayFileError, encode_replay, read_replay
from tests.simulation.shape import Shape
from tests.simulation.world import Outcome, play

KNOWN_BUG_SEEDS = 300
LINES_SHOWN = 80


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    options = _parser().parse_args(arguments)
    try:
        switches = _switches(options.on, options.off)
    except ValueError as exc:
        print(exc, file=sys.stderr)
        return 2
    if options.known_bugs:
        return _hunt_known_bugs(options.bug)
    if options.replay is not None:
        return _replay(options.replay)
    bug = KNOWN_BUGS[options.bug] if options.bug else None
    if options.seed is not None:
        return _play_many([options.seed], switches, options, bug, single=True)
    if options.seeds is not None:
        return _play_many(range(*options.seeds), switches, options, bug, single=False)
    return _play_many(_for_hours(options.hours, options.first), switches, options, bug, single=False)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation", description="Play a whole cluster under faults, from one seed."
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seed", type=int, help="one world; prints its trace hash")
    what.add_argument("--seeds", type=_seeds, metavar="A:B", help="worlds A to B-1")
    what.add_argument("--hours", type=float, help="worlds for so many hours of real time")
    what.add_argument("--replay", type=Path, metavar="FILE", help="a world that failed before")
    what.add_argument("--known-bugs", action="store_true", help="put each known bug back and look for it")
    parser.add_argument("--first", type=int, default=int(time.time()), help="with --hours: the first seed")
    parser.add_argument("--bug", choices=list(KNOWN_BUGS), help="put this known bug back")
    parser.add_argument("--bookies", type=int, help="so many bookies in each world")
    parser.add_argument("--on", action="append", default=[], metavar="FAULT", help="switch a fault on")
    parser.add_argument(
        "--off", action="append", default=[], metavar="FAULT", help="switch a fault off; 'all'"
    )
    parser.add_argument("--trace", action="store_true", help="with --seed: print the whole trace")
    parser.add_argument("--directory", type=Path, help="where replay files of failures go")
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


def _play_many(
    seeds: Iterable[int],
    switches: dict[str, bool],
    options: argparse.Namespace,
    bug: KnownBug | None,
    *,
    single: bool,
) -> int:
    counts: Counter[str] = Counter()
    failed: list[Outcome] = []
    virtual_s = cpu_s = 0.0
    worlds = confirmed = 0
    kinds = enabled(switches)
    with _with_bug(bug):
        for seed in seeds:
            shape = Shape.draw(seed, kinds, bookies=options.bookies)
            outcome = _play(shape, switches, bug, keep=single and options.trace)
            worlds += 1
            counts.update(outcome.counts)
            virtual_s += outcome.virtual_s
            cpu_s += outcome.cpu_s
            confirmed += outcome.confirmed
            if single:
                print("\n".join(outcome.lines))
                print(f"trace hash {outcome.digest}")
            if outcome.violation is not None:
                print(f"seed {seed}: {outcome.violation}")
                failed.append(outcome)
        _print_counts(counts)
        print(
            f"{worlds} worlds, {virtual_s / 3600:.2f} simulated hours, {confirmed} entries acknowledged,"
            f" {virtual_s / max(cpu_s, 1e-9):.0f} times faster than real time; {len(failed)} failed"
        )
        if failed:
            shape = Shape.draw(failed[0].seed, kinds, bookies=options.bookies)
            _explain(shape, failed[0], switches, bug, options.directory)
    return 1 if failed else 0


def _with_bug(bug: KnownBug | None) -> AbstractContextManager[None]:
    return nullcontext() if bug is None else bug.patched()


def _play(
    shape: Shape,
    switches: dict[str, bool],
    bug: KnownBug | None,
    *,
    plan: tuple[Fault, ...] | None = None,
    keep: bool = False,
) -> Outcome:
    prepare = None if bug is None else bug.prepare
    return play(shape.seed, shape=shape, plan=plan, switches=switches, keep=keep, prepare=prepare)


def _print_counts(counts: Counter[str]) -> None:
    width = max(map(len, counts), default=0)
    for name in sorted(counts):
        if counts[name]:
            print(f"  {name:<{width}} {counts[name]:>8}")


def _explain(
    shape: Shape,
    failure: Outcome,
    switches: dict[str, bool],
    bug: KnownBug | None,
    directory: Path | None,
) -> None:
    """Make the failing world small, show its story, write it to a file."""
    assert failure.violation is not None
    checker = failure.violation.partition(":")[0]

    def fails(candidate: Shape, plan: tuple[Fault, ...]) -> bool:
        outcome = _play(candidate, switches, bug, plan=plan)
        return outcome.violation is not None and outcome.violation.partition(":")[0] == checker

    small, plan = minimise(shape, failure.plan, fails)
    outcome = _play(small, switches, bug, plan=plan, keep=True)
    _tell(outcome, len(failure.plan))
    directory = directory or Path(tempfile.mkdtemp(prefix="simulation-"))
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / f"seed-{failure.seed}.json"
    name = None if bug is None else bug.name
    file.write_text(encode_replay(Replay(small, plan, outcome.violation, outcome.digest, name)), "utf-8")
    print(f"to see it again: python -m tests.simulation --replay {file}")


def _tell(outcome: Outcome, faults_before: int) -> None:
    print(f"\nseed {outcome.seed}, made small: {len(outcome.plan)} faults of {faults_before} are needed")
    for fault in outcome.plan:
        print(f"  {fault}")
    lines = outcome.lines
    end = next((at for at, line in enumerate(lines) if "VIOLATION" in line), len(lines) - 1) + 1
    shown = lines[max(0, end - LINES_SHOWN) : end]
    if end > len(shown):
        print(f"... {end - len(shown)} lines before")
    print("\n".join(line[:240] for line in shown))


def _replay(path: Path) -> int:
    try:
        replay = read_replay(path)
    except (OSError, ReplayFileError) as exc:
        print(f"{path}: {exc}", file=sys.stderr)
        return 2
    bug = None if replay.known_bug is None else KNOWN_BUGS[replay.known_bug]
    with _with_bug(bug):
        outcome = _play(replay.shape, {}, bug, plan=replay.plan, keep=True)
    print("\n".join(outcome.lines))
    print(f"trace hash {outcome.digest}")
    if outcome.digest != replay.digest:
        print(f"the file's is {replay.digest}: the code has changed since, or this is another trio")
    print(outcome.violation or "every property holds")
    return 1 if outcome.violation is not None else 0


def find_known_bug(bug: KnownBug, seeds_max: int = KNOWN_BUG_SEEDS) -> tuple[int, str] | None:
    """The first seed whose world shows the bug, and the violation; None if none does."""
    with bug.patched():
        for seed in range(seeds_max):
            outcome = play(seed, switches=bug.switches, prepare=bug.prepare)
            if outcome.violation is not None:
                return seed, outcome.violation
    return None


def _hunt_known_bugs(only: str | None) -> int:
    missed = 0
    say: Callable[[str], None] = print
    for bug in KNOWN_BUGS.values():
        if only is not None and bug.name != only:
            continue
        found = find_known_bug(bug)
        if found is None:
            missed += 1
            say(f"{bug.name}: NOT found in {KNOWN_BUG_SEEDS} seeds")
        else:
            say(f"{bug.name}: seed {found[0]}: {found[1][:160]}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
