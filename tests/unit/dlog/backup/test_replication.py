"""Rounds without an end: their failures, and real processes that are killed."""

# covers: dlog/cli/operators/replicate.py

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

import dlog
from dlog.backup import BackupError, BackupUnreachableError, ReplicaStatus, open_backups
from dlog.backup.destination import DirectoryDestination
from tests.unit.dlog.backup.test_backups import append, records_of, restore

pytestmark = pytest.mark.slow  # each has directories of its own, on the disk


class Rounds:
    """Collects what a replication reports."""

    def __init__(self) -> None:
        self.seen: list[ReplicaStatus] = []
        self._changed = trio.Event()

    def on_round(self, status: ReplicaStatus) -> None:
        self.seen.append(status)
        self._changed.set()
        self._changed = trio.Event()

    async def wait(self, is_met: Callable[[ReplicaStatus], bool]) -> ReplicaStatus:
        with trio.fail_after(60):
            while True:
                changed = self._changed
                for status in self.seen:
                    if is_met(status):
                        return status
                await changed.wait()


@asynccontextmanager
async def replicating(
    namespace: dlog.Namespace, destination: Path, logs: list[str] | None = None
) -> AsyncIterator[Rounds]:
    rounds = Rounds()
    async with trio.open_nursery() as nursery:

        async def run() -> None:
            await namespace.backup.replicate(
                destination, logs=logs, interval_s=0.01, on_round=rounds.on_round
            )

        nursery.start_soon(run)
        yield rounds
        nursery.cancel_scope.cancel()


async def test_records_arrive_and_nothing_is_written_while_nothing_changes(tmp_path: Path) -> None:
    source, destination = tmp_path / "source", tmp_path / "destination"
    async with (
        dlog.open_namespace(source.as_uri()) as namespace,
        namespace.open_writer("orders", create=True) as writer,
        replicating(namespace, destination) as rounds,
    ):
        for number in range(3):
            await writer.append(b"%d" % number)
            await writer.flush()
            count = len(rounds.seen)
            await rounds.wait(lambda status, count=count: status.rounds > count + 1)  # type: ignore[misc]
        sent = rounds.seen[-1].bytes_sent
        count = rounds.seen[-1].rounds
        assert (await rounds.wait(lambda status: status.rounds > count + 3)).bytes_sent == sent
    async with open_backups(destination) as backups:
        assert (await backups.verify()).is_sound
    await restore(destination, tmp_path / "restored")
    assert len(await records_of((tmp_path / "restored").as_uri(), "orders")) == 3


async def test_while_the_destination_is_away_the_writer_continues_and_the_replica_catches_up(
    tmp_path: Path,
) -> None:
    source, destination = tmp_path / "source", tmp_path / "destination"
    async with (
        dlog.open_namespace(source.as_uri()) as namespace,
        namespace.open_writer("orders", create=True) as writer,
        replicating(namespace, destination) as rounds,
    ):
        await writer.append(b"before")
        await writer.flush()
        await rounds.wait(lambda status: status.rounds > 2)
        destination.rename(tmp_path / "unplugged")
        destination.mkdir()  # as the place of a disk that is not mounted
        await writer.append(b"during")
        await writer.flush()
        failed = await rounds.wait(lambda status: status.failure is not None)
        assert "is its disk mounted?" in str(failed.failure)
        assert not (destination / "manifests").exists()
        shutil.rmtree(destination)
        (tmp_path / "unplugged").rename(destination)
        count = failed.rounds
        await rounds.wait(lambda status: status.failure is None and status.rounds > count + 1)
    await restore(destination, tmp_path / "restored")
    found = await records_of((tmp_path / "restored").as_uri(), "orders")
    assert [each[2] for each in found] == [b"before", b"during"]


async def test_a_destination_that_stays_away_ends_it_after_the_time_that_was_given(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    async with dlog.open_namespace((tmp_path / "source").as_uri()) as namespace:
        with pytest.raises(BackupUnreachableError):
            await namespace.backup.replicate(tmp_path / "file" / "destination", retry_timeout_s=0)
        with pytest.raises(ValueError, match="interval_s"):
            await namespace.backup.replicate(tmp_path / "destination", interval_s=0)


async def test_a_damaged_manifest_stops_no_replication_and_no_chunk_is_deleted(tmp_path: Path) -> None:
    source, destination = tmp_path / "source", tmp_path / "destination"
    async with dlog.open_namespace(source.as_uri()) as namespace:
        async with namespace.open_writer("orders", create=True) as writer:
            await writer.append(b"x")
        await namespace.backup.make(destination)
        manifest = next((destination / "manifests").iterdir())
        manifest.write_bytes(manifest.read_bytes()[:-1])
        stray = destination / "ledgers" / "99"
        stray.mkdir()
        (stray / "0-0-0").write_bytes(b"of the damaged one, perhaps")
        async with replicating(namespace, destination) as rounds:
            await rounds.wait(lambda status: status.rounds > 2)
        assert all(status.failure is None for status in rounds.seen)
    assert (stray / "0-0-0").exists()
    manifest.unlink()
    async with open_backups(destination) as backups:
        assert (await backups.verify()).is_sound


async def test_it_waits_while_another_process_writes_to_the_destination(tmp_path: Path) -> None:
    source, destination = tmp_path / "source", tmp_path / "destination"
    other = DirectoryDestination(destination)
    other.begin(create=True)
    async with (
        dlog.open_namespace(source.as_uri()) as namespace,
        replicating(namespace, destination) as rounds,
    ):
        await rounds.wait(lambda status: status.failure is not None)
        other.end()
        await rounds.wait(lambda status: status.rounds > 0 and status.failure is None)


async def test_a_view_that_never_changes_is_not_replicated(tmp_path: Path) -> None:
    await append(tmp_path / "source", "orders", b"x")
    async with dlog.open_namespace((tmp_path / "source").as_uri(), read_only=True) as namespace:
        with pytest.raises(BackupError, match="dlog replicate"):
            await namespace.backup.replicate(tmp_path / "destination")


def start(source: Path, destination: Path) -> subprocess.Popen[str]:
    command = f"-m dlog replicate {source} --to {destination} --json --interval 0.02"
    return subprocess.Popen([sys.executable, *command.split()], stdout=subprocess.PIPE, text=True)


KILLS = 20


async def test_it_is_killed_twenty_times_under_a_writer_and_what_a_manifest_claims_is_there(
    tmp_path: Path,
) -> None:
    source, destination = tmp_path / "source", tmp_path / "destination"
    visible: list[tuple[int, int]] = []  # the time, and the records that were visible then
    async with (
        dlog.open_namespace(source.as_uri()) as namespace,
        namespace.open_writer("orders", create=True) as writer,
        trio.open_nursery() as nursery,
    ):

        async def write() -> None:
            number = 0
            while True:
                await writer.append_many([b"%d" % each for each in range(number, number + 10)])
                number += 10
                await writer.flush()
                visible.append((namespace.context.wall_ms(), number))

        nursery.start_soon(write)
        for kill in range(KILLS):
            process = await trio.to_thread.run_sync(start, source, destination)
            assert process.stdout is not None
            for _ in range(1 + kill % 3):  # rounds that are written, then killed in any place of the next
                line = await trio.to_thread.run_sync(process.stdout.readline)
                assert json.loads(line)["failure"] is None
            os.kill(process.pid, signal.SIGKILL)
            await trio.to_thread.run_sync(process.wait)
            process.stdout.close()
        nursery.cancel_scope.cancel()
    written = await records_of(source.as_uri(), "orders")
    async with open_backups(destination) as backups:
        assert (await backups.verify()).is_sound
        made = await backups.list_all()
    assert len(made) >= KILLS
    last = made[-1]
    await restore(destination, tmp_path / "restored")
    found = await records_of((tmp_path / "restored").as_uri(), "orders")
    assert found == written[: len(found)]
    assert len(found) >= max(count for ms, count in visible if ms < last.begun_ms)
    left = DirectoryDestination(destination)
    left.begin(create=False)  # the lock of a killed process is free, and its unfinished files are removed
    left.end()
    assert not list(destination.rglob(".new-*"))
