"""How long a bookie takes to start if it must replay its journal, and if its index is lost."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import trio

from bookie.disk.real_disk import RealDisk
from bookie.journal.files import JournalConfig
from bookie.journal.format import NO_MARK, key_record
from bookie.journal.group_commit import LENGTH_BYTES
from bookie.journal.journals import Journals
from bookie.storage.opening import open_storage
from bookie.storage.storage import Storage
from tests.bench.storage.adds import ADD_BYTES, ADD_INFLIGHT, payloads_of
from tests.bench.storage.disk_space import files_below, make_cold
from tests.bench.storage.feeder import ENTRIES, EntryStream, Feeder, storage_config
from tests.bench.storage.measurement import GIB, Bar, Measurement
from tests.bench.work.link import BenchError

now = time.perf_counter

REPLAY_BAR = Bar(most=10)
REBUILD_BAR = Bar(least=0.5, of_ratio=True)
_BATCH = 512  # entries of one group
_BLOCK_BYTES = 1 << 20


async def measure_replay(directory: Path, size_bytes: int, progress: Callable[[int], None]) -> Measurement:
    """Measure a start on a journal of which no entry is in ledger storage yet, in seconds per GiB."""
    config = storage_config(directory / "replay")
    stream = EntryStream(payloads_of(ADD_BYTES))
    await _write_journal(
        config.journal_directories[0] / "current", config.journal, stream, size_bytes, progress
    )
    make_cold(files_below(directory))
    floor_s = _read_through(files_below(config.journal_directories[0]))
    make_cold(files_below(directory))
    cpu, started = time.process_time(), now()
    async with open_storage(RealDisk(), config) as storage:
        seconds, cpu = now() - started, time.process_time() - cpu
        _check_all_there(storage, stream)
    return Measurement(
        part="replay",
        value=seconds / size_bytes * GIB,
        unit="s/GiB",
        bar=REPLAY_BAR,
        floor=floor_s / size_bytes * GIB,
        details={"seconds": seconds, "cpu_s": cpu},
    )


async def measure_rebuild(directory: Path, size_bytes: int, progress: Callable[[int], None]) -> Measurement:
    """Measure a start on entry logs whose index is lost, in bytes of logs per second."""
    config = storage_config(directory / "rebuild", rebuild_index=True)
    stream = EntryStream(payloads_of(ADD_BYTES))
    async with open_storage(RealDisk(), config) as storage:
        count = max(1, size_bytes // ADD_BYTES)
        await Feeder(storage, stream, inflight=ADD_INFLIGHT).feed(
            count, lambda done: progress(done * ADD_BYTES)
        )
    current = config.ledger_directories[0] / "current"
    shutil.rmtree(current / "index")
    logs = list(current.glob("*.log"))
    logs_bytes = sum(path.stat().st_size for path in logs)
    make_cold(files_below(directory))
    cpu, started = time.process_time(), now()
    async with open_storage(RealDisk(), config) as storage:
        seconds, cpu = now() - started, time.process_time() - cpu
        _check_all_there(storage, stream)
    # The floor comes second: a cache below the kernel then favours the floor and not the bookie.
    make_cold(logs)
    floor_s = _read_through(logs)
    return Measurement(
        part="rebuild",
        value=logs_bytes / seconds / 1e6,
        unit="MB/s",
        bar=REBUILD_BAR,
        floor=logs_bytes / floor_s / 1e6,
        details={"seconds": seconds, "cpu_s": cpu},
    )


def _check_all_there(storage: Storage, stream: EntryStream) -> None:
    for ledger_id, last in stream.last_entry_ids():
        record = storage.ledger(ledger_id)
        found = -1 if record is None else record.last_entry_id
        if found != last:
            raise BenchError(f"ledger {ledger_id} ends at {found}, not {last}")


async def _write_journal(
    directory: Path,
    config: JournalConfig,
    stream: EntryStream,
    size_bytes: int,
    progress: Callable[[int], None],
) -> None:
    """Write the journal of a bookie that crashed before its first checkpoint."""
    disk = RealDisk()
    disk.make_directory(directory)
    synced = trio.Event()
    failures: list[BaseException] = []

    def on_durable(error: BaseException | None) -> None:
        if error is not None:
            failures.append(error)
        synced.set()

    async def no_records(records: Sequence[bytes], _: object) -> None:
        raise AssertionError("the journal is new")

    journals = Journals(disk, [directory], config)
    nexts = await journals.replay([[]], (NO_MARK,), no_records, wall_ms=lambda: 0)
    await journals.start(nexts, lambda _error: None)
    try:
        batch = journals.new_batch()
        for ledger_id, _ in stream.last_entry_ids():
            batch.records[0].append(key_record(ledger_id, ENTRIES.master_key))
        journals.submit(batch, lambda _error: None, sync=True)
        written = 0
        while written < size_bytes:
            batch = journals.new_batch()
            batch.records[0] += stream.bodies(min(_BATCH, -(-(size_bytes - written) // ADD_BYTES)))
            synced = trio.Event()
            count, body_bytes = journals.submit(batch, on_durable, sync=True)
            await synced.wait()
            if failures:
                raise failures[0]
            written += body_bytes + LENGTH_BYTES * count
            progress(written)
    finally:
        await journals.aclose()


def _read_through(files: Iterable[Path]) -> float:
    """Seconds to read the files from beginning to end."""
    started = now()
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.read(_BLOCK_BYTES):
                pass
    return now() - started
