"""Which records share an entry; a batch settles once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import LogWriteError, RecordOutcome
from dlog.format.envelope import ENTRY_BODY_BYTES_MAX
from dlog.format.record import PAYLOAD_BYTES_MAX, RECORD_HEADER_BYTES
from dlog.write.batcher import HELD_BYTES, Batch, Batcher


def test_with_nothing_in_flight_a_record_is_due_at_once() -> None:
    batcher = Batcher(entry_bytes_target=1000)
    batch, slot = batcher.add(b"a", 1)
    assert batcher.take(idle=True) is batch
    assert (batch.payloads, slot) == ([b"a"], 0)
    assert not batcher


def test_records_gather_while_a_batch_is_in_flight() -> None:
    batcher = Batcher(entry_bytes_target=1000)
    first, _ = batcher.add(b"a", 1)
    assert batcher.take(idle=False) is None
    second, slot = batcher.add(b"b", 2)
    assert second is first
    assert slot == 1
    taken = batcher.take(idle=True)
    assert taken is first
    assert (taken.payloads, taken.txids) == ([b"a", b"b"], [1, 2])


def test_a_full_entry_is_due_although_a_batch_is_in_flight() -> None:
    batcher = Batcher(entry_bytes_target=100)
    first, _ = batcher.add(b"x" * 90, 1)
    second, slot = batcher.add(b"y", 2)
    assert second is not first
    assert slot == 0
    assert batcher.take(idle=False) is first
    assert batcher.take(idle=False) is None


def test_no_entry_exceeds_its_limit() -> None:
    batcher = Batcher(entry_bytes_target=ENTRY_BODY_BYTES_MAX)
    big = bytes(PAYLOAD_BYTES_MAX)
    ranges = batcher.add_many([b"small", big, big], [1, 2, 3])
    assert [(slot, count) for _, slot, count in ranges] == [(0, 2), (0, 1)]
    assert len({id(batch) for batch, _, _ in ranges}) == 2
    assert all(batch.size_bytes <= ENTRY_BODY_BYTES_MAX for batch, _, _ in ranges)


class CountedPayloads(list[bytes]):
    """Counts what its slices have."""

    sliced = 0

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        self.sliced += len(found)
        return found


def test_the_work_for_many_payloads_grows_with_their_number() -> None:
    counts = []
    for count in (1_000, 10_000):
        payloads = CountedPayloads([bytes(200)] * count)
        Batcher(entry_bytes_target=2_000).add_many(payloads, [1] * count)
        counts.append(payloads.sliced)
    assert counts[1] <= 11 * counts[0]


def test_batches_put_back_come_first_again() -> None:
    batcher = Batcher(entry_bytes_target=30)
    for number in range(4):
        batcher.add(b"%020d" % number, number)
    taken = [batcher.take(idle=False), batcher.take(idle=False)]
    batcher.put_back([batch for batch in taken if batch is not None])
    assert batcher.first_txid == 0
    order = []
    while (batch := batcher.take(idle=True)) is not None:
        order += batch.txids
    assert order == [0, 1, 2, 3]
    assert batcher.held_bytes == 0


def test_a_batch_settles_once() -> None:
    batch = Batch()
    batch.entry_id = 0
    outcomes: list[RecordOutcome] = []
    batch.on_settled(lambda: outcomes.append(batch.outcome))
    batch.durable()
    batch.on_settled(lambda: outcomes.append(batch.outcome))
    assert outcomes == [RecordOutcome.DURABLE] * 2
    with pytest.raises(AssertionError, match="settled already"):
        batch.failed(LogWriteError("log", "evidence"))


def test_each_caller_gets_an_error_of_its_own() -> None:
    batch = Batch()
    batch.failed(LogWriteError("log", "evidence"))
    errors = []
    for _ in range(2):
        with pytest.raises(LogWriteError, match="evidence") as caught:
            batch.raise_error()
        errors.append(caught.value)
    assert errors[0] is not errors[1]
    assert errors[0].outcome is RecordOutcome.UNKNOWN
    assert batch.error_was_seen


def taken_of(batcher: Batcher) -> list[tuple[list[bytes], list[int], list[tuple[int, bytes]] | None, int]]:
    batches = []
    while (batch := batcher.take(idle=True)) is not None:
        assert batch.since_s == 5.0, "its first record was added then"
        batches.append((batch.payloads, batch.txids, batch.attributes, batch.size_bytes))
    return batches


groups_with_attributes = st.lists(
    st.lists(
        st.tuples(st.integers(0, 60), st.one_of(st.none(), st.integers(1, 60), st.integers(1, 60))),
        max_size=40,
    ),
    max_size=8,
)


@given(groups=groups_with_attributes, target=st.integers(25, 3000), large=st.integers(-1, 60))
def test_records_with_attributes_share_entries_as_if_each_was_added_by_itself(
    groups: list[list[tuple[int, int | None]]], target: int, large: int
) -> None:
    together, one_by_one = (Batcher(entry_bytes_target=target, clock=lambda: 5.0) for _ in range(2))
    number = 0
    for group in groups:
        payloads = [bytes(PAYLOAD_BYTES_MAX if size == large else size) for size, _ in group]
        attributes = [None if size is None else b"a" * size for _, size in group]
        txids = list(range(number, number + len(group)))
        number += len(group)
        found = [
            (txid, slot)
            for batch, first, count in together.add_each(payloads, txids, attributes)
            for slot, txid in zip(
                range(first, first + count), batch.txids[first : first + count], strict=True
            )
        ]
        assert [txid for txid, _ in found] == txids
        slots = [
            one_by_one.add(payload, txid)[1] if each is None else one_by_one.add_with(payload, txid, each)[1]
            for payload, txid, each in zip(payloads, txids, attributes, strict=True)
        ]
        assert [slot for _, slot in found] == slots
        assert together.held_bytes == one_by_one.held_bytes
    assert taken_of(together) == taken_of(one_by_one)


operations = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 60)),
    st.tuples(st.just("many"), st.lists(st.integers(0, 60), max_size=12)),
    st.tuples(st.just("take"), st.booleans()),
    st.tuples(st.just("cut"), st.none()),
)


@given(steps=st.lists(operations, max_size=60), target=st.integers(25, 200))
def test_records_are_taken_in_order_with_the_slots_they_got(
    steps: list[tuple[str, Any]], target: int
) -> None:
    batcher = Batcher(entry_bytes_target=target)
    number, waiting_bytes = 0, 0
    slots: list[tuple[Batch, int]] = []
    taken: list[Batch] = []
    for kind, argument in steps:
        if kind == "add":
            slots.append(batcher.add(b"%d:" % number + bytes(argument), number))
            number += 1
        elif kind == "many":
            payloads = [b"%d:" % (number + i) + bytes(size) for i, size in enumerate(argument)]
            for batch, slot, count in batcher.add_many(payloads, list(range(number, number + len(payloads)))):
                slots += [(batch, each) for each in range(slot, slot + count)]
            number += len(payloads)
        elif kind == "take":
            while (sent := batcher.take(idle=argument)) is not None:
                taken.append(sent)
        else:
            batcher.cut()
        waiting_bytes = sum(
            HELD_BYTES + RECORD_HEADER_BYTES + len(batch.payloads[slot])
            for batch, slot in slots
            if batch not in taken
        )
        assert batcher.held_bytes == waiting_bytes
        assert bool(batcher) == bool(waiting_bytes)
    while (sent := batcher.take(idle=True)) is not None:
        taken.append(sent)
    assert [txid for batch in taken for txid in batch.txids] == list(range(number))
    assert [batch.txids[slot] for batch, slot in slots] == list(range(number))
    for batch in taken:
        assert batch.size_bytes - RECORD_HEADER_BYTES - len(batch.payloads[-1]) < target, (
            "the batch was full before its last record"
        )
