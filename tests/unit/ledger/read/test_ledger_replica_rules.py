# covers: ledger/read/replica_rules.py

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
from ledger.read.replica_rules import EntryRead, LacQuery, reading_order, replicas, segment_stop

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
    read.on_failure("a", denial("a"))
    assert read.next_bookie() == "b"
    read.on_failure("b", NoLedgerRefusal("b", 1))
    assert read.next_bookie() is None
    assert isinstance(read.error(), NoSuchEntryError)


@pytest.mark.parametrize(
    "other",
    [
        BookieTimeoutError("b", "silent"),
        IoErrorRefusal("b", 1, 5),
        UnknownLedgerStateRefusal("b", 1, 5),
        CorruptEntryError(1, 5, "digest"),
    ],
)
def test_one_other_error_outweighs_all_denials(other: Exception) -> None:
    read = EntryRead(1, 5, ["a", "b"])
    read.on_failure("a", denial("a"))
    read.on_failure("b", other)
    error = read.error()
    assert type(error) is LedgerReadError
    assert str(other) in str(error)


def test_a_read_without_replicas_is_no_denial() -> None:
    assert type(EntryRead(1, 5, []).error()) is LedgerReadError


def query() -> LacQuery:
    return LacQuery(1, ("a", "b", "c"), write_quorum=3, ack_quorum=2)


def test_the_lac_is_the_greatest_one_once_enough_bookies_replied() -> None:
    one = query()
    one.on_entry("a", Entry(1, 9, 7, 100, b""))
    assert (one.is_covered, one.lac) == (False, 7)
    one.on_entry("c", Entry(1, 8, 8, 90, b""))
    assert one.is_covered
    assert (one.lac, one.length_bytes) == (8, 90)


def test_a_denial_counts_as_a_reply_and_an_error_does_not() -> None:
    one = query()
    one.on_failure("a", CorruptEntryError(1, None, "digest"))
    one.on_failure("b", denial("b"))
    assert not one.is_covered
    one.on_failure("c", IoErrorRefusal("c", 1))
    assert one.is_exhausted
    assert not one.is_covered
    assert set(one.reasons) == {"a", "c"}


def test_the_error_of_a_lac_query_names_the_lac_and_no_entry() -> None:
    one = query()
    one.on_failure("a", IoErrorRefusal("a", 1))
    error = one.error()
    assert error.entry_id is None
    assert str(error) == f"ledger 1: its last add confirmed could not be read: {IoErrorRefusal('a', 1)}"


def test_suspected_replicas_are_tried_last() -> None:
    assert reading_order("abc", start=1, suspects=(), readonly=()) == ["b", "c", "a"]
    assert reading_order("abc", start=1, suspects={"b"}, readonly={"c"}) == ["a", "c", "b"]
