"""The check after each edit, within a minute: format, lint, types, house rules, and the fast tests.

It uses all cores and stops at the first failure. Left to ``make test``: the tests that need Java or start a
cluster, the tests marked ``slow``, and the full number of examples of random and exhaustive tests
(``tests.effort``).

With the argument ``tests``, only the fast tests run, and all of them (``.ci/pythons``).

Always: the last lines name the time the check took, the time it may take, and its slowest steps and tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import attrs

ROOT = Path(__file__).resolve().parent.parent
SECONDS_MAX = 60  # on two idle cores
WORKERS = min(os.cpu_count() or 1, 8)  # each collects all tests, so no more than cores
POLL_S = 0.05
LEFT_OUT = ("zookeeper", "cluster", "spark", "interop", "slow")
TESTS = [
    "pytest",
    *("-n", str(WORKERS), "--dist", "loadgroup", "--durations", "8"),
    *("-m", " and ".join(f"not {marker}" for marker in LEFT_OUT)),
    "tests",
]
# The steps of a group run at once, the groups one after the other.
GROUPS = [[["ruff", "format", "--check", "."], ["ruff", "check", "."]], [["mypy"], TESTS]]


@attrs.define
class Step:
    """One command, from its start on. Only the tests print while they run."""

    command: list[str]
    process: subprocess.Popen[bytes]
    output: Path | None
    started_s: float
    seconds: float = 0.0
    cpu_s: float = 0.0
    exit_code: int | None = None

    @property
    def name(self) -> str:
        return " ".join(self.command[:2]) if self.command[0] == "ruff" else self.command[0]

    def poll(self) -> bool:
        """True once the command has ended. Its times then include those of its child processes."""
        if self.exit_code is None:
            pid, status, usage = os.wait4(self.process.pid, os.WNOHANG)
            if pid:
                self.exit_code = self.process.returncode = os.waitstatus_to_exitcode(status)
                self.seconds = time.monotonic() - self.started_s
                self.cpu_s = usage.ru_utime + usage.ru_stime
                if self.output is not None:
                    print(self.output.read_text("utf-8", "replace"), end="", flush=True)
        return self.exit_code is not None


def environment() -> dict[str, str]:
    """Variables of the steps: a sample of the work, and compiled modules that the next check finds again."""
    found = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {
        **found,
        "DLOG_TEST_EFFORT": "sample",
        "PYTHONPYCACHEPREFIX": str(ROOT / ".cache" / "pycache"),
    }


def start(command: list[str], directory: Path) -> Step:
    output = None if command is TESTS else directory / f"{'-'.join(command[:2])}.txt"
    stream = None if output is None else output.open("wb")
    print("$", " ".join(command), flush=True)
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env=environment(),
        stdout=stream,
        stderr=None if stream is None else subprocess.STDOUT,
    )
    if stream is not None:
        stream.close()
    return Step(command, process, output, time.monotonic())


def run(commands: list[list[str]], directory: Path) -> list[Step]:
    """Run a group. Once a step fails, end the others and return the failed step alone."""
    steps = [start(command, directory) for command in commands]
    running = steps
    while running:
        time.sleep(POLL_S)
        running = [step for step in running if not step.poll()]
        failed = next((step for step in steps if step.exit_code), None)
        if failed is not None:
            for step in running:
                step.process.terminate()
                step.process.wait()
            return [failed]
    return steps


def main(arguments: list[str]) -> int:
    if arguments == ["tests"]:
        return subprocess.call([sys.executable, "-m", *TESTS], cwd=ROOT, env=environment())
    started_s = time.monotonic()
    done: list[Step] = []
    with tempfile.TemporaryDirectory(prefix="check-") as directory:
        for commands in GROUPS:
            done += run(commands, Path(directory))
            if done[-1].exit_code:
                print(f"red: {done[-1].name} (exit code {done[-1].exit_code})")
                return 1
    seconds = time.monotonic() - started_s
    slowest = sorted(done, key=lambda step: step.cpu_s, reverse=True)
    print("; ".join(f"{step.name} {step.seconds:.0f} s ({step.cpu_s:.0f} s of CPU)" for step in slowest))
    print(
        f"green: the check took {seconds:.0f} s of the {SECONDS_MAX} s it may take on two idle cores, and"
        f" {sum(step.cpu_s for step in done):.0f} s of CPU"
    )
    if sum(step.cpu_s for step in done) > 2 * SECONDS_MAX:
        print("too slow: sample (tests/effort.py) or mark as slow the slowest of the tests above")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
