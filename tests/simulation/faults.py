"""The kinds of faults, each with a switch, and the promise: the faults that the system survives.

Inside: the kinds (``KINDS``), a plan of faults drawn from a generator (``draw_plan``), the promise
(``Promise``). Not inside: performing them (``injector``).
Always: a plan is a list of values, so that it can be printed, written to a file and made smaller.

**The promise.** Entries are durable on an ack quorum (Qa of Qw bookies). Crashes, power cuts, partitions,
pauses, full disks, I/O errors and lost sessions may hit all machines, at any time and at once. Then the
system may stop making progress, but no acknowledged entry is lost. *Loss of synced data* is limited: at most
Qa - 1 machines of a world may lose data, and the machine that lost data must be able to detect it. Its cookie
is missing, its journal ends early, an entry's digest is wrong, or its incarnation number in the metadata
store is greater than the one on its disk. Such a machine does not start, or replies "cannot read", or keeps
the affected ledgers in limbo until it has copied its missing entries. Recovery works without the replies of
Qa - 1 bookies.

Two faults are beyond the promise:

- An old copy of a disk that is younger than the last raise of its incarnation number
  (``bookie.identity.incarnation``). The bookie cannot detect the loss. It denies entries it acknowledged, and
  a recovery acts on that (apache/bookkeeper#2612). This fault is left out.
- A bit flip in the last group of a journal, followed by a power cut. It looks like a torn tail, so entries
  acknowledged with that group are lost without notice. This fault is performed; the ledgers of that time are
  excused (``World.excuse``) from all checkers but those that must hold even then.

Source: docs/known-bugs.md 83; Jepsen's mixes of faults: a new mix every few seconds, and no faults for a
quarter of the time.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence

import attrs

from dlog.testing.platter import IN_PART, OUT_OF_ORDER, TORN, WHOLLY

PERIOD_S = 6.0


@attrs.frozen
class Kind:
    """One kind of fault."""

    group: str
    weight: float
    seconds: tuple[float, float]  # the range of its duration
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
    # of worlds of its own: ``test_simulation_full_disks``
    "disk freed in small steps": Kind("disk", 1, (5, 20), "bookie", on=False),
    # the metadata store
    "session expiry": Kind("metadata", 1, (0, 0), "any"),
    "store request lost": Kind("metadata", 1, (0.5, 3), "none"),
    "store reply lost": Kind("metadata", 1, (0.5, 3), "none"),
    "slow store": Kind("metadata", 2, (0.5, 5), "none"),
    "stale reads": Kind("metadata", 1.5, (1, 6), "none"),
    "lost watches": Kind("metadata", 2, (1, 6), "none"),
    # of worlds with auto-recovery only (``healing``)
    "bookie lost for good": Kind("healing", 1, (0, 0), "bookie", on=False),
    "bookie decommissioned": Kind("healing", 1, (0, 0), "bookie", on=False),
    "bookie away": Kind("healing", 1, (5, 14), "bookie", on=False),
    "worker killed at a step": Kind("healing", 1, (0.1, 6), "healer", on=False),
    "worker paused at a step": Kind("healing", 1, (0, 0), "healer", on=False),
    "worker expires at a step": Kind("healing", 1, (0, 0), "healer", on=False),
    "worker cut off at a step": Kind("healing", 1, (0.01, 0.3), "healer", on=False),
    "auditor killed": Kind("healing", 1, (0.1, 6), "none", on=False),
    "writers dead": Kind("healing", 1, (8, 20), "none", on=False),
    "metadata store away": Kind("healing", 1, (0.5, 7), "none", on=False),
    "auto-recovery switched off": Kind("healing", 1, (1, 8), "none", on=False),
    "ledger deleted during its repair": Kind("healing", 1, (0, 0), "none", on=False),
    # all the time
    "delay": Kind("network", 0, (0, 0), "none"),
    "reorder": Kind("network", 0, (0, 0), "none"),  # across connections of one link
    WHOLLY: Kind("disk", 0, (0, 0), "none"),  # by a power cut, like the next two
    IN_PART: Kind("disk", 0, (0, 0), "none"),
    OUT_OF_ORDER: Kind("disk", 0, (0, 0), "none"),
    TORN: Kind("disk", 0, (0, 0), "none"),
    "second writer": Kind("client", 0, (0, 0), "none"),
    "files read by clients": Kind("client", 0, (0, 0), "none"),  # beside the bookies, which compact them
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
    """One fault of a plan."""

    at_s: float
    kind: str
    target: str  # a node's name, or empty
    seconds: float
    number: int  # the seed of its details
    step: int = 0  # the step of the target at which it strikes; 0: drawn from ``number``

    def __str__(self) -> str:
        return f"{self.at_s:7.3f} s  {self.kind} {self.target} for {self.seconds:.2f} s (#{self.number})"


class Promise:
    """Limits data loss to ``ack_quorum - 1`` machines of a world."""

    def __init__(self, ack_quorum: int) -> None:
        self._damaged_max = ack_quorum - 1

    def allows(self, damaged: Collection[str], name: str) -> bool:
        """Whether this machine may lose synced data, given the machines that did."""
        return name in damaged or len(damaged) < self._damaged_max


def enabled(switches: Mapping[str, bool]) -> frozenset[str]:
    """The kinds that are on: the given switches, and the defaults of the others.

    Raises:
        ValueError: A switch names no kind.
    """
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
    """Draw faults for a world, period by period.

    A quarter of the periods has none, the others have a mix of kinds. Half of the worlds have few kinds and
    many faults of each: rare failures need several faults of one kind.

    Args:
        is_light: Draw few faults, for worlds with a storm.
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
