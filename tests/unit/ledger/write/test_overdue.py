from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ledger.write.overdue import TICKS, Overdue


def test_an_unconfirmed_entry_is_overdue_after_all_ticks() -> None:
    overdue = Overdue()
    assert [overdue.tick(-1, 0) for _ in range(TICKS)] == [None] * TICKS
    assert overdue.tick(-1, 0) == 0


def test_a_writer_whose_entries_are_confirmed_in_time_is_never_overdue() -> None:
    overdue = Overdue()
    assert all(overdue.tick(number - 1, number + 10) is None for number in range(0, 300, 3) for _ in [0])
    idle = Overdue()
    assert all(idle.tick(5, 5) is None for _ in range(20))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=40))
def test_it_agrees_with_a_time_for_each_entry(steps: list[tuple[int, int]]) -> None:
    overdue, lac, pushed_at = Overdue(), -1, dict[int, int]()
    for now, (pushed, confirmed) in enumerate(steps):
        for _ in range(pushed):
            pushed_at[len(pushed_at)] = now
        lac = min(lac + confirmed, len(pushed_at) - 1)
        late = [entry_id for entry_id, at in pushed_at.items() if entry_id > lac and now - at >= TICKS]
        assert overdue.tick(lac, len(pushed_at) - 1) == min(late, default=None)
