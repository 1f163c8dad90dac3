"""Which acknowledgements count, against a twin that knows which connections existed at each moment."""

from __future__ import annotations

import random

from hypothesis import given

from ledger.write.connection_trust import ConnectionTrust
from tests.strategies import SEEDS


class Twin:
    """Bookies whose connections break and are dialled again; ensemble changes; reads of the metadata."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.bookies = ["b1", "b2", "b3"]
        self.connection: dict[str, int] = {}
        self.dialled = self.losses = 0
        self.trust = ConnectionTrust(self.connection.get)
        self.held: dict[str, int] = {}  # bookies whose acknowledgements are held back, by number of the hold
        self.replied: set[str] = set()  # those of them that have replied since
        self.vouched: set[int] = set()  # connections that existed when the metadata was this writer's
        self.change: tuple[dict[str, int | None], set[int]] | None = None
        self.read: tuple[set[tuple[str, int]], set[int]] | None = None
        self.holds = self.counted = 0
        self.impostors: list[str] = []  # bookies whose acknowledgements counted, and should not have

    def hold(self, bookie: str) -> None:
        self.holds += 1
        self.held[bookie] = self.holds
        self.replied.discard(bookie)

    def notice_losses(self) -> None:
        for bookie in self.trust.take_lost(self.losses):
            self.hold(bookie)

    def reply(self, bookie: str) -> None:
        if self.losses != self.trust.losses or bookie not in self.trust.trusted:
            self.notice_losses()
            if self.trust.is_first_reply(bookie):
                self.hold(bookie)
        if bookie in self.held:
            self.replied.add(bookie)
        else:
            self.counted += 1
            if self.connection[bookie] not in self.vouched:
                self.impostors.append(bookie)  # it may be another bookie at the same address

    def step(self) -> None:
        rng, existing = self.rng, set(self.connection.values())
        bookie = rng.choice(self.bookies)
        match rng.randrange(7):
            case 0 | 1:
                if bookie in self.connection:
                    self.reply(bookie)
            case 2:
                if bookie not in self.connection:
                    self.dialled += 1
                    self.connection[bookie] = self.dialled
            case 3:
                if self.connection.pop(bookie, None) is not None:
                    self.losses += 1
            case 4:
                if self.change is None:
                    names = rng.sample(self.bookies, rng.randint(1, 3))
                    self.change = self.trust.snapshot(names), existing
                    return
                connections, known = self.change
                self.change = None
                self.vouched |= known
                self.trust.trust_since(connections)
                for name in connections:
                    self.held.pop(name, None)  # it is new in the ensemble
                    self.replied.discard(name)
            case 5:
                if self.read is None:
                    self.read = {(name, self.held[name]) for name in self.replied}, existing
                    return
                untrusted, known = self.read
                self.read = None
                self.vouched |= known
                self.notice_losses()
                for name, hold in untrusted:
                    if self.held.get(name) == hold:
                        self.trust.trust(name)
                        del self.held[name]
                        self.replied.discard(name)


@given(seed=SEEDS)
def test_no_acknowledgement_counts_over_a_connection_younger_than_the_last_read_of_the_metadata(
    seed: int,
) -> None:
    twin = Twin(seed)
    for _ in range(300):
        twin.step()
    assert twin.impostors == []


@given(seed=SEEDS)
def test_over_connections_that_last_every_acknowledgement_counts_after_one_read(seed: int) -> None:
    twin = Twin(seed)
    for _ in range(50):
        twin.step()
    for bookie in twin.bookies:
        twin.connection.setdefault(bookie, 1000 + len(twin.connection))
        twin.reply(bookie)
    twin.read = {(name, twin.held[name]) for name in twin.replied}, set(twin.connection.values())
    untrusted, known = twin.read
    twin.vouched |= known
    for name, _ in untrusted:
        twin.trust.trust(name)
        del twin.held[name]
    before = twin.counted
    for bookie in twin.bookies:
        twin.reply(bookie)
    assert twin.counted == before + len(twin.bookies)
    assert twin.impostors == []
