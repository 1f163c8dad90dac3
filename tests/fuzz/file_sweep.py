"""``python -m tests.fuzz.file_sweep``: each file of a directory replaced by sixteen bad values.

Inside: the values, the cases, the report of a failure. Not inside: the directories (``file_worlds``).
Always: what is opened works, or ends with an error of ours that names the file or its directory. A record or
entry that is read has the bytes that were written. After a start that was refused, the good file in its place
brings everything back: no other file was harmed. One seed gives the same cases again. A record that is gone
is no failure of a start that succeeds: the command prints the cases that lose some (``--lost``).

Exit codes: 0 nothing failed, 1 a case failed.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import attrs
import trio

from bookie.errors import BookieServerError
from dlog.errors import DLogError
from ledger.causes import cause_of
from ledger.errors import LedgerError
from ledger.metadata_store.errors import MetadataError
from tests.fuzz.file_worlds import WORLDS, Outcome, World
from tests.fuzz.frame_world import errors_in, line_of

OURS = (BookieServerError, MetadataError, LedgerError, DLogError)
HANG_S = 60.0  # a guard against a hang, on any machine
_BYTES_MAX = 65_536  # of a bad value

Content = Callable[[bytes, random.Random], bytes]
CONTENTS: Mapping[str, Content] = {
    "empty": lambda old, rng: b"",
    "zeros": lambda old, rng: bytes(max(1, len(old))),
    "ones": lambda old, rng: b"\xff" * max(1, len(old)),
    "random": lambda old, rng: rng.randbytes(max(1, len(old))),
    "truncated": lambda old, rng: old[: len(old) // 2],
    "a valid header, then garbage": lambda old, rng: old[:24] + rng.randbytes(max(8, len(old) - 24)),
    "twice": lambda old, rng: old + old,
    "not UTF-8": lambda old, rng: b"\xff\xfe\x80 \xc0\n",
    "-1": lambda old, rng: b"-1\n",
    "2^63": lambda old, rng: b"9223372036854775808\n",
    "a huge number": lambda old, rng: b"9" * 400 + b"\n",
    "a number of other digits": lambda old, rng: "\u00b2\u0663".encode() + b"\n",
}
KINDS = (*CONTENTS, "missing", "a directory", "a symlink to nowhere", "a symlink to itself")


@attrs.frozen
class Case:
    """One file, one bad value, before the start or under the live process."""

    number: int
    world: str
    file: str
    kind: str
    is_live: bool

    def __str__(self) -> str:
        return f"{self.world}: {self.file} is {self.kind}, {'live' if self.is_live else 'before the start'}"


def replace(path: Path, kind: str, rng: random.Random) -> None:
    """Put the bad value in the place of the file, as one step: what has the old file open keeps it."""
    new = path.with_name(path.name + ".bad")
    old = path.read_bytes()[:_BYTES_MAX] if path.is_file() else b""
    if kind == "missing":
        path.unlink(missing_ok=True)
    elif kind == "a directory":
        path.unlink(missing_ok=True)
        path.mkdir()
    elif kind == "a symlink to nowhere":
        new.symlink_to(path.parent / "nowhere")
        os.replace(new, path)
    elif kind == "a symlink to itself":
        path.unlink(missing_ok=True)
        path.symlink_to(path)
    else:
        new.write_bytes(CONTENTS[kind](old, rng))
        os.replace(new, path)


class Templates:
    """The directories that the cases copy, made once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.worlds: dict[str, World] = {}
        self.files: dict[str, list[str]] = {}
        for name, make in WORLDS.items():
            world = self.worlds[name] = make()
            home = directory / "live" / name  # the same for all cases: a cookie has its path
            home.mkdir(parents=True)
            trio.run(world.create, home)
            template = directory / name
            home.rename(template)
            self.files[name] = sorted(
                str(path.relative_to(template)) for path in template.rglob("*") if path.is_file()
            )

    def cases(self) -> list[Case]:
        """All, in a fixed order."""
        every = itertools.product(
            ((name, file) for name, files in self.files.items() for file in files), KINDS, (False, True)
        )
        return [
            Case(number, name, file, kind, is_live)
            for number, ((name, file), kind, is_live) in enumerate(every)
        ]

    def run(self, case: Case, seed: int) -> tuple[str | None, Outcome]:
        """Why the case failed, or None; and what became of the records."""
        world, outcome = self.worlds[case.world], Outcome()
        rng = random.Random(f"{seed} {case.number}")
        home = self._directory / "live" / case.world
        shutil.copytree(self._directory / case.world, home)
        path = home / case.file
        try:
            reason = None
            try:
                trio.run(_open, world, home, partial_replace(path, case.kind, rng), case.is_live, outcome)
            except Exception as exc:
                reason = judge(exc, path)
                if reason is None and not case.is_live:
                    reason = self._put_back(case, home)
            return reason or outcome.wrong, outcome
        finally:
            shutil.rmtree(home)

    def _put_back(self, case: Case, home: Path) -> str | None:
        """Use the directory with the good file again, after a refused start; what is missing, or None."""
        path = home / case.file
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        shutil.copy2(self._directory / case.world / case.file, path)
        outcome = Outcome()
        try:
            trio.run(_open, self.worlds[case.world], home, lambda: None, False, outcome)
        except Exception as exc:
            return f"with the good file in its place again: {line_of(exc)}"
        if outcome.lost:
            return f"with the good file in its place again, {outcome.lost} records are gone"
        return outcome.wrong


def partial_replace(path: Path, kind: str, rng: random.Random) -> Callable[[], None]:
    return lambda: replace(path, kind, rng)


async def _open(
    world: World, home: Path, break_file: Callable[[], None], is_live: bool, outcome: Outcome
) -> None:
    with trio.fail_after(HANG_S):
        if is_live:
            await world.use(home, break_file, outcome)
        else:
            break_file()
        await world.use(home, lambda: None, outcome)


def judge(error: BaseException, path: Path) -> str | None:
    """Why this error must not come out, or None."""
    for one in errors_in(error):
        if not isinstance(one, OURS):
            return f"another error than one of ours: {line_of(one)}"
        text = "; ".join(filter(None, (str(one), *map(str, _causes(one)))))
        if path.name not in text and str(path.parent) not in text:
            return f"an error that names neither the file nor its directory: {line_of(one)}"
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    while (cause := cause_of(error)) is not None:
        yield cause
        error = cause


def chosen(cases: Sequence[Case], seed: int, count: int) -> list[Case]:
    """So many cases, each file as often as any other."""
    rng = random.Random(f"{seed} files")
    by_file: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        by_file.setdefault((case.world, case.file), []).append(case)
    groups = list(by_file.values())
    for group in groups:
        rng.shuffle(group)
    rng.shuffle(groups)
    turns = itertools.chain.from_iterable(itertools.zip_longest(*groups))
    return list(itertools.islice((case for case in turns if case is not None), count))


def run(seed: int, count: int, only: int | None = None) -> tuple[list[str], list[str]]:
    """(reports of failures, cases that lose records)."""
    reports, lost = [], []
    with tempfile.TemporaryDirectory(prefix="dlog-files-") as directory:
        templates = Templates(Path(directory))
        cases = templates.cases()
        for case in chosen(cases, seed, count) if only is None else [cases[only]]:
            reason, outcome = templates.run(case, seed)
            if reason is not None:
                reports.append(
                    f"FAILED file_sweep: {case}\n  {reason}\n"
                    f"  replay: python -m tests.fuzz.file_sweep --seed {seed} --case {case.number}"
                )
            if outcome.lost:
                lost.append(f"{case}: {outcome.lost}")
    return reports, lost


def sweep(seed: int, count: int) -> list[str]:
    """Run some cases, one for each hundred of ``count``; the reports of what failed."""
    return run(seed, max(1, count // 100))[0]


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.file_sweep", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100, help="cases to run (default 100)")
    parser.add_argument("--case", type=int, help="only this one")
    parser.add_argument("--lost", action="store_true", help="print the cases that lose records")
    options = parser.parse_args(arguments)
    reports, lost = run(options.seed, options.count, options.case)
    print("\n".join(reports) or "every case passes")
    if options.lost:
        print("\n".join(lost))
    print(f"{len(reports)} failed; in {len(lost)} records are gone")
    return 1 if reports else 0


if __name__ == "__main__":
    sys.exit(main())
