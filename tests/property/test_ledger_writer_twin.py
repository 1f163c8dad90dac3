"""The writer machine against a twin that keeps every acknowledgement and counts all of them each time."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.quorum import write_set
from ledger.write.writer import LedgerWriter, SendAdds
from tests.effort import examples
from tests.strategies import SEEDS


class Twin:
    """Entries sent to bookies; acknowledgements, from (entry, bookie) to the connection they came over."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.size = rng.randint(1, 4)
        self.write_quorum = rng.randint(1, self.size)
        self.ack_quorum = rng.randint(1, self.write_quorum)
        self.ensemble = [f"b{number}" for number in range(self.size)]
        self.good = set(rng.sample(range(12), 8))  # bookies of the first fault domain
        self.writer = LedgerWriter(
            self.ensemble,
            write_quorum=self.write_quorum,
            ack_quorum=self.ack_quorum,
            pack=lambda entry_id, lac, length, payload: b"%d" % entry_id,
            ack_rule=self.ack_rule if rng.random() < 0.5 else None,
        )
        self.number = 100
        self.connection = dict.fromkeys(self.ensemble, 0)
        self.trusted = dict.fromkeys(self.ensemble, 0)
        self.unanswered: dict[str, list[int]] = {bookie: [] for bookie in self.ensemble}
        self.acks: dict[tuple[int, str], int] = {}
        self.down: set[str] = set()
        self.lac = -1

    def ack_rule(self, bookies: object) -> bool:
        return any(int(bookie[1:]) % 12 in self.good for bookie in bookies)  # type: ignore[attr-defined]

    def sent(self, outgoing: list[SendAdds]) -> None:
        for send in outgoing:
            assert send.bookie not in self.down
            assert [b"%d" % entry_id for entry_id in send.entry_ids] == send.frames
            self.unanswered[send.bookie] += send.entry_ids

    def step(self) -> None:
        rng, writer = self.rng, self.writer
        bookie = rng.choice(self.ensemble)
        index = self.ensemble.index(bookie)
        match rng.randrange(9):
            case 0 | 1:
                if writer.pending_count < 6:
                    writer.append(b"x")
                    self.sent(writer.take_outgoing())
            case 2 | 3 | 4:
                waiting = self.unanswered[bookie]
                rng.shuffle(waiting)
                acknowledged = [waiting.pop() for _ in range(rng.randint(0, len(waiting)))]
                for entry_id in acknowledged:
                    self.acks[entry_id, bookie] = self.connection[bookie]
                writer.adds_answered(bookie, acknowledged)
            case 5:
                self.number += 1
                if rng.random() < 0.3:
                    writer.failed(bookie, OSError(), lost=False)
                    self.down.add(bookie)
                elif self.unanswered[bookie]:
                    writer.failed(bookie, OSError(), lost=True)
                    self.down.add(bookie)
                    self.connection[bookie] = self.number
                    self.unanswered[bookie] = []
                else:
                    self.connection[bookie] = self.number
                    again = writer.reconnected(bookie)
                    if again is not None:
                        self.sent([again])
            case 6:
                if bookie in self.down:
                    self.down.discard(bookie)
                    again = writer.revive(index)
                    if again is not None:
                        self.sent([again])
                for untrusted, generation in writer.untrusted:
                    self.trusted[self.ensemble[untrusted]] = self.connection[self.ensemble[untrusted]]
                    writer.trust(untrusted, generation)
            case 7:
                if rng.random() < 0.2:
                    self.good = set(rng.sample(range(12), 8))
                    writer.reevaluate()
            case _:
                if self.down and rng.random() < 0.5:
                    self.change()
        self.check()

    def change(self) -> None:
        self.writer.begin_change()
        before = self.lac
        self.number += 1
        new = f"b{self.number}"
        index = self.ensemble.index(self.rng.choice(sorted(self.down)))
        self.down.discard(self.ensemble[index])
        self.ensemble[index] = new
        self.connection[new] = self.trusted[new] = 0
        self.unanswered[new] = []
        self.sent(self.writer.finish_change(self.ensemble))
        assert self.writer.lac == before
        self.writer.advance()

    def check(self) -> None:
        while self.lac < self.writer.last_pushed:
            entry_id = self.lac + 1
            holders = [
                self.ensemble[index]
                for index in write_set(entry_id, self.size, self.write_quorum)
                if self.counts(entry_id, self.ensemble[index])
            ]
            if len(holders) < self.ack_quorum or (
                self.writer._ack_rule is not None and not self.ack_rule(holders)
            ):
                break
            self.lac = entry_id
        assert self.writer.lac == self.lac
        self.writer.check()

    def counts(self, entry_id: int, bookie: str) -> bool:
        over = self.acks.get((entry_id, bookie))
        return over is not None and over == self.connection[bookie] == self.trusted[bookie]


@settings(max_examples=examples(300))
@given(seed=SEEDS)
def test_the_machine_confirms_what_counting_all_acknowledgements_confirms(seed: int) -> None:
    twin = Twin(seed)
    for _ in range(120):
        twin.step()


@given(st.integers(1, 6), st.data())
def test_quorums_are_endangered_when_the_rest_of_a_write_set_is_too_small_or_in_too_few_racks(
    size: int, data: st.DataObject
) -> None:
    write_quorum = data.draw(st.integers(1, size))
    ack_quorum = data.draw(st.integers(1, write_quorum))
    racks = data.draw(st.none() | st.lists(st.integers(0, 2), min_size=size, max_size=size))
    failing = data.draw(st.sets(st.integers(0, size - 1)))

    def is_enough(holders: list[int]) -> bool:
        return len(holders) >= ack_quorum and (racks is None or len({racks[index] for index in holders}) > 1)

    writer = LedgerWriter(
        [str(index) for index in range(size)],
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        pack=lambda entry_id, lac, length, payload: b"",
        ack_rule=None if racks is None else lambda holders: is_enough([int(bookie) for bookie in holders]),
    )
    for index in failing:
        writer.failed(str(index), OSError(), lost=True)
    left = [
        [index for index in write_set(entry_id, size, write_quorum) if index not in failing]
        for entry_id in range(size)
    ]
    assert writer.endangered == (not all(map(is_enough, left)))
