"""The moves of a balance: which rules hold for any cluster, and how equal the bookies end."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.balancing.plan import (
    FREE_SHARE_MIN,
    BookieUse,
    ClosedLedger,
    Move,
    Plan,
    Segment,
    plan_moves,
)

GIB = 1 << 30


def use(
    number: int, capacity: int = 100 * GIB, free: int | None = None, *, is_writable: bool = True
) -> BookieUse:
    return BookieUse(f"b{number}", capacity, capacity if free is None else free, is_writable)


def anywhere(ledger: ClosedLedger, before: Sequence[str], after: Sequence[str]) -> bool:
    return True


def shares(plan: Plan) -> list[float]:
    return [plan.after[use.bookie] / use.capacity_bytes for use in plan.uses]


def a_full_three(count: int = 1000, size: int = 80 * GIB // 1000) -> list[ClosedLedger]:
    names = ("b1", "b2", "b3")
    return [ClosedLedger(number, 3, 2, (Segment(0, names, size),)) for number in range(count)]


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[BookieUse], list[ClosedLedger], dict[str, str]]:
    count = draw(st.integers(1, 7))
    uses = []
    for number in range(count):
        capacity = draw(st.integers(0, 3000))
        uses.append(
            BookieUse(
                f"b{number}",
                capacity,
                draw(st.integers(0, capacity)),
                draw(st.booleans()),
                draw(st.integers(0, 500)),
            )
        )
    names = [one.bookie for one in uses]
    ledgers = []
    for ledger_id in range(draw(st.integers(0, 25))):
        size = draw(st.integers(1, count))
        ensembles = draw(st.lists(st.permutations(names), min_size=1, max_size=3))
        quorum = draw(st.integers(1, size))
        segments = tuple(
            Segment(10 * number, tuple(one[:size]), draw(st.integers(0, 400)))
            for number, one in enumerate(ensembles)
        )
        ledgers.append(ClosedLedger(ledger_id, quorum, draw(st.integers(1, quorum)), segments))
    racks = {name: draw(st.sampled_from("xyz")) for name in names}
    return uses, ledgers, racks


def variance(stored: dict[str, int], uses: Sequence[BookieUse]) -> float:
    """It falls whenever bytes go to a bookie with a smaller share, and not too many."""
    return sum(stored[one.bookie] ** 2 / max(1, one.capacity_bytes) for one in uses)


def replica_moves(plan: Plan) -> list[list[Move]]:
    """The moves of one ledger between two bookies, together and in order."""
    found: dict[tuple[int, str, str], list[Move]] = {}
    for move in plan.moves:
        found.setdefault((move.ledger_id, move.source, move.target), []).append(move)
    assert [move for group in found.values() for move in group] == list(plan.moves)
    return list(found.values())


@settings(deadline=None)
@given(clusters())
def test_the_rules_of_a_plan_hold_in_every_cluster(
    cluster: tuple[list[BookieUse], list[ClosedLedger], dict[str, str]],
) -> None:
    uses, ledgers, racks = cluster

    def spread(bookies: Sequence[str]) -> int:
        return len({racks[bookie] for bookie in bookies})

    def may_move(ledger: ClosedLedger, before: Sequence[str], after: Sequence[str]) -> bool:
        return spread(after) >= spread(before)

    plan = plan_moves(uses, ledgers, may_move)
    by_name = {one.bookie: one for one in uses}
    by_id = {one.ledger_id: {each.first_entry: each for each in one.segments} for one in ledgers}
    members = {
        (one.ledger_id, each.first_entry): list(each.bookies) for one in ledgers for each in one.segments
    }
    stored = dict(plan.before)
    added = dict.fromkeys(by_name, 0)
    seen = set()
    for group in replica_moves(plan):
        ledger_id, source, target = group[0].ledger_id, group[0].source, group[0].target
        before = variance(stored, uses)
        assert by_name[target].is_writable
        for move in group:
            bookies = members[ledger_id, move.first_entry]
            spread_before = spread(bookies)
            bookies[bookies.index(source)] = target
            assert len(set(bookies)) == len(bookies)  # no two replicas on one bookie
            assert spread(bookies) >= spread_before
            assert move.size_bytes == by_id[ledger_id][move.first_entry].replica_bytes
            stored[source] -= move.size_bytes
            stored[target] += move.size_bytes
            added[target] += move.size_bytes
            assert (ledger_id, move.first_entry, source) not in seen
            seen.add((ledger_id, move.first_entry, target))  # no replica moves twice
        # The old bookie deletes a ledger only if no segment names it.
        assert all(source not in members[ledger_id, first] for first in by_id[ledger_id])
        assert variance(stored, uses) < before  # no move in vain
    assert stored == plan.after
    for bookie, size in added.items():
        limit = by_name[bookie].free_bytes - int(FREE_SHARE_MIN * by_name[bookie].capacity_bytes)
        assert size == 0 or size <= limit


@settings(deadline=None)
@given(clusters())
def test_a_plan_of_a_cluster_that_followed_plans_has_an_end(
    cluster: tuple[list[BookieUse], list[ClosedLedger], dict[str, str]],
) -> None:
    uses, ledgers, _ = cluster
    for _round in range(200):
        plan = plan_moves(uses, ledgers, anywhere)
        if not plan.moves:
            return
        ledgers = moved(ledgers, plan.moves)
    raise AssertionError("each plan has moves")


def moved(ledgers: Sequence[ClosedLedger], moves: Sequence[Move]) -> list[ClosedLedger]:
    """The ledgers after these moves."""
    where = {(one.ledger_id, each.first_entry): each for one in ledgers for each in one.segments}
    for move in moves:
        segment = where[move.ledger_id, move.first_entry]
        bookies = tuple(move.target if one == move.source else one for one in segment.bookies)
        where[move.ledger_id, move.first_entry] = Segment(segment.first_entry, bookies, segment.replica_bytes)
    return [
        ClosedLedger(
            one.ledger_id,
            one.write_quorum,
            one.ack_quorum,
            tuple(where[one.ledger_id, each.first_entry] for each in one.segments),
        )
        for one in ledgers
    ]


def test_two_bookies_added_to_three_full_ones_end_as_full_as_they() -> None:
    ledgers = a_full_three()
    uses = [*(use(number, free=20 * GIB) for number in (1, 2, 3)), use(4), use(5)]
    plan = plan_moves(uses, ledgers, anywhere)
    assert max(shares(plan)) - min(shares(plan)) <= 0.05 * 0.48
    # No more bytes move than the two new ones need.
    assert plan.size_bytes <= 2 * 48 * GIB
    assert plan_moves(uses, moved(ledgers, plan.moves), anywhere).moves == ()


def test_a_run_that_was_ended_anywhere_is_continued_by_the_next_plan() -> None:
    uses = [*(use(number, free=20 * GIB) for number in (1, 2, 3)), use(4), use(5)]
    whole = plan_moves(uses, a_full_three(), anywhere)
    for done in (1, 17, len(whole.moves) // 2, len(whole.moves) - 1):
        left = moved(a_full_three(), whole.moves[:done])
        # Bookies report the moved bytes twice, because the old ones have not deleted theirs.
        late = [*uses[:3], use(4, free=60 * GIB), use(5, free=60 * GIB)]
        plan = plan_moves(late, left, anywhere)
        assert len(plan.moves) + done <= len(whole.moves) + 2
        assert max(shares(plan)) - min(shares(plan)) <= 0.05 * 0.48


def test_a_larger_bookie_gets_more_and_a_nearly_full_disk_gets_nothing() -> None:
    uses = [*(use(number, free=20 * GIB) for number in (1, 2, 3)), use(4, 300 * GIB), use(5, free=10 * GIB)]
    plan = plan_moves(uses, a_full_three(), anywhere)
    assert plan.after["b5"] == 0  # other programs fill its disk
    assert plan.after["b4"] > 1.5 * plan.after["b1"]


def test_a_read_only_bookie_gives_and_does_not_take() -> None:
    uses = [use(1, is_writable=False), use(2), use(3), use(4, is_writable=False), use(5)]
    plan = plan_moves(uses, a_full_three(), anywhere)
    assert plan.after["b4"] == 0
    assert plan.after["b1"] < plan.before["b1"]


def test_without_a_bookie_or_a_byte_there_is_no_move() -> None:
    assert plan_moves([], [], anywhere).moves == ()
    assert plan_moves([use(1, 0), use(2, 0)], [], anywhere).moves == ()
    empty = ClosedLedger(1, 1, 1, (Segment(0, ("b1",), 0),))
    assert plan_moves([use(1), use(2)], [empty], anywhere).moves == ()


def test_a_ledger_that_would_only_change_places_with_nothing_stays() -> None:
    large = ClosedLedger(1, 1, 1, (Segment(0, ("b1",), 60 * GIB),))
    assert plan_moves([use(1), use(2)], [large], anywhere).moves == ()
    # On a disk that is twice as large it is a smaller share.
    assert len(plan_moves([use(1), use(2, 200 * GIB)], [large], anywhere).moves) == 1
