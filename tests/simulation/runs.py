"""Many worlds, on one process or several, added up.

Inside: ``Tally``, playing a range of seeds, looking for a known bug. Not inside: one world (``world``), the
command line (``__main__``).
Always: what a seed does depends on nothing but the seed: neither on the process nor on what was played
before it.
"""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext

import attrs

from tests.simulation.faults import Fault, enabled
from tests.simulation.known_bugs import KNOWN_BUGS, KnownBug
from tests.simulation.shape import Shape
from tests.simulation.world import Outcome, play

KNOWN_BUG_SEEDS = 300
SEEDS_PER_TASK = 20


@attrs.frozen
class Setting:
    """What all worlds of a run have in common."""

    switches: Mapping[str, bool] = attrs.field(factory=dict)
    bookies: int | None = None
    bug_name: str | None = None

    @property
    def bug(self) -> KnownBug | None:
        return None if self.bug_name is None else KNOWN_BUGS[self.bug_name]

    def patched(self) -> AbstractContextManager[None]:
        """The known bug is there, if one is to be."""
        return nullcontext() if self.bug is None else self.bug.patched()

    def shape(self, seed: int) -> Shape:
        return Shape.draw(seed, enabled(self.switches), bookies=self.bookies)

    def play(self, shape: Shape, *, plan: tuple[Fault, ...] | None = None, keep: bool = False) -> Outcome:
        """One world; the known bug must have been put back (``patched``)."""
        prepare = None if self.bug is None else self.bug.prepare
        return play(shape.seed, shape=shape, plan=plan, switches=self.switches, keep=keep, prepare=prepare)


@attrs.define
class Tally:
    """What came of many worlds."""

    worlds: int = 0
    virtual_s: float = 0.0
    cpu_s: float = 0.0
    confirmed: int = 0
    counts: Counter[str] = attrs.field(factory=Counter)
    failed: list[tuple[int, str]] = attrs.field(factory=list)  # seed, violation

    def add(self, outcome: Outcome) -> None:
        self.worlds += 1
        self.virtual_s += outcome.virtual_s
        self.cpu_s += outcome.cpu_s
        self.confirmed += outcome.confirmed
        self.counts.update(outcome.counts)
        if outcome.violation is not None:
            self.failed.append((outcome.seed, outcome.violation))

    def merge(self, other: Tally) -> None:
        self.worlds += other.worlds
        self.virtual_s += other.virtual_s
        self.cpu_s += other.cpu_s
        self.confirmed += other.confirmed
        self.counts.update(other.counts)
        self.failed += other.failed

    @property
    def factor(self) -> float:
        """So many times faster than real time, on one core: virtual time by CPU time."""
        return self.virtual_s / max(self.cpu_s, 1e-9)


def play_seeds(setting: Setting, seeds: Iterable[int]) -> Tally:
    """Play these worlds here."""
    tally = Tally()
    with setting.patched():
        for seed in seeds:
            tally.add(setting.play(setting.shape(seed)))
    return tally


def play_on(
    jobs: int, setting: Setting, seeds: Iterable[int], told: Callable[[Tally], None] = lambda tally: None
) -> Tally:
    """Play these worlds on so many processes. ``told`` is called now and then with what there is so far."""
    whole = Tally()
    tasks = _tasks(seeds)
    if jobs == 1:
        for task in tasks:
            whole.merge(play_seeds(setting, task))
            told(whole)
        return whole
    with _pool(jobs) as pool:
        for tally in pool.map(play_seeds, *zip(*((setting, task) for task in tasks), strict=True)):
            whole.merge(tally)
            told(whole)
    return whole


def _pool(jobs: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))


def _tasks(seeds: Iterable[int]) -> Iterator[list[int]]:
    task: list[int] = []
    for seed in seeds:
        task.append(seed)
        if len(task) == SEEDS_PER_TASK:
            yield task
            task = []
    if task:
        yield task


def find_known_bug(name: str, seeds_max: int = KNOWN_BUG_SEEDS) -> tuple[int, str] | None:
    """The first seed in which one of the checkers that should see this bug does, and what it says.

    None if none does. Other checkers may see other things the bug does to a world: they do not count.
    """
    setting = Setting(bug_name=name)
    bug = KNOWN_BUGS[name]
    with bug.patched():
        for seed in range(seeds_max):
            violation = setting.play(setting.shape(seed)).violation
            if violation is not None and violation.partition(":")[0] in bug.seen_by:
                return seed, violation
    return None


def find_known_bugs(
    jobs: int, names: Sequence[str], seeds_max: int = KNOWN_BUG_SEEDS
) -> Iterator[tuple[str, tuple[int, str] | None]]:
    """Look for each; yield its name and what ``find_known_bug`` found."""
    if jobs == 1:
        for name in names:
            yield name, find_known_bug(name, seeds_max)
        return
    with _pool(jobs) as pool:
        yield from zip(names, pool.map(find_known_bug, names, [seeds_max] * len(names)), strict=True)
