"""Planning against a dumb twin: a stream is a list of records, a range a slice of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_integration.offsets import BEFORE_EVERYTHING, WHOLE_ENTRY, Position
from spark_integration.planning import Extent, Range, bounded_end, pieces, split

segments = st.lists(st.integers(-1, 12), min_size=1, max_size=5)


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[Extent], list[tuple[int, int, int]]]:
    """Extents, and every (segment, entry, slot) in them."""
    extents = [Extent(number, last) for number, last in enumerate(draw(segments), start=1)]
    records = [
        (extent.segment, entry, slot)
        for extent in extents
        for entry in range(extent.last_entry + 1)
        for slot in range(draw(st.integers(1, 3)))
    ]
    return extents, records


def ends(records: list[tuple[int, int, int]]) -> st.SearchStrategy[Position]:
    return st.sampled_from(
        [BEFORE_EVERYTHING]
        + [Position(*record) for record in records]
        + [Position(segment, entry, WHOLE_ENTRY) for segment, entry, _ in records]
    )


def read(whole: Range, records: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    return [r for r in records if whole.end.covers(*r) and not whole.start.covers(*r)]


@given(st.data(), streams(), st.integers(1, 20))
def test_the_parts_of_a_range_are_the_range(
    data: st.DataObject, stream: tuple[list[Extent], list[tuple[int, int, int]]], parts: int
) -> None:
    extents, records = stream
    whole = Range(data.draw(ends(records)), data.draw(ends(records)))
    cut = split(whole, extents, parts)
    assert len(cut) <= parts
    assert [record for part in cut for record in read(part, records)] == read(whole, records)
    assert all(not part.is_empty for part in cut)


@given(st.data(), streams(), st.integers(1, 20))
def test_a_bounded_trigger_moves_on_and_reads_no_more_entries_than_asked(
    data: st.DataObject, stream: tuple[list[Extent], list[tuple[int, int, int]]], entries_max: int
) -> None:
    extents, records = stream
    whole = Range(data.draw(ends(records)), data.draw(ends(records)))
    end = bounded_end(whole, extents, entries_max)
    assert end >= whole.start
    seen = read(Range(whole.start, end), records)
    assert len({(segment, entry) for segment, entry, _ in seen}) <= entries_max
    assert seen == read(whole, records)[: len(seen)]
    if not whole.is_empty:
        assert end > whole.start  # perhaps only past slots that turn out not to exist


@given(streams())
def test_a_range_over_everything_touches_every_entry(
    stream: tuple[list[Extent], list[tuple[int, int, int]]],
) -> None:
    extents, records = stream
    if not records:
        return
    whole = Range(BEFORE_EVERYTHING, Position(*records[-1]))
    touched = [(s, e) for s, first, last in pieces(whole, extents) for e in range(first, last + 1)]
    assert touched == sorted({(segment, entry) for segment, entry, _ in records})
