"""Many worlds, in one process or several, and their sums.

Inside: ``Tally``, playing a range of seeds, looking for a known bug. Not inside: one world (``world``), the
command line (``__main__``).
Always: a world depends on its seed alone, not on the process or on the worlds played before it.
"""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import attrs

from tests.simulation.faults import KINDS, Fault, enabled
from tests.simulation.healing.known_bugs import HEALING_BUGS
from tests.simulation.healing.world import HealWorld
from tests.simulation.known_bugs import KNOWN_BUGS, KnownBug
from tests.simulation.playing import Outcome, play
from tests.simulation.shape import Shape
from tests.simulation.streams.known_bugs import STREAM_BUGS
from tests.simulation.streams.shape import EXCUSED
from tests.simulation.streams.world import StreamWorld
from tests.simulation.world import World

KNOWN_BUG_SEEDS = 300
SEEDS_PER_TASK = 20


@attrs.frozen
class Setting:
    """The options that all worlds of one command share."""

    switches: Mapping[str, bool] = attrs.field(factory=dict)
    bookies: int | None = None
    bug_name: str | None = None
    streams: bool = False  # worlds with logs, in place of worlds with ledgers
    healing: bool = False  # worlds with auto-recovery

    @property
    def world_type(self) -> type[World]:
        return HealWorld if self.healing else StreamWorld if self.streams else World

    @property
    def bugs(self) -> Mapping[str, KnownBug]:
        """The known bugs that such worlds look for."""
        return HEALING_BUGS if self.healing else STREAM_BUGS if self.streams else KNOWN_BUGS

    @property
    def bug(self) -> KnownBug | None:
        return None if self.bug_name is None else self.bugs[self.bug_name]

    def patched(self) -> AbstractContextManager[None]:
        """A context in which the known bug, if any, is put back."""
        return nullcontext() if self.bug is None else self.bug.patched()

    def shape(self, seed: int) -> Shape:
        shape = self.world_type.draw_shape(seed, enabled(self._all_switches()), bookies=self.bookies)
        values: dict[str, Any] = {} if self.bug is None else dict(self.bug.shape)
        return attrs.evolve(shape, **values)

    def play(self, shape: Shape, *, plan: tuple[Fault, ...] | None = None, keep: bool = False) -> Outcome:
        """Play one world. Call it inside ``patched``."""
        prepare = None if self.bug is None else self.bug.prepare
        return play(
            shape.seed,
            shape=shape,
            plan=plan,
            switches=self._all_switches(),
            keep=keep,
            prepare=prepare,
            world_type=self.world_type,
        )

    def _all_switches(self) -> dict[str, bool]:
        switches = {} if self.bug is None else dict(self.bug.switches)
        if self.healing:
            switches |= {name: True for name, kind in KINDS.items() if kind.group == "healing"}
        if self.streams:
            switches |= dict.fromkeys(EXCUSED, False)
        return switches | dict(self.switches)


@attrs.define
class Tally:
    """The sums over many worlds."""

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
        """How many times faster than real time one core is: virtual time divided by CPU time."""
        return self.virtual_s / max(self.cpu_s, 1e-9)


def play_seeds(setting: Setting, seeds: Iterable[int]) -> Tally:
    """Play these worlds in this process."""
    tally = Tally()
    with setting.patched():
        for seed in seeds:
            tally.add(setting.play(setting.shape(seed)))
    return tally


def play_on(
    jobs: int,
    setting: Setting,
    seeds: Iterable[int],
    on_progress: Callable[[Tally], None] = lambda tally: None,
) -> Tally:
    """Play these worlds in ``jobs`` processes; ``on_progress`` gets the sums so far, task by task."""
    whole = Tally()
    tasks = _tasks(seeds)
    if jobs == 1:
        for task in tasks:
            whole.merge(play_seeds(setting, task))
            on_progress(whole)
        return whole
    with _pool(jobs) as pool:
        for tally in pool.map(play_seeds, *zip(*((setting, task) for task in tasks), strict=True)):
            whole.merge(tally)
            on_progress(whole)
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


def find_known_bug(
    name: str,
    seeds_max: int = KNOWN_BUG_SEEDS,
    *,
    first: int = 0,
    streams: bool = False,
    healing: bool = False,
) -> tuple[int, str] | None:
    """The first seed, from ``first`` on, in which a ``seen_by`` checker of the bug reports it; the violation.

    None if no seed does. Reports of other checkers do not count: the bug may have other effects, too.
    """
    setting = Setting(bug_name=name, streams=streams, healing=healing)
    bug = setting.bugs[name]
    with bug.patched():
        for seed in range(first, first + seeds_max):
            violation = setting.play(setting.shape(seed)).violation
            if violation is not None and violation.partition(":")[0] in bug.seen_by:
                return seed, violation
    return None


def find_known_bugs(
    jobs: int,
    names: Sequence[str],
    seeds_max: int = KNOWN_BUG_SEEDS,
    *,
    streams: bool = False,
    healing: bool = False,
) -> Iterator[tuple[str, tuple[int, str] | None]]:
    """Look for each bug; yield its name and the result of ``find_known_bug``."""
    find = partial(find_known_bug, seeds_max=seeds_max, streams=streams, healing=healing)
    if jobs == 1:
        for name in names:
            yield name, find(name)
        return
    with _pool(jobs) as pool:
        yield from zip(names, pool.map(find, names), strict=True)
