"""Apache's own tests, unchanged, with our bookies in place of those that their test base starts.

``apache_tests.toml`` lists the classes, how many tests of each pass, and why the others cannot or need not.

::

    python -m tests.interop.apache_tests                            # all listed classes
    python -m tests.interop.apache_tests client.BookKeeperTest      # these
    python -m tests.interop.apache_tests --resume                   # continue a run that was interrupted

Inside: the list, running a class in a JVM of its own, verdicts, the report, the command line. Not inside:
what puts our bookies into the test base (``java/apache_tests``), jars (``jars``).
Always: a class that takes longer than its limit is ended, and its processes with it; the test that ran then
has failed. After each class its outcomes are in the file of results.

Exit codes: 0 all went as listed, 1 something did not, 2 the command line is invalid.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tomllib
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import attrs

from tests.interop.jars import LOGGING, class_path_of_tests, find_program
from tests.places import ROOT

LIST = Path(__file__).with_suffix(".toml")
RESULTS = ROOT / ".cache" / "apache-tests"
PACKAGE = "org.apache.bookkeeper"
VERSION = "4.17.3"
LIMIT_S = 1200.0
OPTIONS = ("-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true")
_SHOWN_CHARACTERS = 3000

Event = Literal["began", "passed", "failed", "skipped"]
Verdict = Literal["passed", "failed", "not applicable", "missing"]


@attrs.frozen
class ListedClass:
    """The entry of a class of tests in the list."""

    name: str  # below PACKAGE
    passes: int  # how many of its tests pass
    # Name of a test and key of the reason; a name without parameters stands for all of them.
    others: Mapping[str, str] = attrs.field(factory=dict)

    def reason_key(self, test: str) -> str | None:
        """Why the test does not pass."""
        return self.others.get(test, self.others.get(test.partition("[")[0]))


@attrs.frozen
class TestList:
    """The content of ``apache_tests.toml``."""

    reasons: Mapping[str, str]
    classes: Mapping[str, ListedClass]
    selection: Mapping[str, Sequence[str]]  # of classes, the tests that the interop tests run


@attrs.frozen
class Outcome:
    """What one test did; the last event of a test that did not end is ``began``."""

    test: str  # empty: a failure of the class as a whole
    event: Event
    seconds: float = 0.0
    bookies: int = 0  # of ours that the test started
    inside: Sequence[str] = ()  # what it called of a Java bookie's objects that a process does not have
    failure: str = ""


@attrs.frozen
class Judged:
    """An outcome beside the list."""

    outcome: Outcome
    verdict: Verdict
    reason: str = ""


def read_list() -> TestList:
    """Read ``apache_tests.toml``."""
    document = tomllib.loads(LIST.read_text("utf-8"))
    classes = {
        name: ListedClass(name, entry.get("passes", 0), entry.get("others", {}))
        for name, entry in document["classes"].items()
    }
    return TestList(document["reasons"], classes, document["selection"])


def run_class(
    version: str,
    name: str,
    directory: Path,
    *,
    only: Sequence[str] = (),
    without: Iterable[str] = (),
    limit_s: float = LIMIT_S,
) -> list[Outcome]:
    """Run the tests of a class in a new JVM; return their outcomes in order.

    Args:
        directory: For configurations, logs and temporary files; it must be empty.
        only: The names of the tests to run; without one, all.
        without: Tests to leave out.
    """
    temporary, resources = directory / "temporary", directory / "src" / "test" / "resources"
    temporary.mkdir()
    class_path = class_path_of_tests(version)
    _unpack_resources(class_path, resources)
    command = [find_program("java"), *OPTIONS, f"-Djava.io.tmpdir={temporary}"]
    command += [f"-Dlog4j.configurationFile={LOGGING}", "-cp", f"{resources}:{class_path}"]
    command += [f"{PACKAGE}.test.RunTests", str(directory), f"{PACKAGE}.{name}"]
    command += [",".join(only), ",".join(without), sys.executable, "-m", "tests.interop.bookie_forks"]
    with (directory / "output.log").open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=directory,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(limit_s)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # also bookies of a JVM that did not end them
        process.wait()
        shutil.rmtree(temporary, ignore_errors=True)
    return outcomes_of(directory)


def _unpack_resources(class_path: str, directory: Path) -> None:
    """Unpack what is no class in the jars of tests: the tests open keys and certificates as files."""
    for jar in sorted(Path(class_path.rpartition(":")[2]).parent.glob("bookkeeper-server-*-tests.jar")):
        with zipfile.ZipFile(jar) as archive:
            names = [name for name in archive.namelist() if not name.endswith((".class", "/"))]
            for name in names:
                if not name.startswith("META-INF/"):
                    Path(archive.extract(name, directory)).chmod(0o600)  # our bookies refuse open secrets


def outcomes_of(directory: Path) -> list[Outcome]:
    """Read what a JVM wrote into its directory."""
    path = directory / "events.jsonl"
    if not path.exists():
        tail = (directory / "output.log").read_text("utf-8", "replace")[-_SHOWN_CHARACTERS:]
        return [Outcome("", "failed", failure=f"the JVM ran no test: {tail}")]
    found: dict[str, Outcome] = {}
    for line in path.read_text("utf-8").splitlines():
        outcome = Outcome(**json.loads(line))
        found[outcome.test] = outcome  # an end replaces the beginning
    return list(found.values())


def judge(listed: ListedClass, reasons: Mapping[str, str], outcomes: Sequence[Outcome]) -> list[Judged]:
    """Compare outcomes with the list; tests that did not run are added."""
    judged = [_judge_one(listed, reasons, outcome) for outcome in outcomes]
    ran = {name for outcome in outcomes for name in (outcome.test, outcome.test.partition("[")[0])}
    judged += [
        Judged(Outcome(test, "skipped"), "not applicable", reasons[key])
        for test, key in listed.others.items()
        if test not in ran
    ]
    missing = listed.passes - sum(each.verdict == "passed" for each in judged)
    missing -= sum(each.verdict == "failed" for each in judged)
    if missing > 0:
        judged.append(Judged(Outcome(f"({missing} tests)", "skipped"), "missing", "they did not run"))
    return judged


def _judge_one(listed: ListedClass, reasons: Mapping[str, str], outcome: Outcome) -> Judged:
    if outcome.event == "passed":
        return Judged(outcome, "passed")
    if (key := listed.reason_key(outcome.test)) is not None:
        return Judged(outcome, "not applicable", reasons[key])
    if outcome.event == "skipped":
        return Judged(outcome, "not applicable", "the class itself leaves it out")
    return Judged(outcome, "failed", "it did not end" if outcome.event == "began" else _first_line(outcome))


def _first_line(outcome: Outcome) -> str:
    inside = f" [inside: {', '.join(outcome.inside)}]" if outcome.inside else ""
    return outcome.failure.partition("\n")[0][:200] + inside


def table(results: Mapping[str, Sequence[Judged]]) -> str:
    """One line for each test that did not pass, then one for each class, then the sums."""
    lines = []
    counts: Counter[Verdict] = Counter()
    for name, judged in results.items():
        of_class = Counter(each.verdict for each in judged)
        counts += of_class
        seconds = sum(each.outcome.seconds for each in judged)
        parts = ", ".join(f"{number} {verdict}" for verdict, number in sorted(of_class.items()))
        lines.append(f"{name:52} {seconds:6.0f} s  {parts}")
        lines += [
            f"    {each.outcome.test}: {each.verdict}: {each.reason}"
            for each in judged
            if each.verdict != "passed"
        ]
    sums = ", ".join(f"{number} {verdict}" for verdict, number in sorted(counts.items()))
    bookies = sum(each.outcome.bookies for judged in results.values() for each in judged)
    return "\n".join([*lines, f"{len(results)} classes: {sums}; {bookies} bookies of ours started"])


def is_good(results: Mapping[str, Sequence[Judged]]) -> bool:
    """True if no test failed or is missing."""
    return not any(each.verdict in ("failed", "missing") for judged in results.values() for each in judged)


def _read_results(path: Path) -> dict[str, list[Outcome]]:
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return {line["class"]: [Outcome(**each) for each in line["outcomes"]] for line in lines}


def _run(options: argparse.Namespace, tests: TestList) -> dict[str, list[Outcome]]:
    home = options.results / options.version
    home.mkdir(parents=True, exist_ok=True)
    path = home / "results.jsonl"
    found = _read_results(path) if options.resume else {}
    if not options.resume:
        path.unlink(missing_ok=True)
    for name in options.classes or tests.classes:
        if name in found:
            continue
        directory = home / name
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        listed = tests.classes.get(name, ListedClass(name, 0))
        without = () if options.all else tuple(listed.others)
        outcomes = run_class(options.version, name, directory, without=without, limit_s=options.limit)
        found[name] = outcomes
        with path.open("a", encoding="utf-8") as file:
            file.write(
                json.dumps({"class": name, "outcomes": [attrs.asdict(each) for each in outcomes]}) + "\n"
            )
        print(table({name: judge(listed, tests.reasons, outcomes)}).rpartition("\n")[0], flush=True)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    options = _parser().parse_args(arguments)
    tests = read_list()
    # A run that gets SIGTERM must still end the processes that it started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        found = _run(options, tests)
    except KeyboardInterrupt:
        print("interrupted; --resume continues", file=sys.stderr)
        return 1
    results = {
        name: judge(tests.classes.get(name, ListedClass(name, 0)), tests.reasons, outcomes)
        for name, outcomes in found.items()
    }
    print("\n" + table(results))
    return 0 if is_good(results) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.interop.apache_tests", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("classes", nargs="*", metavar="CLASS", help=f"below {PACKAGE} (default: all listed)")
    parser.add_argument("--version", default=VERSION, help=f"the release (default {VERSION})")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds that a class may take")
    parser.add_argument("--all", action="store_true", help="run also the tests listed as not applicable")
    parser.add_argument("--resume", action="store_true", help="leave out the classes that have results")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the directory of logs and results")
    return parser


if __name__ == "__main__":
    sys.exit(main())
