"""What can go wrong, each on its own switch, and how much of it the system promises to survive.

Inside: the kinds (``KINDS``), a plan of faults drawn from a generator (``draw_plan``), the promise
(``Promise``). Not inside: doing it (``injector``).
Always: a plan is a list of values: it can be printed, written to a file, and made smaller.

**The promise.** Entries are durable on an ack quorum (Qa of Qw bookies). Crashes, power cuts, partitions,
pauses, full disks, I/O errors, lost sessions may hit anybody, at any time, all at once: the system may stand
still, and nothing acknowledged is lost. *Losing data that was synced* is different. At most Qa - 1 machines
of a world may lose data, and it must be visible to the machine that lost some: its cookie is gone, its
journal breaks off before its end, an entry's digest does not hold, its number in the metadata store is ahead
of that on its disk. Then it does not start, or answers "cannot read", or has the ledgers concerned in limbo
until it has copied what it lacks; and Qa - 1 bookies without an answer keep nobody from deciding.

Beyond the promise, and therefore left out:

- an old copy of a disk that is younger than the last raise of its number (``bookie.incarnation``): nobody can
  tell. It denies entries it acknowledged, and a recovery believes it (apache/bookkeeper#2612).
- a bit flip in the last group of a journal, followed by a power cut, looks like a torn tail: what was
  acknowledged with it is lost in silence, and so the ledgers of that time are excused (``World.excuse``). It
  is done all the same, for what must hold even then.

Source: lessons 2.4; Jepsen's mixes, redrawn every few seconds, none of them for a quarter of the time.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence

import attrs

from tests.simulation.platter import IN_PART, OUT_OF_ORDER, TORN, WHOLLY

PERIOD_S = 6.0


@attrs.frozen
class Kind:
    """One switch."""

    group: str
    weight: float
    seconds: tuple[float, float]  # how long it lasts
    targets: str  # bookie, client, any, none
    on: bool = True


KINDS: Mapping[str, Kind] = {
    # network
    "slow link": Kind("network", 1.5, (0.5, 5), "any"),
    "broken connection": Kind("network", 3, (0, 0), "any"),
    "flaky connections": Kind("network", 2.5, (0.5, 5), "any"),
    "one-way partition": Kind("network", 2, (0.3, 5), "any"),
    "two-way partition": Kind("network", 1.5, (0.3, 6), "any"),
    "partition from the store": Kind("network", 1, (0.3, 6), "any"),
    "swizzle": Kind("network", 1, (1, 4), "none"),
    # processes
    "crash at any await": Kind("process", 2.5, (0.1, 6), "bookie"),
    "client crash at any await": Kind("process", 1.5, (0, 0), "client"),
    "orderly restart": Kind("process", 1, (0.1, 3), "bookie"),
    "pause": Kind("process", 1, (0.3, 6), "bookie"),
    "sleeping writer": Kind("process", 1.5, (2, 8), "client"),
    "clock jump": Kind("process", 0.7, (0, 0), "any"),
    "cancellation": Kind("process", 2.5, (0, 0), "client"),
    # disks
    "power cut": Kind("disk", 1, (0.1, 6), "bookie"),
    "power cut at a disk step": Kind("disk", 8, (0.1, 6), "bookie"),
    "power cut everywhere": Kind("disk", 0.6, (0.2, 3), "none"),
    "kill at a disk step": Kind("disk", 1.5, (0.1, 4), "bookie"),
    "I/O error on read": Kind("disk", 1, (0.5, 4), "bookie"),
    "I/O error on write": Kind("disk", 0.7, (0.5, 3), "bookie"),
    "I/O error on sync": Kind("disk", 0.7, (0.5, 3), "bookie"),
    "disk full": Kind("disk", 1, (1, 6), "bookie"),
    "read-only bookie": Kind("disk", 2, (0.3, 4), "bookie"),
    "refused adds": Kind("disk", 1, (0.3, 4), "bookie"),
    "slow disk": Kind("disk", 1, (1, 5), "bookie"),
    "bit flip": Kind("disk", 4, (0, 0), "bookie"),
    "bit flip in the newest journal": Kind("disk", 0.3, (0, 0), "bookie"),
    "bit flip in lastMark": Kind("disk", 0.3, (0, 0), "bookie"),
    "bit flip in the index": Kind("disk", 0.4, (0, 0), "bookie"),
    "wiped disk": Kind("disk", 3, (0.1, 3), "bookie"),
    "old copy": Kind("disk", 2, (0.5, 5), "bookie"),
    "replaced bookie": Kind("membership", 2, (0.1, 3), "bookie"),
    # the metadata store
    "session expiry": Kind("metadata", 1, (0, 0), "any"),
    "store request lost": Kind("metadata", 1, (0.5, 3), "none"),
    "store answer lost": Kind("metadata", 1, (0.5, 3), "none"),
    "slow store": Kind("metadata", 2, (0.5, 5), "none"),
    "stale reads": Kind("metadata", 1.5, (1, 6), "none"),
    "lost watches": Kind("metadata", 2, (1, 6), "none"),
    # all the time
    "delay": Kind("network", 0, (0, 0), "none"),
    "reorder": Kind("network", 0, (0, 0), "none"),  # across connections of one link
    WHOLLY: Kind("disk", 0, (0, 0), "none"),  # by a power cut, like the next two
    IN_PART: Kind("disk", 0, (0, 0), "none"),
    OUT_OF_ORDER: Kind("disk", 0, (0, 0), "none"),
    TORN: Kind("disk", 0, (0, 0), "none"),
    "second writer": Kind("client", 0, (0, 0), "none"),
}

DATA_LOSING = frozenset(
    {
        "bit flip",
        "bit flip in the newest journal",
        "bit flip in lastMark",
        "bit flip in the index",
        "wiped disk",
        "old copy",
        "replaced bookie",
    }
)


@attrs.frozen
class Fault:
    """One thing that goes wrong."""

    at_s: float
    kind: str
    target: str  # a node's name, or empty
    seconds: float
    number: int  # decides its details
    step: int = 0  # of the target, at which it strikes; 0: drawn from the number

    def __str__(self) -> str:
        return f"{self.at_s:7.3f} s  {self.kind} {self.target} for {self.seconds:.2f} s (#{self.number})"


class Promise:
    """Who may lose data: at most ``ack_quorum - 1`` machines in the life of a world."""

    def __init__(self, ack_quorum: int) -> None:
        self._damaged_max = ack_quorum - 1

    def allows(self, damaged: Collection[str], name: str) -> bool:
        """Whether this machine may lose synced data, given those that did."""
        return name in damaged or len(damaged) < self._damaged_max


def enabled(switches: Mapping[str, bool]) -> frozenset[str]:
    """The kinds that are on: their defaults, but for the switches given. ``ValueError`` for unknown names."""
    unknown = sorted(set(switches) - set(KINDS))
    if unknown:
        raise ValueError(f"no fault is called {unknown[0]!r}; there are: {', '.join(KINDS)}")
    return frozenset(name for name, kind in KINDS.items() if switches.get(name, kind.on))


def draw_plan(
    rng: random.Random,
    *,
    horizon_s: float,
    bookies: Sequence[str],
    clients: Sequence[str],
    kinds: Collection[str],
    is_light: bool = False,
) -> tuple[Fault, ...]:
    """Faults for a world, period by period: a quarter of the periods has none, the others a mix of a few.

    Half of the worlds know a few kinds only, and those often: rare things need several of one kind.
    ``is_light``: only now and then something, for worlds that are stormy anyway.
    """
    names = sorted(name for name in kinds if KINDS[name].weight > 0)
    is_swarm = not is_light and rng.random() < 0.5
    if is_swarm and names:
        names = sorted(set(rng.choices(names, [KINDS[name].weight for name in names], k=rng.randint(2, 5))))
    faults: list[Fault] = []
    start_s = 0.5
    while start_s < horizon_s and names:
        period_s = min(PERIOD_S, horizon_s - start_s)
        if rng.random() >= 0.25:
            mix = rng.choices(names, [KINDS[name].weight for name in names], k=rng.randint(1, 4))
            for _ in range(
                rng.randint(0, 1) if is_light else rng.randint(3, 12) if is_swarm else rng.randint(1, 6)
            ):
                name = rng.choice(mix)
                kind = KINDS[name]
                targets = {"bookie": bookies, "client": clients, "any": [*bookies, *clients]}.get(
                    kind.targets
                )
                faults.append(
                    Fault(
                        round(start_s + rng.random() * period_s, 4),
                        name,
                        rng.choice(targets) if targets else "",
                        round(rng.uniform(*kind.seconds), 3),
                        rng.randrange(1 << 32),
                    )
                )
        start_s += PERIOD_S
    return tuple(sorted(faults, key=lambda fault: (fault.at_s, fault.kind, fault.number)))
