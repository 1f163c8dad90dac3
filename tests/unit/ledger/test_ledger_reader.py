from __future__ import annotations

import pytest

from ledger.digest import Entry
from ledger.errors import (
    BookieTimeoutError,
    CorruptEntryError,
    IoErrorRefusal,
    LedgerReadError,
    NoEntryRefusal,
    NoLedgerRefusal,
    NoSuchEntryError,
    UnknownLedgerStateRefusal,
)
from ledger.metadata import Ensemble, LedgerMetadata
from ledger.reader import EntryRead, LacQuery, reading_order, replicas, segment_stop

METADATA = LedgerMetadata(
    ensemble_size=3,
    write_quorum=2,
    ack_quorum=2,
    ensembles=(Ensemble(0, ("a", "b", "c")), Ensemble(10, ("a", "d", "c"))),
)


def denial(bookie: str) -> Exception:
    return NoEntryRefusal(bookie, 1, 5)


def test_replicas_come_from_the_segment_of_the_entry() -> None:
    assert replicas(METADATA, 4) == ["b", "c"]
    assert replicas(METADATA, 10) == ["d", "c"]
    assert (segment_stop(METADATA, 3), segment_stop(METADATA, 10)) == (10, None)


def test_no_such_entry_needs_the_denial_of_every_replica() -> None:
    read = EntryRead(1, 5, ["a", "b"])
    assert read.next_bookie() == "a"
    read.failed("a", denial("a"))
    assert read.next_bookie() == "b"
    read.failed("b", NoLedgerRefusal("b", 1))
    assert read.next_bookie() is None
    assert isinstance(read.error(), NoSuchEntryError)


@pytest.mark.parametrize(
    "harder",
    [
        BookieTimeoutError("b", "silent"),
        IoErrorRefusal("b", 1, 5),
        UnknownLedgerStateRefusal("b", 1, 5),
        CorruptEntryError(1, 5, "digest"),
    ],
)
def test_one_harder_error_outweighs_all_denials(harder: Exception) -> None:
    read = EntryRead(1, 5, ["a", "b"])
    read.failed("a", denial("a"))
    read.failed("b", harder)
    error = read.error()
    assert type(error) is LedgerReadError
    assert str(harder) in str(error)


def test_a_read_that_asked_nobody_is_no_denial() -> None:
    assert type(EntryRead(1, 5, []).error()) is LedgerReadError


def query() -> LacQuery:
    return LacQuery(1, ("a", "b", "c"), write_quorum=3, ack_quorum=2)


def test_the_lac_is_the_greatest_one_told_once_enough_answered() -> None:
    one = query()
    one.answered("a", Entry(1, 9, 7, 100, b""))
    assert not one.is_covered
    one.answered("c", Entry(1, 8, 8, 90, b""))
    assert one.is_covered
    assert (one.lac, one.length_bytes) == (8, 90)


def test_a_denial_is_an_answer_and_an_error_is_none() -> None:
    one = query()
    one.failed("a", CorruptEntryError(1, None, "digest"))
    one.failed("b", denial("b"))
    assert not one.is_covered
    one.failed("c", IoErrorRefusal("c", 1))
    assert one.is_exhausted
    assert not one.is_covered
    assert set(one.reasons) == {"a", "c"}


def test_doubtful_replicas_are_asked_last() -> None:
    assert reading_order("abc", start=1, suspects=(), readonly=()) == ["b", "c", "a"]
    assert reading_order("abc", start=1, suspects={"b"}, readonly={"c"}) == ["a", "c", "b"]
