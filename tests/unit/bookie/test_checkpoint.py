"""How far the journal may be forgotten."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bookie.checkpoint import Checkpoints
from bookie.journal_format import NO_MARK, JournalMark


def test_the_mark_moves_when_the_epoch_is_durable() -> None:
    checkpoints = Checkpoints(1)
    epoch = checkpoints.begin(JournalMark(1, 4096))
    assert checkpoints.mark == NO_MARK
    assert checkpoints.completed(0, epoch) == JournalMark(1, 4096)
    assert checkpoints.mark == JournalMark(1, 4096)


def test_the_mark_waits_for_the_slowest_directory() -> None:
    checkpoints = Checkpoints(2)
    first = checkpoints.begin(JournalMark(1, 4096))
    second = checkpoints.begin(JournalMark(1, 8192))
    assert checkpoints.completed(0, second) is None
    assert checkpoints.completed(1, first) == JournalMark(1, 4096)
    assert checkpoints.completed(1, second) == JournalMark(1, 8192)


def test_a_mark_never_decreases() -> None:
    checkpoints = Checkpoints(1, JournalMark(7, 4096))
    assert checkpoints.completed(0, checkpoints.begin(JournalMark(3, 9999))) is None
    assert checkpoints.mark == JournalMark(7, 4096)


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=60))
def test_the_mark_is_the_one_of_the_slowest_directorys_epoch(steps: list[tuple[int, bool]]) -> None:
    checkpoints = Checkpoints(3)
    marks = {0: NO_MARK}
    done = [0, 0, 0]
    for directory, begins in steps:
        if begins or done[directory] == checkpoints.epoch:
            mark = JournalMark(1, 4096 * len(marks))
            marks[checkpoints.begin(mark)] = mark
        else:
            done[directory] += 1
            checkpoints.completed(directory, done[directory])
        assert checkpoints.mark == marks[min(done)]
