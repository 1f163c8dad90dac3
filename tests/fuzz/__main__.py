"""``python -m tests.fuzz``: fuzz decoders and a bookie's port until the time or the number of cases is over.

Inside: the command line. Not inside: the loop (``engine``), the targets.

Exit codes: 0 nothing failed, 1 an input failed, 2 the command line is invalid.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

from tests.fuzz.engine import Failure, Fuzzer, Target, tracing_memory
from tests.fuzz.http_port import HTTP_PORT, fuzz_http, replay_http
from tests.fuzz.port import GUARDED_PORT, PORT, fuzz_port, replay_port
from tests.fuzz.targets import TARGETS

PORTS = (PORT, GUARDED_PORT, HTTP_PORT)
TURN_CASES = 200  # of one target, before the next one's turn


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    options = _parser().parse_args(arguments)
    if options.list:
        print("\n".join([*TARGETS, *PORTS]))
        return 0
    names = options.target or [*TARGETS, *PORTS]
    if unknown := [name for name in names if name not in PORTS and name not in TARGETS]:
        print(f"no target {unknown[0]!r}; --list shows them all", file=sys.stderr)
        return 2
    if options.hex is not None or options.input is not None:
        if len(names) != 1:
            print("--hex and --input need one --target", file=sys.stderr)
            return 2
        return _replay(names[0], bytes.fromhex(options.hex) if options.hex else options.input.read_bytes())
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    print(f"seed {seed}; the same inputs again: --seed {seed} --cases N --corpus EMPTY_DIRECTORY")
    end_s = None if options.cases else time.monotonic() + 60 * options.minutes
    failures = 0
    seen: set[tuple[str, str]] = set()

    def report(failure: Failure) -> None:
        nonlocal failures
        if (failure.target, failure.reason) not in seen:
            seen.add((failure.target, failure.reason))
            failures += 1
            print(failure.report(options.corpus), flush=True)

    fuzzers = [Fuzzer(TARGETS[name], seed, options.corpus) for name in names if name not in PORTS]
    turn = connections = 0
    while True:
        for fuzzer in fuzzers:
            _turn(fuzzer, options.cases or TURN_CASES, report)
        for port in PORTS:
            if port in names:
                count = options.cases or TURN_CASES
                connections += count
                fuzz = fuzz_http if port == HTTP_PORT else fuzz_port
                for failure in fuzz(seed + turn, count, port):
                    report(failure)
        turn += 1
        if end_s is None or time.monotonic() >= end_s:
            break
    cases = sum(fuzzer.cases for fuzzer in fuzzers)
    kept = sum(fuzzer.kept for fuzzer in fuzzers)
    print(
        f"{cases} inputs of {len(fuzzers)} decoders, {connections} hostile connections, {kept} inputs kept in"
        f" {options.corpus}; {failures} failures"
    )
    return 1 if failures else 0


def _turn(fuzzer: Fuzzer, cases: int, report: object) -> None:
    assert callable(report)
    with tracing_memory():
        for _ in range(cases):
            if (failure := fuzzer.step()) is not None:
                report(failure)


def _replay(name: str, data: bytes) -> int:
    if name in PORTS:
        reason = (replay_http if name == HTTP_PORT else replay_port)(data, name)
    else:
        target: Target = TARGETS[name]
        with tracing_memory():
            reason, kind, cost = target.verdict(data)
        print(f"{kind}; {cost.lines} lines, {cost.peak_bytes} bytes of memory for {len(data)} bytes")
    print(f"FAILED {name}: {reason}" if reason else f"{name}: this input passes")
    return 1 if reason else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long to go on (default 1)")
    parser.add_argument("--cases", type=int, help="run so many inputs of each target instead")
    parser.add_argument("--seed", type=int, help="default: a fresh one, which is printed")
    parser.add_argument("--target", action="append", help="fuzz only this one; may be repeated")
    parser.add_argument("--corpus", type=Path, default=Path(".cache/fuzz"), help="where inputs are kept")
    parser.add_argument("--list", action="store_true", help="print the names of the targets")
    parser.add_argument("--hex", help="decode these bytes with --target, and nothing else")
    parser.add_argument("--input", type=Path, help="decode this file with --target, and nothing else")
    return parser


if __name__ == "__main__":
    sys.exit(main())
