"""Checkpoints as they are done, with directories and a thread that the test moves by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from bookie.checkpoint import Marks
from bookie.epochs import Epochs
from bookie.errors import StorageFailedError
from bookie.journal_format import NO_MARK, JournalMark


class HandThread:
    """Runs its jobs when it is told to."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = []

    def submit(self, job: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        self.jobs.append((job, done))

    def run(self) -> None:
        job, done = self.jobs.pop(0)
        try:
            done(job(), None)
        except OSError as exc:
            done(None, exc)


class HandStore:
    def __init__(self) -> None:
        self.thread = HandThread()
        self.sealed: list[int] = []

    def seal(self, epoch: int) -> None:
        self.sealed.append(epoch)


class HandDisk:
    """What would be done to marks and journals, in order."""

    def __init__(self) -> None:
        self.done: list[object] = []
        self.error: OSError | None = None

    def write(self, marks: Marks) -> None:
        if self.error is not None:
            raise self.error
        self.done.append(marks)

    def retire_below(self, journal_id: int) -> None:
        self.done.append(journal_id)


def make(directories: int = 2, journals: int = 1) -> tuple[Epochs, list[HandStore], HandDisk, list[object]]:
    stores, disk, told = [HandStore() for _ in range(directories)], HandDisk(), list[object]()
    epochs = Epochs(
        stores,  # type: ignore[arg-type]
        [disk] * journals,  # type: ignore[list-item]
        disk,  # type: ignore[arg-type]
        on_failed=lambda error, doing: told.append(doing),
        on_room=lambda: told.append("room"),
    )
    return epochs, stores, disk, told


def marks(*offsets: int) -> Marks:
    return tuple(JournalMark(5, offset) for offset in offsets)


def test_one_step_seals_all_directories_and_their_memory_counts_until_the_slowest_is_done() -> None:
    epochs, stores, disk, told = make()
    epochs.active_bytes = 100
    epochs.seal(marks(4096))
    assert [store.sealed for store in stores] == [[1], [1]]
    assert (epochs.active_bytes, epochs.sealed_bytes) == (0, 100)
    epochs.flushed_in(1, 1)
    assert (epochs.sealed_bytes, told, stores[0].thread.jobs) == (100, [], [])
    epochs.flushed_in(0, 1)
    assert (epochs.sealed_bytes, told) == (0, ["room"])
    assert disk.done == []
    stores[0].thread.run()
    assert disk.done == [marks(4096), 5], "marks before journals go"


def test_a_directory_that_is_ahead_frees_nothing_and_marks_nothing() -> None:
    epochs, stores, disk, _ = make()
    for offset in (4096, 8192):
        epochs.active_bytes = 10
        epochs.seal(marks(offset))
    epochs.flushed_in(0, 2)
    assert epochs.sealed_bytes == 20
    epochs.flushed_in(1, 1)
    assert epochs.sealed_bytes == 10
    stores[0].thread.run()
    assert disk.done == [marks(4096), 5]
    assert epochs.marks == marks(4096)


async def is_marked(epochs: Epochs, epoch: int) -> bool:
    with trio.move_on_after(0):
        await epochs.wait_marked(epoch)
        return True
    return False


async def test_an_epoch_that_moves_no_mark_is_marked_only_after_those_before_it() -> None:
    epochs, stores, _, _ = make(directories=1)
    epochs.seal(marks(4096))
    epochs.seal(marks(4096))
    epochs.flushed_in(0, 1)
    epochs.flushed_in(0, 2)
    assert not await is_marked(epochs, 2), "the marks of the first are not on disk yet"
    stores[0].thread.run()
    assert [await is_marked(epochs, epoch) for epoch in (1, 2)] == [True, False]
    stores[0].thread.run()
    assert await is_marked(epochs, 2)


def test_marks_that_a_start_has_found_are_written_again_before_anything_goes() -> None:
    """They may be in the page cache only: a power cut would bring back one whose file is gone."""
    epochs, stores, disk, _ = make(directories=1)
    epochs.start_from(marks(4096))
    epochs.seal(marks(4096))
    epochs.flushed_in(0, 1)
    stores[0].thread.run()
    assert disk.done == [marks(4096), 5]
    epochs.seal(marks(4096))
    epochs.flushed_in(0, 2)
    stores[0].thread.run()
    assert disk.done == [marks(4096), 5], "once"


def test_a_new_bookie_writes_no_mark_before_it_has_one() -> None:
    epochs, stores, disk, _ = make(directories=1)
    epochs.seal((NO_MARK,))
    epochs.flushed_in(0, 1)
    stores[0].thread.run()
    assert disk.done == []


async def test_marks_that_cannot_be_written_are_the_bookies_failure_and_no_journal_goes() -> None:
    epochs, stores, disk, told = make(directories=1)
    disk.error = OSError(5, "Input/output error")
    epochs.seal(marks(4096))
    epochs.flushed_in(0, 1)
    stores[0].thread.run()
    assert told == ["room", "writing lastMark"]
    assert disk.done == []
    epochs.fail(StorageFailedError("no more"))
    with pytest.raises(StorageFailedError):
        await epochs.wait_marked()
