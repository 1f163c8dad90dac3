"""Which records of producers an owner knows: all from a position on, never one that the log may lack."""

from __future__ import annotations

from dlog.errors import LogWriteError
from dlog.forwarding.window import ProducerWindow
from dlog.write.batcher import Batch
from namespace.dlsn import DLSN, INVALID_DLSN


def at(entry_id: int) -> DLSN:
    return DLSN(1, entry_id, 0)


def test_a_record_is_found_by_producer_and_number() -> None:
    window = ProducerWindow(INVALID_DLSN)
    window.add("a", 5, at(0), 11)
    window.add("b", 5, at(1), 12)
    window.add("a", 9, at(2), 13)
    assert window.find("a", 5) == (at(0), 11)
    assert window.find("b", 5) == (at(1), 12)
    assert [window.find(*each) for each in (("a", 6), ("b", 9), ("c", 5))] == [None] * 3
    assert [window.bounds(each) for each in "abc"] == [(5, 9), (5, 5), (-1, -1)]


def test_the_first_of_two_records_with_one_number_counts() -> None:
    window = ProducerWindow(INVALID_DLSN)
    window.add("a", 5, at(0), 11)
    window.add("a", 5, at(1), 12)
    assert (window.find("a", 5), len(window)) == ((at(0), 11), 1)


def test_the_oldest_record_leaves_and_what_is_covered_begins_after_it() -> None:
    window = ProducerWindow(INVALID_DLSN, records_max=2)
    for number in range(3):
        window.add("a", number, at(number), 0)
    assert window.find("a", 0) is None
    assert (window.covers, window.bounds("a")) == (at(0).next_slot(), (1, 2))
    window.add("b", 0, at(3), 0)
    window.add("b", 1, at(4), 0)
    assert (window.covers, window.bounds("a"), len(window)) == (at(2).next_slot(), (-1, -1), 2)


def test_a_record_in_flight_does_not_leave_and_neither_does_one_that_failed() -> None:
    window = ProducerWindow(INVALID_DLSN, records_max=1)
    batch = Batch()
    window.add("a", 0, (batch, 0), 0)
    window.add("a", 1, at(1), 0)
    assert (len(window), window.covers) == (2, INVALID_DLSN)
    batch.segment_seqno, batch.entry_id = 1, 0
    batch.durable()
    window.add("a", 2, at(2), 0)
    assert (len(window), window.bounds("a")) == (1, (2, 2))
    broken = Batch()
    window.add("a", 3, (broken, 0), 0)
    broken.failed(LogWriteError("log", "it broke"))
    window.add("a", 4, at(4), 0)
    assert window.find("a", 3) == ((broken, 0), 0)
