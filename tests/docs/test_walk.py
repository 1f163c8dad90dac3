"""``docs/walk.md`` shows the modules that a record passes: a real record is followed and compared."""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path
from types import FrameType

import pytest
import trio

import dlog
from tests.places import ROOT

PAGE = ROOT / "docs" / "walk.md"
CALLS_MAX, MODULES_MAX = 130, 35  # of one lone append, in all threads
# On a busy machine most of them meet a timer, or a task that runs now and then.
WARM_UP, APPENDS_MAX = 20, 1_000
HAND_OVERS_MAX = 16  # from the application's call to the sync, both ends included

MARK = b"the record that is followed"
SOCKET = "ledger/transport/pipe.py"  # stands in for one inside a process
TABLES = {"Down": 3, "Back": 3}


def table(heading: str, number: int = 1) -> list[str]:
    """The modules of a table below a heading, in order."""
    section = PAGE.read_text("utf-8").partition(f"## {heading}")[2].partition("\n## ")[0]
    tables = re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE)
    return re.findall(r"^\| (?:\d+ \| )?`([\w/]+\.py)`", tables[number - 1], re.MULTILINE)


def holds(value: object) -> bool:
    """True if the bytes of the record are in a value, or in a sequence of values."""
    if isinstance(value, bytes | bytearray | memoryview):
        return MARK in bytes(value)
    return isinstance(value, list | tuple) and any(map(holds, value))


class Follower:
    """Notes the modules whose functions are called until the journal syncs, and those given the record."""

    def __init__(self) -> None:
        self.called: set[str] = set()
        self.given: set[str] = set()
        self.is_on = False

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if not self.is_on:
            return
        if event == "call":
            name = frame.f_code.co_filename
            if name.startswith(f"{ROOT}/") and "site-packages" not in name:
                module = Path(name).relative_to(ROOT).as_posix()
                if not module.startswith("tests/"):
                    self.called.add(module)
                    if any(map(holds, list(frame.f_locals.values()))):
                        self.given.add(module)
        elif event == "c_call" and getattr(argument, "__name__", "") in ("fdatasync", "pwritev"):
            self.is_on = "journal" not in threading.current_thread().name


@pytest.mark.slow
def test_an_appended_record_passes_the_modules_of_the_walk_and_no_other(tmp_path: Path) -> None:
    follower = Follower()

    async def main() -> None:
        async with (
            dlog.open_namespace(f"file://{tmp_path}") as namespace,
            namespace.open_writer("orders", create=True) as log,
        ):
            await log.append(b"the segment is open now, the connection is made")
            await log.flush()
            follower.is_on = True
            await log.append(MARK)
            follower.is_on = False

    before = sys.getprofile(), threading.getprofile()
    threading.setprofile(follower)
    sys.setprofile(follower)
    try:
        trio.run(main)
    finally:
        sys.setprofile(before[0])
        threading.setprofile(before[1])
    hand_overs = table("Down")
    assert len(hand_overs) <= HAND_OVERS_MAX
    assert set(hand_overs) <= follower.called, "the page names a module that the record does not pass"
    assert follower.given <= {*hand_overs, *table("Down", 2), SOCKET}, "the page leaves a module out"


def is_short(calls: list[str]) -> bool:
    return len(calls) <= CALLS_MAX and len(set(calls)) <= MODULES_MAX


class Counter:
    """Notes the module of each call of a function of ours, in all threads."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(f"{ROOT}/") and "site-packages" not in name:
            module = name.removeprefix(f"{ROOT}/")
            if not module.startswith("tests/"):
                self.calls.append(module)


@pytest.mark.slow
def test_a_lone_append_makes_few_calls_in_few_modules_and_the_page_names_each_of_them(tmp_path: Path) -> None:
    counter, appends = Counter(), list[list[str]]()

    async def main() -> None:
        async with (
            dlog.open_namespace(f"file://{tmp_path}") as namespace,
            namespace.open_writer("orders", create=True) as log,
        ):
            for _ in range(APPENDS_MAX):
                counter.calls = []
                await log.append(b"x" * 100)
                appends.append(counter.calls)
                counter.calls = []
                if len(appends) > WARM_UP and is_short(appends[-1]):
                    break

    before = sys.getprofile(), threading.getprofile()
    threading.setprofile(counter)
    sys.setprofile(counter)
    try:
        trio.run(main)
    finally:
        sys.setprofile(before[0])
        threading.setprofile(before[1])
    calls = appends[-1]
    assert is_short(calls), (len(calls), sorted(set(calls)))
    assert set(calls) <= set(re.findall(r"[\w/]+\.py", PAGE.read_text("utf-8"))), (
        "the page leaves a module out"
    )


@pytest.mark.parametrize("heading", ["Down", "Up", "Later", "Back"])
def test_the_walk_names_modules_that_exist(heading: str) -> None:
    modules = [module for number in range(1, TABLES.get(heading, 1) + 1) for module in table(heading, number)]
    assert modules
    assert [module for module in modules if not (ROOT / module).exists()] == []
