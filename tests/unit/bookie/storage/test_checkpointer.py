"""The steps of checkpoints, with ledger directories and a thread that the test moves by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from bookie.errors import StorageFailedError
from bookie.journal.checkpoint import Marks
from bookie.journal.format import NO_MARK, JournalMark
from bookie.storage.checkpointer import Checkpointer
from bookie.storage.failure import Failure


class HandThread:
    """Runs one job at each call of ``run``."""

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

    def seal(self, checkpoint_id: int, on_flushed: Callable[[int, int], None]) -> None:
        self.sealed.append(checkpoint_id)


class HandDisk:
    """Marks and journals. Records the writes and removals in order."""

    def __init__(self) -> None:
        self.done: list[object] = []
        self.error: OSError | None = None

    def write(self, marks: Marks) -> None:
        if self.error is not None:
            raise self.error
        self.done.append(marks)

    def retire_below(self, journal_id: int) -> None:
        self.done.append(journal_id)


class Fixture:
    """A checkpointer, and everything around it."""

    def __init__(self, *, directories: int = 2, found: Marks = (NO_MARK,)) -> None:
        self.stores = [HandStore() for _ in range(directories)]
        self.disk = HandDisk()
        self.failure = Failure()
        self.flushed_calls = 0
        self.checkpointer = Checkpointer(
            self.stores,  # type: ignore[arg-type]
            [self.disk],  # type: ignore[list-item]
            self.disk,  # type: ignore[arg-type]
            found,
            self.failure,
            on_flushed=self._on_flushed,
        )

    @property
    def thread(self) -> HandThread:
        return self.stores[0].thread

    def _on_flushed(self) -> None:
        self.flushed_calls += 1


def marks(*offsets: int) -> Marks:
    return tuple(JournalMark(5, offset) for offset in offsets)


def test_one_step_seals_all_directories_and_their_memory_counts_until_the_slowest_has_flushed() -> None:
    fixture = Fixture()
    checkpointer = fixture.checkpointer
    checkpointer.active_bytes = 100
    checkpointer.begin(marks(4096))
    assert [store.sealed for store in fixture.stores] == [[1], [1]]
    assert (checkpointer.active_bytes, checkpointer.sealed_bytes) == (0, 100)
    checkpointer.flushed(1, 1)
    assert (checkpointer.sealed_bytes, fixture.flushed_calls, fixture.thread.jobs) == (100, 0, [])
    checkpointer.flushed(0, 1)
    assert (checkpointer.sealed_bytes, fixture.flushed_calls) == (0, 1)
    assert fixture.disk.done == []
    fixture.thread.run()
    assert fixture.disk.done == [marks(4096), 5], "the marks are written before journal files are removed"


def test_a_directory_that_is_ahead_frees_nothing_and_moves_no_mark() -> None:
    fixture = Fixture()
    checkpointer = fixture.checkpointer
    for offset in (4096, 8192):
        checkpointer.active_bytes = 10
        checkpointer.begin(marks(offset))
    checkpointer.flushed(0, 2)
    assert checkpointer.sealed_bytes == 20
    checkpointer.flushed(1, 1)
    assert checkpointer.sealed_bytes == 10
    fixture.thread.run()
    assert fixture.disk.done == [marks(4096), 5]
    assert checkpointer.marks == marks(4096)


async def is_marked(checkpointer: Checkpointer, checkpoint_id: int) -> bool:
    with trio.move_on_after(0):
        await checkpointer.wait_marked(checkpoint_id)
        return True
    return False


async def test_a_checkpoint_that_moves_no_mark_is_marked_only_after_those_before_it() -> None:
    fixture = Fixture(directories=1)
    checkpointer = fixture.checkpointer
    checkpointer.begin(marks(4096))
    checkpointer.begin(marks(4096))
    checkpointer.flushed(0, 1)
    checkpointer.flushed(0, 2)
    assert not await is_marked(checkpointer, 2), "the marks of the first are not on disk yet"
    fixture.thread.run()
    assert [await is_marked(checkpointer, number) for number in (1, 2)] == [True, False]
    fixture.thread.run()
    assert await is_marked(checkpointer, 2)


def test_marks_found_at_the_start_are_written_again_before_a_journal_file_is_removed() -> None:
    """They may be in the page cache only. A power cut would bring back a mark whose file is gone."""
    fixture = Fixture(directories=1, found=marks(4096))
    fixture.checkpointer.begin(marks(4096))
    fixture.checkpointer.flushed(0, 1)
    fixture.thread.run()
    assert fixture.disk.done == [marks(4096), 5]
    fixture.checkpointer.begin(marks(4096))
    fixture.checkpointer.flushed(0, 2)
    fixture.thread.run()
    assert fixture.disk.done == [marks(4096), 5], "only once"


def test_a_new_bookie_writes_no_mark_before_a_journal_has_one() -> None:
    fixture = Fixture(directories=1)
    fixture.checkpointer.begin((NO_MARK,))
    fixture.checkpointer.flushed(0, 1)
    fixture.thread.run()
    assert fixture.disk.done == []


async def test_an_error_in_writing_marks_fails_the_storage_and_removes_no_journal_file() -> None:
    fixture = Fixture(directories=1)
    fixture.disk.error = OSError(5, "Input/output error")
    fixture.checkpointer.begin(marks(4096))
    fixture.checkpointer.flushed(0, 1)
    fixture.thread.run()
    assert "writing lastMark failed" in str(fixture.failure.error)
    assert fixture.disk.done == []
    with pytest.raises(StorageFailedError):
        await fixture.checkpointer.wait_marked()


async def test_a_failure_elsewhere_ends_the_wait_for_a_checkpoint() -> None:
    fixture = Fixture(directories=1)
    fixture.checkpointer.begin(marks(4096))

    async def wait() -> None:
        with pytest.raises(StorageFailedError, match="the storage has failed"):
            await fixture.checkpointer.wait_marked()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            fixture.failure.report(OSError(5, "Input/output error"), "the journal")
