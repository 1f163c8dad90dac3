"""Programs that end at random moments: what was acknowledged is there, and the next program goes to work.

    python -m tests.edge.random_endings SEED CASES DIRECTORY

A case is a directory and some programs, one after another. Each has a face and a way of ending, and ends at
the N-th call of a function of ours. Between them another process reads the log. The programs and the readers
are forks of this process, which opens nothing itself, so none of them pays for its imports.

Inside: the programs, the check after each, the cases of a seed. Not inside: what a way of ending prints
(``matrix``).
Always: a program writes the numbers from that of the records on that its predecessors left. "acknowledged N"
is written after record N - 1 is; so the log has at least the records 0 to N - 1, in order, and each once.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import attrs
import trio

import dlog
import dlog.aio
import dlog.blocking
from tests.places import ROOT

PROGRAMS = 3  # of a case
OPERATIONS_MAX = 60  # of a program that is not ended before
LIMIT_S = 120  # a generous one: what it catches would wait for ever
OURS = tuple(f"{ROOT}/{package}/" for package in ("dlog", "ledger", "bookie", "namespace"))
FRAMES_OF_A_CASE = 1500  # as the sweeps count
WRONG = ("Timeout (0:", "Fatal Python error", "TrioInternalError", "Segmentation fault")
ENDINGS = {
    "trio": ("cancellation", "interrupt", "exit", "os._exit", "kill"),
    "asyncio": ("cancellation", "interrupt", "exit", "os._exit", "kill", "loop closed"),
    "blocking": ("interrupt", "exit", "os._exit", "kill", "thread"),
}


@attrs.frozen
class Program:
    """One program of a case."""

    face: str
    ending: str
    calls: int  # of functions of ours before it ends
    seed: int  # of its operations
    first: int  # the number of its first record


class Moment:
    """Calls ``end`` once, in whatever thread makes the N-th call of a function of ours."""

    def __init__(self, calls: int, end: Callable[[], object]) -> None:
        self._left, self._end, self._ours = calls, end, OURS  # at the end of Python no global is left
        self.has_come = False

    def begin(self) -> None:
        threading.settrace(self._on_call)
        sys.settrace(self._on_call)

    def _on_call(self, frame: FrameType, event: str, argument: object) -> None:
        if not self.has_come and frame.f_code.co_filename.startswith(self._ours):
            self._left -= 1
            if self._left <= 0:
                self.has_come = True
                threading.settrace(None)
                sys.settrace(None)
                self._end()


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def signalled(number: signal.Signals) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


class Numbers:
    """The records of a program."""

    def __init__(self, program: Program) -> None:
        self.rng, self._next = random.Random(program.seed), program.first

    def taken(self, count: int) -> list[bytes]:
        first, self._next = self._next, self._next + count
        return [b"%d" % number for number in range(first, self._next)]

    def acknowledged(self) -> None:
        """All that were taken are."""
        say("acknowledged", self._next)


async def work(namespace: Any, numbers: Numbers, step: Callable[[], None]) -> None:
    """The operations of a program on a loop."""
    rng, done = numbers.rng, 0
    while done < OPERATIONS_MAX:
        async with namespace.open_writer("orders", create=True) as log:
            for _ in range(rng.randrange(1, 20)):
                step()
                done += 1
                match rng.randrange(5):
                    case 0:
                        await log.append_many(numbers.taken(rng.randrange(1, 9)))
                    case 1:
                        for pending in [log.submit(each) for each in numbers.taken(rng.randrange(1, 20))]:
                            await pending
                    case 2:
                        async with namespace.open_reader("orders", follow=False) as reader:
                            async for _ in reader:
                                pass
                        continue
                    case _:
                        await log.append(*numbers.taken(1))
                numbers.acknowledged()


def work_blocking(namespace: Any, numbers: Numbers) -> None:
    """The same without ``async``."""
    rng, done = numbers.rng, 0
    while done < OPERATIONS_MAX:
        with namespace.open_writer("orders", create=True) as log:
            for _ in range(rng.randrange(1, 20)):
                done += 1
                match rng.randrange(5):
                    case 0:
                        log.append_many(numbers.taken(rng.randrange(1, 9)))
                    case 1:
                        for future in [log.submit(each) for each in numbers.taken(rng.randrange(1, 20))]:
                            future.result()
                    case 2:
                        with namespace.open_reader("orders", follow=False) as reader:
                            for _ in reader:
                                pass
                        continue
                    case _:
                        log.append(*numbers.taken(1))
                numbers.acknowledged()


class OnLoop:
    """A program on trio or asyncio."""

    def __init__(self, program: Program, uri: str) -> None:
        self._program, self._uri = program, uri
        self._is_exiting = False

    def run(self) -> None:
        if self._program.face == "trio":
            trio.run(self._on_trio)
        elif self._program.ending == "loop closed":
            loop = asyncio.new_event_loop()
            task = loop.create_task(self._on_asyncio())
            try:
                loop.run_until_complete(task)
            except RuntimeError:
                say("stopped")
            loop.close()
        else:
            asyncio.run(self._on_asyncio())

    async def _on_trio(self) -> None:
        token = trio.lowlevel.current_trio_token()
        with trio.CancelScope() as scope:
            self._begin(lambda: token.run_sync_soon(scope.cancel), lambda: None)
            async with dlog.open_namespace(self._uri) as namespace:
                await work(namespace, Numbers(self._program), self._step)

    async def _on_asyncio(self) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None  # it runs
        self._begin(
            lambda: loop.call_soon_threadsafe(task.cancel), lambda: loop.call_soon_threadsafe(loop.stop)
        )
        async with dlog.aio.open_namespace(self._uri) as namespace:
            await work(namespace, Numbers(self._program), self._step)

    def _begin(self, cancel: Callable[[], object], stop: Callable[[], object]) -> None:
        ends: dict[str, Callable[[], object]] = {"cancellation": cancel, "loop closed": stop}
        ends |= {"exit": self._exit_soon, **of_process()}
        Moment(self._program.calls, ends[self._program.ending]).begin()

    def _exit_soon(self) -> None:
        self._is_exiting = True

    def _step(self) -> None:
        if self._is_exiting:
            sys.exit(3)


def of_process() -> dict[str, Callable[[], object]]:
    return {
        "interrupt": signalled(signal.SIGINT),
        "kill": signalled(signal.SIGKILL),
        "os._exit": lambda: os._exit(3),
    }


def run_blocking(program: Program, uri: str) -> None:
    """A program without ``async``."""
    over = threading.Event()

    def body() -> None:
        with dlog.blocking.open_namespace(uri) as namespace:
            work_blocking(namespace, Numbers(program))

    def exits(*_: object) -> NoReturn:
        sys.exit(3)

    def in_thread() -> None:
        try:
            body()
        except dlog.DLogError:
            if not over.is_set():  # else Python's end has closed what it uses
                raise
        finally:
            over.set()

    signal.signal(signal.SIGTERM, exits)
    ends = {"exit": signalled(signal.SIGTERM), "thread": over.set, **of_process()}
    Moment(program.calls, ends[program.ending]).begin()
    if program.ending == "thread":
        threading.Thread(target=in_thread, daemon=True).start()
        over.wait()
    else:
        body()


def read(uri: str) -> None:
    """Say how many records the log has, once it has been opened for writing; the next program's first."""
    with dlog.blocking.open_namespace(uri) as namespace:
        # At once: the lock of a program that has ended is free.
        namespace.open_writer("orders", create=True, lock_timeout_s=0).close()
        with namespace.open_reader("orders", follow=False) as reader:
            found = [int(record.payload) for record in reader]
    assert found == list(range(len(found))), f"other records than were written: {found}"
    say("found", len(found))


@attrs.define
class Output:
    """What a fork has printed, and how it ended."""

    stdout: str
    stderr: str
    exit_code: int

    def last(self, what: str, default: int) -> int:
        found = [int(line.split()[1]) for line in self.stdout.splitlines() if line.startswith(f"{what} ")]
        return found[-1] if found else default


class ForkedError(Exception):
    """Carries what a fork is to do out of all frames of its parent, so that it ends as a program does."""

    def __init__(self, task: Callable[[], None]) -> None:
        self.task = task


def forked(task: Callable[[], None], directory: Path) -> Output:
    """Run a task in a fork."""
    out, err = directory / "stdout", directory / "stderr"
    if (child := os.fork()) == 0:
        for path, number in ((out, 1), (err, 2)):
            file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
            os.dup2(file, number)
        faulthandler.dump_traceback_later(LIMIT_S, exit=True, file=2)
        raise ForkedError(task)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return Output(out.read_text(), err.read_text("utf-8", "replace"), code)


def programs(rng: random.Random) -> Iterator[Program]:
    """The programs of a case; their first records are not known yet."""
    for _ in range(PROGRAMS):
        face = rng.choice(list(ENDINGS))
        calls = int(10 ** rng.uniform(2.0, 4.6))  # an open takes thousands, all operations some 30,000
        yield Program(face, rng.choice(ENDINGS[face]), calls, rng.randrange(2**31), first=0)


def run_case(seed: int, directory: Path) -> list[str]:
    """The report of a case; empty if all is well."""
    uri, first, reports = (directory / "log").as_uri(), 0, list[str]()
    for each in programs(random.Random(seed)):
        program = attrs.evolve(each, first=first)
        run = task_of(program, uri)
        output = forked(run, directory)
        checked = forked(lambda: read(uri), directory)
        found, acknowledged = checked.last("found", -1), output.last("acknowledged", first)
        if found < acknowledged or any(sign in output.stderr for sign in WRONG):
            reports.append(
                f"{program}: {acknowledged} acknowledged, {found} found, exit code {output.exit_code}\n"
                f"{output.stderr}\nreading: {checked.stderr}"
            )
            break
        first = found
    return reports


def task_of(program: Program, uri: str) -> Callable[[], None]:
    if program.face == "blocking":
        return lambda: run_blocking(program, uri)
    return OnLoop(program, uri).run


def main(seed: int, cases: int, directory: Path) -> int:
    """Run the cases of a seed; the number that failed is the exit code."""
    failed = 0
    for number in range(cases):
        case = directory / str(number)
        case.mkdir()
        if reports := run_case(seed * 1_000_003 + number, case):
            failed += 1
            print(f"case {number} of seed {seed}:", *reports, sep="\n", flush=True)
    return failed


def sweep(seed: int, count: int) -> Sequence[str]:
    """The cases of a seed; see ``tests.fuzz.soak``."""
    cases = max(1, count // FRAMES_OF_A_CASE)
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "tests.edge.random_endings", str(seed), str(cases)]
        done = subprocess.run([*command, directory], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == 0 and not done.stderr:
        return []
    return [f"{' '.join(command)} DIRECTORY:\n{done.stdout}{done.stderr}"]


if __name__ == "__main__":
    try:
        failures = main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
    except ForkedError as fork:
        task = fork.task
    else:
        sys.exit(min(failures, 100))
    task()
