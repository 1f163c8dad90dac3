"""Which marks a checkpoint may write."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.journal.checkpoint import CheckpointMarks
from bookie.journal.format import NO_MARK, JournalMark


def test_the_mark_moves_when_the_checkpoint_is_flushed() -> None:
    checkpoints = CheckpointMarks(1)
    checkpoint_id = checkpoints.begin([JournalMark(1, 4096)])
    assert checkpoints.marks == (NO_MARK,)
    assert checkpoints.flushed(0, checkpoint_id) == (JournalMark(1, 4096),)
    assert checkpoints.marks == (JournalMark(1, 4096),)


def test_the_mark_waits_for_the_slowest_directory() -> None:
    """apache/bookkeeper#3329: the flush of one directory moved the mark past another one's cache."""
    checkpoints = CheckpointMarks(2)
    first = checkpoints.begin([JournalMark(1, 4096)])
    second = checkpoints.begin([JournalMark(1, 8192)])
    assert checkpoints.flushed(0, second) is None
    assert checkpoints.flushed_id == 0
    assert checkpoints.flushed(1, first) == (JournalMark(1, 4096),)
    assert checkpoints.flushed(1, second) == (JournalMark(1, 8192),)
    assert checkpoints.flushed_id == 2


def test_a_flush_out_of_order_moves_no_mark() -> None:
    checkpoints = CheckpointMarks(1)
    with pytest.raises(AssertionError, match="checkpoint 1 after 0"):
        checkpoints.flushed(0, 1)  # it has not begun
    second = [checkpoints.begin([JournalMark(1, offset)]) for offset in (4096, 8192)][1]
    checkpoints.flushed(0, second)
    with pytest.raises(AssertionError, match="checkpoint 1 after 2"):
        checkpoints.flushed(0, 1)
    assert checkpoints.marks == (JournalMark(1, 8192),)


def test_a_mark_never_decreases() -> None:
    checkpoints = CheckpointMarks(1, [JournalMark(7, 4096)])
    assert checkpoints.flushed(0, checkpoints.begin([JournalMark(3, 9999)])) is None
    assert checkpoints.marks == (JournalMark(7, 4096),)


def test_marks_of_several_journals_are_compared_one_by_one() -> None:
    """apache/bookkeeper#4844: compared as a list, a first journal that had moved hid the second."""
    checkpoints = CheckpointMarks(1, [JournalMark(5, 8192), JournalMark(5, 4096)])
    checkpoint_id = checkpoints.begin([JournalMark(5, 4096), JournalMark(9, 512)])
    assert checkpoints.flushed(0, checkpoint_id) == (JournalMark(5, 8192), JournalMark(9, 512))


@given(
    st.integers(1, 3),
    st.lists(
        st.tuples(st.integers(0, 2), st.booleans(), st.lists(st.integers(0, 2), min_size=3, max_size=3)),
        max_size=60,
    ),
)
def test_each_mark_is_the_greatest_of_the_checkpoints_that_every_directory_has_flushed(
    journal_count: int, steps: list[tuple[int, bool, list[int]]]
) -> None:
    """The dumb twin keeps the marks of every checkpoint and looks through all of them each time."""
    checkpoints = CheckpointMarks(3, [NO_MARK] * journal_count)
    begun: list[tuple[JournalMark, ...]] = [(NO_MARK,) * journal_count]
    done = [0, 0, 0]
    for directory, begins, growth in steps:
        before = checkpoints.marks
        if begins or done[directory] == checkpoints.begun_id:
            # A journal's mark stays, moves in its file, or moves to the next file.
            marks = tuple(
                JournalMark(mark.journal_id + (grown == 2), mark.offset + 512 * grown)
                for mark, grown in zip(begun[-1], growth, strict=False)
            )
            begun.append(marks)
            assert checkpoints.begin(marks) == len(begun) - 1
            assert checkpoints.marks == before
        else:
            done[directory] += 1
            moved = checkpoints.flushed(directory, done[directory])
            assert moved == (checkpoints.marks if checkpoints.marks != before else None)
        for journal in range(journal_count):
            assert checkpoints.marks[journal] == max(
                marks[journal] for number, marks in enumerate(begun) if number <= min(done)
            )
        assert checkpoints.flushed_id == min(done)
