"""A disk without file descriptors: each call waits for one, and none fails."""

from __future__ import annotations

import errno
import logging
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from bookie.bookie import open_bookie
from bookie.disk.descriptors import Descriptors
from bookie.disk.disk import File
from bookie.disk.real_disk import RealDisk
from bookie.errors import StorageFailedError
from bookie.storage.config import StorageConfig
from ledger.digest import DigestType, EntryCodec, master_key

ENTRIES = EntryCodec(DigestType.CRC32C, b"")


class Shortage:
    """A job that finds no descriptor for its first ``misses`` calls."""

    def __init__(self, misses: int, code: int = errno.EMFILE) -> None:
        self.misses, self.code, self.calls = misses, code, 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.misses:
            raise OSError(self.code, os.strerror(self.code))
        return "done"


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_a_thread_waits_for_a_descriptor(code: int) -> None:
    pauses: list[float] = []
    job = Shortage(40, code)
    assert Descriptors(pause=pauses.append).call(job) == "done"
    assert (job.calls, len(pauses)) == (41, 40)
    assert max(pauses) < 0.1, "each wait is bounded"


def test_another_error_is_raised_at_once() -> None:
    job = Shortage(1, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        Descriptors().call(job)
    assert job.calls == 1


def test_spares_help_first_and_are_taken_back() -> None:
    pauses: list[float] = []
    descriptors = Descriptors(pause=pauses.append)
    descriptors.hold_spares(3)
    assert descriptors.call(Shortage(2)) == "done"
    assert (descriptors.spares_count, pauses) == (1, [])
    descriptors.refill()
    assert descriptors.spares_count == 3
    descriptors.close()
    assert descriptors.spares_count == 0


async def test_a_thread_asks_the_loop_to_close_connections_and_waits_as_long_as_it_takes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked = trio.Event()
    pauses: list[float] = []
    descriptors = Descriptors(pause=pauses.append)
    descriptors.connect(asked.set)
    job = Shortage(5_010)
    assert await trio.to_thread.run_sync(descriptors.call, job) == "done"
    await asked.wait()
    assert sum(pauses) > 60
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == int(sum(pauses) // 10), "one line for ten seconds"
    assert "Raise the limit of open files" in lines[0]


async def test_without_a_server_a_call_gives_up() -> None:
    pauses: list[float] = []
    descriptors = Descriptors(pause=pauses.append)
    with pytest.raises(OSError, match="Too many open files"):
        await trio.to_thread.run_sync(descriptors.call, Shortage(1 << 30))
    assert 4 < sum(pauses) < 6


async def test_the_loop_does_not_wait_but_closes_connections_itself() -> None:
    def waits(seconds: float) -> None:
        raise AssertionError("the loop must not wait")

    closed: list[None] = []
    descriptors = Descriptors(pause=waits)
    descriptors.connect(lambda: closed.append(None))
    assert descriptors.call(Shortage(3)) == "done"
    assert len(closed) == 3
    with pytest.raises(OSError, match="Too many open files"):
        descriptors.call(Shortage(1 << 30))


def test_a_call_in_the_job_of_another_call_leaves_the_waiting_to_the_outer_one() -> None:
    lock = threading.Lock()

    def pause(seconds: float) -> None:
        assert not lock.locked(), "a thread waits for a descriptor and holds a lock"

    descriptors = Descriptors(pause=pause)
    shortage = Shortage(3)

    def with_lock() -> str:
        with lock:
            return descriptors.call(shortage)

    assert descriptors.call(with_lock) == "done"
    assert shortage.calls == 4
    assert descriptors.call(Shortage(1)) == "done", "the next call waits itself"


class ShortDisk(RealDisk):
    """Each call that needs a descriptor finds none at first, once for each place that calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.missed: set[str] = set()
        self.is_short = False
        real_call = self.descriptors.call

        def call(job: Callable[..., object], *args: object, **named: object) -> object:
            if not args:
                return real_call(job)
            # Log 1a.log and log 2.log are one kind.
            place = re.sub(r"^[0-9a-f]+(?=\.)", "", Path(str(args[0])).name)

            def short_job(*args: object) -> object:
                if self.is_short and place not in self.missed:
                    self.missed.add(place)
                    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(args[0]))
                return job(*args, **named)

            return real_call(short_job, *args)

        self.descriptors.call = call  # type: ignore[assignment]


@pytest.mark.slow
async def test_a_storage_that_finds_no_descriptor_at_any_open_loses_and_denies_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = StorageConfig(
        journal_directories=[tmp_path / "journal"],
        ledger_directories=[tmp_path / "ledgers"],
        entry_log_bytes_max=1 << 16,
    )
    disk = ShortDisk()
    async with open_bookie(config, disk=disk) as bookie:
        storage = bookie.storage
        disk.is_short = True
        for round_number in range(4):
            batch = storage.new_batch()
            ledger = storage.ledger(1) or storage.create_ledger(batch, 1, master_key(b""))
            for entry_id in range(round_number * 40, round_number * 40 + 40):
                body = ENTRIES.pack(1, entry_id, entry_id - 1, 1, bytes(1000))
                storage.stage_entry(batch, ledger, entry_id, entry_id - 1, body)
            await storage.submit_durably(batch)
            await storage.flush()
        assert await storage.entry_ids(1) == list(range(160))
        assert len(await storage.read(1, 3)) > 1000
        await storage.remove_dead_logs()
    assert disk.missed >= {".log", "lastMark.tmp"}
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    async with open_bookie(config, disk=disk) as bookie:  # the start and the replay find none either
        assert await bookie.storage.entry_ids(1) == list(range(160))
    assert disk.missed >= {"lastMark", "lastSynced", ".txn", ".txn.new", "LOCK", "current"}


async def test_a_write_that_fails_for_another_reason_still_fails_the_storage(tmp_path: Path) -> None:
    class BrokenDisk(RealDisk):
        is_broken = False

        def open(
            self, path: Path, *, create: bool = False, write: bool = False, direct: bool = False
        ) -> File:
            if self.is_broken and write:
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            return super().open(path, create=create, write=write, direct=direct)

    config = StorageConfig(
        journal_directories=[tmp_path / "journal"], ledger_directories=[tmp_path / "ledgers"]
    )
    disk = BrokenDisk()

    async def flush_on_a_broken_disk() -> None:
        async with open_bookie(config, disk=disk) as bookie:
            batch = bookie.storage.new_batch()
            ledger = bookie.storage.create_ledger(batch, 1, master_key(b""))
            bookie.storage.stage_entry(batch, ledger, 0, -1, ENTRIES.pack(1, 0, -1, 1, b"x"))
            await bookie.storage.submit_durably(batch)
            disk.is_broken = True
            await bookie.storage.flush()

    with pytest.raises(StorageFailedError):
        await flush_on_a_broken_disk()
