"""Whose acknowledgements count, against a twin that knows which connections there were and when."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from ledger.continuity import Continuity


class Twin:
    """Bookies whose connections break and are dialled anew; ensemble changes; looks at the metadata."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.bookies = ["b1", "b2", "b3"]
        self.connection: dict[str, int] = {}
        self.dialled = self.losses = 0
        self.continuity = Continuity(self.connection.get)
        self.held: dict[str, int] = {}  # whose word is held back, each with the look that began before it was
        self.said: set[str] = set()  # of them, who has said anything
        self.vouched: set[int] = set()  # connections that there were when the metadata was ours
        self.change: tuple[dict[str, int | None], set[int]] | None = None
        self.look: tuple[set[tuple[str, int]], set[int]] | None = None
        self.holds = self.counted = 0
        self.impostors: list[str] = []  # who counted, and should not have

    def hold(self, bookie: str) -> None:
        self.holds += 1
        self.held[bookie] = self.holds
        self.said.discard(bookie)

    def notice(self) -> None:
        for bookie in self.continuity.gone(self.losses):
            self.hold(bookie)

    def answer(self, bookie: str) -> None:
        if not self.continuity.is_settled(bookie, self.losses):
            self.notice()
            if self.continuity.is_new(bookie):
                self.hold(bookie)
        if bookie in self.held:
            self.said.add(bookie)
        else:
            self.counted += 1
            if self.connection[bookie] not in self.vouched:
                self.impostors.append(bookie)  # it may be another bookie at the same address

    def step(self) -> None:
        rng, there = self.rng, set(self.connection.values())
        bookie = rng.choice(self.bookies)
        match rng.randrange(7):
            case 0 | 1:
                if bookie in self.connection:
                    self.answer(bookie)
            case 2:
                if bookie not in self.connection:
                    self.dialled += 1
                    self.connection[bookie] = self.dialled
            case 3:
                if self.connection.pop(bookie, None) is not None:
                    self.losses += 1
            case 4 if self.change is None:
                names = rng.sample(self.bookies, rng.randint(1, 3))
                self.change = self.continuity.snapshot(names), there
            case 4:
                connections, known = self.change
                self.change = None
                self.vouched |= known
                self.continuity.begin(connections)
                for name in connections:
                    self.held.pop(name, None)  # it begins anew, as a bookie that is taken in
                    self.said.discard(name)
            case 5 if self.look is None:
                self.look = {(name, self.held[name]) for name in self.said}, there
            case 5:
                doubtful, known = self.look
                self.look = None
                self.vouched |= known
                self.notice()
                for name, hold in doubtful:
                    if self.held.get(name) == hold:
                        self.continuity.vouched(name)
                        del self.held[name]
                        self.said.discard(name)


@given(seed=st.integers(0, 2**32 - 1))
def test_nobody_counts_over_a_connection_younger_than_the_last_look_at_the_metadata(seed: int) -> None:
    twin = Twin(seed)
    for _ in range(300):
        twin.step()
    assert twin.impostors == []


@given(seed=st.integers(0, 2**32 - 1))
def test_over_connections_that_last_everybody_counts_after_one_look(seed: int) -> None:
    twin = Twin(seed)
    for _ in range(50):
        twin.step()
    for bookie in twin.bookies:
        twin.connection.setdefault(bookie, 1000 + len(twin.connection))
        twin.answer(bookie)
    twin.look = {(name, twin.held[name]) for name in twin.said}, set(twin.connection.values())
    doubtful, known = twin.look
    twin.vouched |= known
    for name, _ in doubtful:
        twin.continuity.vouched(name)
        del twin.held[name]
    before = twin.counted
    for bookie in twin.bookies:
        twin.answer(bookie)
    assert twin.counted == before + len(twin.bookies)
    assert twin.impostors == []
