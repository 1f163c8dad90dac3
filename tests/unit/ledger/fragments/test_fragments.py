"""Fragments of a ledger: what can be copied, and the change of the metadata afterwards."""

from __future__ import annotations

import random
from typing import Any

import attrs
import pytest
import trio

from ledger.catalog.catalog import Versioned
from ledger.fragments.fragments import VERIFIED_MAX, Fragment, ReplaceReplicas, fragments_of, needs_closing
from ledger.fragments.ledger_check import LedgerCheck
from ledger.fragments.registered import read_registered
from ledger.metadata import Ensemble, LedgerMetadata
from ledger.quorum import write_set
from ledger.replication.failure_backoff import FailureBackoff
from tests.fakes.replication_world import open_world

OPEN = LedgerMetadata(
    ensemble_size=3,
    write_quorum=2,
    ack_quorum=2,
    ensembles=(Ensemble(0, ("a", "b", "c")), Ensemble(10, ("a", "d", "c"))),
)
CLOSED = OPEN.closed(14, 1500)


def test_the_end_of_an_open_ledger_is_never_final() -> None:
    assert [(f.first, f.last, f.is_final) for f in fragments_of(OPEN, 12)] == [(0, 9, True), (10, 12, False)]
    assert [(f.first, f.last, f.is_final) for f in fragments_of(CLOSED, 14)] == [(0, 9, True), (10, 14, True)]


def test_a_fragment_beyond_the_last_confirmed_entry_is_not_final() -> None:
    assert [f.is_final for f in fragments_of(OPEN, 8)] == [False, False]
    assert [f.is_final for f in fragments_of(OPEN, 9)] == [True, False]


@pytest.mark.parametrize("write_quorum", [1, 2, 3, 4])
@pytest.mark.parametrize(("first", "last"), [(0, 0), (3, 9), (5, 6), (7, 6)])
def test_the_entries_of_a_member_are_those_of_the_write_sets(
    write_quorum: int, first: int, last: int
) -> None:
    fragment = Fragment(first, last, ("a", "b", "c", "d"), write_quorum, True)
    for index in range(4):
        expected = [e for e in range(first, last + 1) if index in write_set(e, 4, write_quorum)]
        assert fragment.ends_at(index) == ((expected[0], expected[-1]) if expected else None)
        in_ranges = [e for start, stop in fragment.ranges([index]) for e in range(start, stop + 1)]
        assert [e for e in in_ranges if fragment.holds(index, e)] == expected
        assert set(fragment.to_verify(index, 100, random.Random(1))) == set(expected)
        assert fragment.to_verify(index, 0, random.Random(1)) == sorted({*expected[:1], *expected[-1:]})


def test_copies_replace_the_lost_bookie_at_its_place() -> None:
    change = ReplaceReplicas(fragments_of(CLOSED, 14)[0], {1: "e"})
    changed = change.apply(CLOSED)
    assert changed is not None
    assert changed.ensembles == (Ensemble(0, ("a", "e", "c")), Ensemble(10, ("a", "d", "c")))
    assert change.is_in_place(changed)
    assert changed.is_closed
    assert changed.last_entry_id == 14
    assert change.apply(changed) is None  # its own earlier success
    assert not change.is_in_place(CLOSED)


def test_copies_of_an_open_ledger_replace_only_a_final_fragment() -> None:
    first, end = fragments_of(OPEN, 12)
    assert ReplaceReplicas(first, {1: "e"}).apply(OPEN) is not None
    assert ReplaceReplicas(end, {1: "e"}).apply(OPEN) is None
    empty = attrs.evolve(OPEN, ensembles=OPEN.ensembles[:1])
    (end,) = fragments_of(empty, -1)
    assert ReplaceReplicas(end, {1: "e"}).apply(empty) is None


@pytest.mark.parametrize(
    "changed",
    [
        attrs.evolve(OPEN, ensembles=(Ensemble(0, ("a", "x", "c")), Ensemble(10, ("a", "d", "c")))),
        attrs.evolve(OPEN, ensembles=(Ensemble(0, ("a", "b", "c")), Ensemble(11, ("a", "d", "c")))),
        attrs.evolve(OPEN, ensembles=(Ensemble(0, ("a", "b", "c")),)),
        attrs.evolve(OPEN, ensembles=(Ensemble(1, ("a", "b", "c")), Ensemble(10, ("a", "d", "c")))),
        attrs.evolve(OPEN, ensembles=(Ensemble(0, ("a", "b", "c")),)).closed(12, 0),
    ],
    ids=["another bookie", "another end", "the open end", "gone", "closed elsewhere"],
)
def test_copies_of_a_fragment_that_changed_are_not_used(changed: LedgerMetadata) -> None:
    assert ReplaceReplicas(fragments_of(OPEN, 12)[0], {1: "e"}).apply(changed) is None


def test_a_bookie_of_the_ensemble_is_no_replacement() -> None:
    assert ReplaceReplicas(fragments_of(CLOSED, 14)[0], {1: "c"}).apply(CLOSED) is None
    assert ReplaceReplicas(fragments_of(CLOSED, 14)[0], {0: "e", 1: "e"}).apply(CLOSED) is None


def test_an_open_ledger_needs_closing_if_its_end_lies_on_a_lost_bookie() -> None:
    assert not needs_closing(OPEN, 12, {"a", "c", "d"})
    assert needs_closing(OPEN, 12, {"a", "c"})
    assert needs_closing(OPEN, 8, {"a", "c", "d"})  # entries in front of the end are not confirmed
    assert not needs_closing(CLOSED, 14, set())


def test_the_pause_of_a_failed_ledger_doubles_up_to_the_full_one() -> None:
    backoff = FailureBackoff(320)
    assert [backoff.on_failed(7) for _ in range(7)] == [10, 20, 40, 80, 160, 320, 320]
    assert backoff.on_failed(8) == 10
    backoff.on_healed(7)
    assert backoff.on_failed(7) == 10


FAR = 10**12  # one planted entry closes a ledger there (docs/security.md)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_first_last_and_ranges_are_those_of_a_search_of_all_entries(size: int) -> None:
    bookies = tuple(f"b{number}" for number in range(size))
    for write_quorum in range(1, size + 1):
        for first in range(4):
            for last in range(first - 1, first + 2 * size + 2):
                fragment = Fragment(first, last, bookies, write_quorum, True)
                for index in range(size):
                    own = [entry for entry in range(first, last + 1) if fragment.holds(index, entry)]
                    assert fragment.ends_at(index) == ((own[0], own[-1]) if own else None)
                    for other in range(size):
                        ranges = list(fragment.ranges({index, other}))
                        found = [entry for begin, end in ranges for entry in range(begin, end + 1)]
                        assert found == [
                            entry
                            for entry in range(first, last + 1)
                            if fragment.holds(index, entry) or fragment.holds(other, entry)
                        ] or (write_quorum == size and found == list(range(first, last + 1)))


@pytest.mark.slow
def test_the_work_for_a_fragment_does_not_grow_with_the_entries_that_its_metadata_name() -> None:
    fragment = Fragment(0, FAR, ("a", "b", "c", "d"), 2, True)
    assert fragment.ends_at(1) == (0, FAR)
    assert list(fragment.ranges({0, 2})) == [(0, FAR)]
    assert next(iter(fragment.ranges({0}))) == (0, 0)
    assert len(fragment.to_verify(1, 100, random.Random(1))) <= VERIFIED_MAX + 2
    whole = Fragment(0, 2**63 - 2, ("a",), 1, True)
    assert len(whole.to_verify(0, 50, random.Random(1))) <= VERIFIED_MAX + 2


async def test_a_check_of_many_fragments_starts_no_more_tasks_than_reads_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_world(3) as world:
        writer = await world.client.create()
        await writer.append_many([b"x"] * 40)
        await writer.close()
        metadata = await world.client.metadata(writer.ledger_id)
        bookies = metadata.last_ensemble.bookies
        many = attrs.evolve(metadata, ensembles=tuple(Ensemble(first, bookies) for first in range(40)))
        registered = await read_registered(world.session, "/ledgers")
        check = LedgerCheck(world.client.context, reads_max=4)
        tasks = 0
        start_soon = trio.Nursery.start_soon

        def counted(nursery: trio.Nursery, *args: Any, **more: Any) -> None:
            nonlocal tasks
            tasks += 1
            start_soon(nursery, *args, **more)

        monkeypatch.setattr(trio.Nursery, "start_soon", counted)
        del world.cluster.bookies[bookies[1]].ledgers[writer.ledger_id].entries[7]
        found = await check.find(Versioned(writer.ledger_id, many, 0), 39, registered)
        assert [(one.fragment.first, one.indices) for one in found.bad] == [(7, (1,))]
        assert tasks <= 4
