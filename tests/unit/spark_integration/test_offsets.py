"""Offsets: one spelling, stream order, and errors for everything else."""

from __future__ import annotations

import json
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_integration.errors import OffsetFormatError
from spark_integration.offsets import (
    BEFORE_EVERYTHING,
    WHOLE_ENTRY,
    Position,
    from_offset,
    position_from_list,
    to_offset,
)

positions = st.builds(
    Position, st.integers(1, 2**62), st.integers(0, 2**62), st.one_of(st.just(-1), st.integers(0, 2**62))
)


def test_an_offset_has_one_spelling() -> None:
    offset = to_offset({"orders": Position(7, 1041, 3)})
    assert json.dumps(offset) == '{"v": 1, "streams": {"orders": [7, 1041, 3]}}'


@given(st.dictionaries(st.text(min_size=1), positions, max_size=5), st.randoms())
def test_equal_offsets_are_equal_text(streams: dict[str, Position], chance: random.Random) -> None:
    """Spark compares offsets as text: another order of keys would be a new batch with the same records."""
    items = list(streams.items())
    chance.shuffle(items)
    assert json.dumps(to_offset(dict(items))) == json.dumps(to_offset(streams))


@given(positions)
def test_a_position_survives_its_offset(position: Position) -> None:
    assert from_offset(json.loads(json.dumps(to_offset({"s": position})))) == {"s": position}


def test_a_whole_entry_comes_after_each_of_its_slots_and_before_the_next_entry() -> None:
    whole = Position(2, 5, WHOLE_ENTRY)
    assert Position(2, 5, 2**62) < whole < Position(2, 6, 0)
    assert whole.covers(2, 5, 10**9)
    assert not whole.covers(2, 6, 0)


def test_before_everything_covers_nothing() -> None:
    assert Position(1, 0, 0) > BEFORE_EVERYTHING
    assert not BEFORE_EVERYTHING.covers(1, 0, 0)


@given(st.lists(positions, max_size=20), st.integers())
def test_sorting_agrees_with_covering(some: list[Position], seed: int) -> None:
    random.Random(seed).shuffle(some)
    ordered = sorted(some)
    for one, other in pairwise(ordered):
        if one.slot != WHOLE_ENTRY:
            assert other.covers(one.segment, one.entry, one.slot)


@pytest.mark.parametrize(
    "offset",
    [
        None,
        3,
        [],
        {},
        {"v": 1},
        {"v": 2, "streams": {"s": [1, 0, 0]}},
        {"v": 1, "streams": {"s": "earliest"}},
    ],
)
def test_a_foreign_offset_is_rejected(offset: object) -> None:
    with pytest.raises(OffsetFormatError):
        from_offset(offset)


@pytest.mark.parametrize(
    "value",
    [[1, 2], [1, 2, 3, 4], ["1", 2, 3], [1.0, 2, 3], [True, 2, 3], [0, 0, 0], [1, 0, -2], [2**63, 0, 0]],
)
def test_an_impossible_position_is_rejected(value: object) -> None:
    with pytest.raises(OffsetFormatError):
        position_from_list(value)
