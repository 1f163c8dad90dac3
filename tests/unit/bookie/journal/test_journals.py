"""Several journals as one: which ledger goes where, and when a batch over several of them is acknowledged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

from bookie.disk.disk import DiskThread
from bookie.disk.real_disk import RealDisk
from bookie.errors import JournalMissingError, StorageFailedError
from bookie.journal.files import JournalConfig, JournalFiles
from bookie.journal.format import NO_MARK, JournalMark, Predecessor, fence_record
from bookie.journal.group_commit import WriteBatch
from bookie.journal.journals import Journals, NextFile
from bookie.journal.replay import read_journal

SMALL = JournalConfig(file_bytes_max=64 << 10, preallocate_bytes=16 << 10, group_bytes_max=8 << 10)


class HeldThread(DiskThread):
    """A thread whose jobs wait until the test lets them run."""

    def __init__(self, inner: DiskThread) -> None:
        self._inner = inner
        self.held: (
            list[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None] | None]] | None
        ) = None

    def submit(
        self, job: Callable[[], Any], done: Callable[[Any, BaseException | None], None] | None
    ) -> None:
        if self.held is None:
            self._inner.submit(job, done)
        else:
            self.held.append((job, done))

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._inner.call_soon(callback)

    def release(self) -> None:
        held, self.held = self.held or [], None
        for job, done in held:
            self._inner.submit(job, done)

    def post(self, callback: Callable[..., None], *args: Any) -> None:
        self._inner.post(callback, *args)

    async def aclose(self) -> None:
        self.release()
        await self._inner.aclose()


class HeldDisk(RealDisk):
    def __init__(self) -> None:
        super().__init__()
        self.threads: list[HeldThread] = []

    def start_thread(self, name: str) -> DiskThread:
        thread = HeldThread(super().start_thread(name))
        self.threads.append(thread)
        return thread


def fences(journals: Journals, *ledger_ids: int) -> WriteBatch:
    """A batch with the fences of these ledgers."""
    batch = journals.new_batch()
    for ledger_id in ledger_ids:
        batch.records[journals.number_of(ledger_id)].append(fence_record(ledger_id))
    return batch


class Answers:
    """The answers in order; ``count`` waits for a number of them."""

    def __init__(self) -> None:
        self.given: list[tuple[str, BaseException | None]] = []
        self._changed = trio.Event()

    def taker(self, name: str) -> Callable[[BaseException | None], None]:
        def take(error: BaseException | None) -> None:
            self.given.append((name, error))
            self._changed.set()
            self._changed = trio.Event()

        return take

    async def count(self, number: int) -> list[str]:
        with trio.fail_after(60):
            while len(self.given) < number:
                await self._changed.wait()
        return [name for name, _ in self.given]


async def no_records(records: Sequence[bytes], _: object) -> None:
    raise AssertionError("nothing is there yet")


async def started(
    disk: RealDisk,
    directory: Path,
    count: int,
    on_acknowledged: Callable[[StorageFailedError | None], None] = lambda error: None,
) -> Journals:
    directories = [directory / f"j{number}" for number in range(count)]
    for path in directories:
        path.mkdir(exist_ok=True)
    journals = Journals(disk, directories, SMALL)
    nexts = await journals.replay([[]] * count, (NO_MARK,) * count, no_records, wall_ms=lambda: 0)
    assert nexts == [NextFile(NO_MARK, 1, Predecessor(0, 0))] * count
    await journals.start(nexts, on_acknowledged)
    return journals


async def records_in(directory: Path) -> list[bytes]:
    found: list[bytes] = []

    async def apply(records: Sequence[bytes], _: object) -> None:
        found.extend(records)

    ids = JournalFiles(RealDisk(), directory, SMALL).scan()
    await read_journal(RealDisk(), directory, ids, NO_MARK, apply)
    return found


async def test_a_ledgers_records_go_to_the_journal_at_its_id_modulo_their_number(tmp_path: Path) -> None:
    journals = await started(RealDisk(), tmp_path, 3)
    answers = Answers()
    assert journals.submit(fences(journals, *range(7)), answers.taker("batch"), sync=True) == (7, 7 * 16)
    assert await answers.count(1) == ["batch"]
    await journals.aclose()
    for number in range(3):
        wanted = [fence_record(ledger_id) for ledger_id in range(7) if ledger_id % 3 == number]
        assert await records_in(tmp_path / f"j{number}") == wanted


async def test_a_batch_is_acknowledged_when_its_last_part_is_durable(tmp_path: Path) -> None:
    disk = HeldDisk()
    journals = await started(disk, tmp_path, 2)
    answers = Answers()
    disk.threads[1].held = []
    journals.submit(fences(journals, 0, 1), answers.taker("both"), sync=True)
    journals.submit(fences(journals, 2), answers.taker("first alone"), sync=True)
    assert await answers.count(1) == ["first alone"]
    assert journals.queued_bytes == 20
    disk.threads[1].release()
    assert await answers.count(2) == ["first alone", "both"]
    assert journals.queued_bytes == 0
    assert all(error is None for _, error in answers.given)
    await journals.aclose()


async def test_a_batch_that_awaits_a_ledger_waits_for_that_ledgers_journal(tmp_path: Path) -> None:
    """A force, or a read behind another client's fence, in a chunk that adds to other ledgers only."""
    disk = HeldDisk()
    journals = await started(disk, tmp_path, 2)
    answers = Answers()
    disk.threads[1].held = []
    journals.submit(fences(journals, 1), answers.taker("deferred"), sync=False)
    batch = fences(journals, 0)
    batch.await_ledger(1)
    journals.submit(batch, answers.taker("force"), sync=True)
    journals.submit(fences(journals, 0), answers.taker("other"), sync=True)
    assert await answers.count(1) == ["other"]
    disk.threads[1].release()
    assert await answers.count(3) == ["other", "deferred", "force"]
    assert not journals.has_unsynced
    await journals.aclose()


async def test_an_empty_batch_waits_for_all_journals(tmp_path: Path) -> None:
    disk = HeldDisk()
    journals = await started(disk, tmp_path, 2)
    answers = Answers()
    disk.threads[1].held = []
    assert journals.submit(journals.new_batch(), answers.taker("all"), sync=True) == (0, 0)
    journals.submit(fences(journals, 0), answers.taker("first alone"), sync=True)
    assert await answers.count(1) == ["first alone"]
    disk.threads[1].release()
    await answers.count(2)
    await journals.aclose()


async def test_a_journal_begun_anew_where_one_was_lost_is_replayed_by_the_next_start(tmp_path: Path) -> None:
    """Nothing tells of the new file yet but the file: the power went before the first mark."""
    lost = JournalMark(100, 8192)
    found: list[bytes] = []

    async def apply(records: Sequence[bytes], _: object) -> None:
        found.extend(records)

    async def start(*, accepts_losses: bool = True) -> JournalMark:
        journals = Journals(RealDisk(), [tmp_path], SMALL)
        nexts = await journals.replay(
            journals.scan(), (lost,), apply, wall_ms=lambda: 0, accepts_losses=accepts_losses
        )
        await journals.start(nexts, lambda error: None)
        journals.submit(fences(journals, 1), lambda error: None, sync=True)
        await journals.aclose()
        return nexts[0].end

    assert await start() == lost
    assert JournalFiles(RealDisk(), tmp_path, SMALL).scan() == [101]
    with pytest.raises(JournalMissingError):
        await start(accepts_losses=False)
    assert await start() == JournalMark(101, 8192)
    assert found == [fence_record(1)]


async def test_of_a_journal_whose_file_at_the_mark_alone_is_lost_nothing_is_skipped(tmp_path: Path) -> None:
    files = JournalFiles(RealDisk(), tmp_path, SMALL)
    for journal_id, previous in ((99, Predecessor(98, 8192)), (101, Predecessor(100, 8192))):
        files.create(journal_id, previous)[0].close()
    for ids in ([99], [101], [99, 101]):
        journals = Journals(RealDisk(), [tmp_path], SMALL)
        with pytest.raises(JournalMissingError):
            await journals.replay(
                [ids], (JournalMark(100, 4096),), no_records, wall_ms=lambda: 0, accepts_losses=True
            )


async def test_once_a_journal_has_failed_the_others_acknowledge_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = HeldDisk()
    failed = trio.Event()
    journals = await started(disk, tmp_path, 2, lambda error: failed.set() if error else None)
    answers = Answers()
    journals._journals[1]._writer._file.close()  # type: ignore[union-attr]
    journals._journals[1]._writer._file.write_durably = _fail  # type: ignore[union-attr, method-assign]
    disk.threads[0].held = []
    journals.submit(fences(journals, 0), answers.taker("sound journal"), sync=True)
    journals.submit(fences(journals, 2, 1), answers.taker("both"), sync=True)
    await failed.wait()
    disk.threads[0].release()
    assert await answers.count(2) == ["sound journal", "both"]
    assert all(isinstance(error, StorageFailedError) for _, error in answers.given)
    assert "No space left" in caplog.text
    journals._journals[1]._writer._file = None
    await journals.aclose()


def _fail(data: object, offset: int) -> None:
    raise OSError(28, "No space left on device")


async def test_a_batch_is_submitted_once(tmp_path: Path) -> None:
    journals = await started(RealDisk(), tmp_path, 1)
    answers = Answers()
    batch = fences(journals, 0)
    journals.submit(batch, answers.taker("once"), sync=True)
    with pytest.raises(AssertionError, match="submitted once"):
        journals.submit(batch, answers.taker("twice"), sync=True)
    assert await answers.count(1) == ["once"]
    await journals.aclose()
    assert await records_in(tmp_path / "j0") == [fence_record(0)]
