"""Which records of producers an owner knows: all from a position on, never one that the log may lack."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import LogWriteError
from dlog.forwarding.window import ProducerWindow
from dlog.write.batcher import Batch
from namespace.dlsn import DLSN, INVALID_DLSN


def at(entry_id: int) -> DLSN:
    return DLSN(1, entry_id, 0)


def test_a_record_is_found_by_producer_and_number() -> None:
    window = ProducerWindow(INVALID_DLSN)
    window.add("a", 5, at(0), [11])
    window.add("b", 5, at(1), [12])
    window.add("a", 9, at(2), [13])
    assert window.find("a", 5) == (at(0), 11)
    assert window.find("b", 5) == (at(1), 12)
    assert [window.find(*each) for each in (("a", 6), ("b", 9), ("c", 5))] == [None] * 3
    assert [window.bounds(each) for each in "abc"] == [(5, 9), (5, 5), (-1, -1)]


def test_the_first_of_two_records_with_one_number_counts() -> None:
    window = ProducerWindow(INVALID_DLSN)
    window.add("a", 5, at(0), [11])
    window.add("a", 5, at(1), [12])
    assert (window.find("a", 5), len(window)) == ((at(0), 11), 1)


def test_the_oldest_record_leaves_and_what_is_covered_begins_after_it() -> None:
    window = ProducerWindow(INVALID_DLSN, records_max=2)
    for number in range(3):
        window.add("a", number, at(number), [0])
    assert window.find("a", 0) is None
    assert (window.covers, window.bounds("a")) == (at(0).next_slot(), (1, 2))
    window.add("b", 0, at(3), [0])
    window.add("b", 1, at(4), [0])
    assert (window.covers, window.bounds("a"), len(window)) == (at(2).next_slot(), (-1, -1), 2)


def test_a_record_in_flight_does_not_leave_and_neither_does_one_that_failed() -> None:
    window = ProducerWindow(INVALID_DLSN, records_max=1)
    batch = Batch()
    window.add("a", 0, (batch, 0), [0])
    window.add("a", 1, at(1), [0])
    assert (len(window), window.covers) == (2, INVALID_DLSN)
    batch.segment_seqno, batch.entry_id = 1, 0
    batch.durable()
    window.add("a", 2, at(2), [0])
    assert (len(window), window.bounds("a")) == (1, (2, 2))
    broken = Batch()
    window.add("a", 3, (broken, 0), [0])
    broken.failed(LogWriteError("log", "it broke"))
    window.add("a", 4, at(4), [0])
    assert window.find("a", 3) == ((broken, 0), 0)


class Twin:
    """The same by one dictionary, which is searched as a whole."""

    def __init__(self, records_max: int) -> None:
        self.records_max, self.covers = records_max, INVALID_DLSN
        self.records: dict[tuple[str, int], tuple[DLSN, int]] = {}  # as in the log

    def add(self, producer: str, first: int, where: DLSN, checksums: list[int]) -> None:
        for at, checksum in enumerate(checksums):
            dlsn = DLSN(where.segment_seqno, where.entry_id, where.slot_id + at)
            self.records.setdefault((producer, first + at), (dlsn, checksum))
        while len(self.records) > self.records_max:
            oldest = next(iter(self.records))
            self.covers = self.records.pop(oldest)[0].next_slot()

    def bounds(self, producer: str) -> tuple[int, int]:
        numbers = [sequence for name, sequence in self.records if name == producer]
        return (min(numbers), numbers[-1]) if numbers else (-1, -1)


runs = st.tuples(st.sampled_from("ab"), st.integers(-12, 3), st.integers(1, 6))


@given(steps=st.lists(runs, max_size=60), records_max=st.integers(1, 25))
def test_runs_of_records_are_found_as_if_each_was_kept_by_itself(
    steps: list[tuple[str, int, int]], records_max: int
) -> None:
    window, twin = ProducerWindow(INVALID_DLSN, records_max), Twin(records_max)
    for entry_id, (producer, step, count) in enumerate(steps):
        # Mostly what follows the producer's last record; sometimes a repeat, or a lower number again.
        first = max(0, twin.bounds(producer)[1] + (1 if step < 0 and step % 3 else step))
        checksums = list(range(100 * entry_id, 100 * entry_id + count))
        for each in (window, twin):
            each.add(producer, first, at(entry_id), checksums)
        assert (len(window), window.covers) == (len(twin.records), twin.covers)
        for name in "ab":
            assert window.bounds(name) == twin.bounds(name)
            for sequence in range(200):
                assert window.find(name, sequence) == twin.records.get((name, sequence))
