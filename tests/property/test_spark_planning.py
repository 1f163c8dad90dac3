"""Planning against a dumb twin: a stream is a list of records, a range a slice of it."""

# covers: spark_integration/planning.py

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_integration.offsets import BEFORE_EVERYTHING, WHOLE_ENTRY, Position
from spark_integration.planning import (
    Amount,
    CutSearch,
    Extent,
    Piece,
    Range,
    StreamRange,
    pieces,
    shares,
    split,
)

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


@given(st.data(), st.lists(streams(), min_size=1, max_size=4), st.integers(1, 20))
def test_the_partitions_of_several_streams_are_their_ranges(
    data: st.DataObject,
    several: list[tuple[list[Extent], list[tuple[int, int, int]]]],
    parts: int,
) -> None:
    """Whatever the sizes of pieces are: they are estimates, and decide only where the cuts are."""
    planned, expected = [], {}
    for number, (extents, records) in enumerate(several):
        whole = Range(data.draw(ends(records)), data.draw(ends(records)))
        sizes = data.draw(st.lists(st.integers(0, 10**9), min_size=5, max_size=5))
        measured = [
            Piece(segment, first, last, Amount(0, size, last - first + 1))
            for (segment, first, last), size in zip(pieces(whole, extents), sizes, strict=False)
        ]
        planned.append((StreamRange(str(number), whole), measured))
        expected[str(number)] = read(whole, records)
    cut = split(planned, parts)
    assert len(cut) <= parts
    assert all(partition and not any(part.range.is_empty for part in partition) for partition in cut)
    found: dict[str, list[tuple[int, int, int]]] = {stream: [] for stream in expected}
    for partition in cut:
        for part in partition:
            found[part.stream] += read(part.range, several[int(part.stream)][1])
    assert found == expected


@given(st.lists(st.integers(1, 100), min_size=1, max_size=8), st.integers(1, 6))
def test_partitions_have_about_equal_sizes(entry_counts: list[int], parts: int) -> None:
    planned = [
        (
            StreamRange(str(number), Range(BEFORE_EVERYTHING, Position(1, count - 1, WHOLE_ENTRY))),
            [Piece(1, 0, count - 1, Amount(count, 1000 * count, count))],
        )
        for number, count in enumerate(entry_counts)
    ]
    cut = split(planned, parts)
    counts = [sum(part.range.end.entry - max(part.range.start.entry, -1) for part in p) for p in cut]
    assert sum(counts) == sum(entry_counts)
    assert all(abs(count - sum(entry_counts) / parts) <= 1 for count in counts) or len(cut) < parts


@given(st.lists(st.integers(0, 50), min_size=1, max_size=200), st.integers(0, 3000))
def test_a_cut_is_the_last_entry_within_the_target(sizes: list[int], target: int) -> None:
    def through(entry: int) -> int:
        return sum(sizes[: entry - 9])

    first, last = 10, 9 + len(sizes)
    search, measured = CutSearch(first, last, through(last), target), 0
    while (entry := search.next_entry) is not None:
        search.measured(through(entry))
        measured += 1
    within = [each for each in range(first - 1, last + 1) if through(each) <= target]
    assert search.found == max(within)
    assert measured <= CutSearch.GUESSES_MAX + len(sizes).bit_length() + 1


backlogs_of_streams = st.dictionaries(st.text(max_size=3), st.integers(1, 1000), min_size=1, max_size=6)


@given(backlogs_of_streams, st.integers(1, 500))
def test_shares_keep_the_limit_and_leave_no_stream_out(backlogs: dict[str, int], limit: int) -> None:
    shared = shares(limit, backlogs)
    assert all(1 <= shared[stream] <= backlog for stream, backlog in backlogs.items())
    assert sum(shared.values()) <= max(limit, 0) + len(backlogs)


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
