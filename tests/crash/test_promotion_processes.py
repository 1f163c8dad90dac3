"""Promotions with real processes: a writer that attaches to the directory, a promoter that gets a SIGKILL."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

import dlog
from dlog.cluster import open_local_cluster

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper, pytest.mark.slow]
TEST_TIMEOUT_S = 240
LOG = "orders"
DLOG = [sys.executable, "-m", "dlog.cli.main"]

# Prints each number once it is acknowledged. It knows only the URI of the directory.
APPEND = """
import sys, trio, dlog
async def main():
    config = dlog.WriterConfig(segment_bytes_max=20_000, entry_bytes_target=2_000)
    async with dlog.open_namespace(sys.argv[1]) as namespace:
        async with namespace.open_writer("orders", create=True, config=config) as writer:
            number = 0
            while True:
                await writer.append_many([b"%d" % n for n in range(number, number + 5)])
                number += 5
                print(number, flush=True)
                await trio.sleep(0.002)
trio.run(main)
"""


@contextmanager
def running(*arguments: str, stderr: int | None = None) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=stderr, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


class Appender:
    """The process that writes; its output is read in the background, so that it never waits."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process, self.acknowledged, self._grew = process, 0, trio.Event()

    async def read(self) -> None:
        assert self.process.stdout is not None
        while line := await trio.to_thread.run_sync(self.process.stdout.readline):
            self.acknowledged = int(line)
            self._grew.set()
            self._grew = trio.Event()

    async def wait_acknowledged(self, count: int) -> None:
        while self.acknowledged < count:
            assert self.process.poll() is None, "the writer goes on"
            await self._grew.wait()


async def killed_at(step: str, *arguments: str) -> None:
    """Run ``dlog promote`` and kill it when it says that it begins a step."""
    with running(*DLOG, "promote", *arguments, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        while line := await trio.to_thread.run_sync(process.stderr.readline):
            if step in line:
                break
        process.send_signal(signal.SIGKILL)
        await trio.to_thread.run_sync(process.wait)


async def promoted(*arguments: str) -> list[dict[str, object]]:
    done = await trio.run_process(
        [*DLOG, "promote", *arguments, "--json"], capture_stdout=True, capture_stderr=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    found: list[dict[str, object]] = json.loads(done.stdout)
    return found


async def test_a_promoter_killed_between_steps_loses_and_repeats_nothing(tmp_path: Path) -> None:
    source = (tmp_path / "old").as_uri()
    with trio.fail_after(TEST_TIMEOUT_S):
        async with open_local_cluster(tmp_path / "cluster") as cluster:
            await check_promotion(source, cluster.uri)


async def check_promotion(source: str, target: str) -> None:
    """Promote a log that another process writes and this one reads; kill the promoter between its steps."""
    read: list[int] = []

    async def follow(*, task_status: trio.TaskStatus[None]) -> None:
        async with dlog.open_namespace(source) as namespace, namespace.open_reader(LOG) as reader:
            task_status.started()
            async for record in reader:
                read.append(int(record.payload))

    with running(sys.executable, "-c", APPEND, source) as process:
        async with trio.open_nursery() as nursery:
            appender = Appender(process)
            nursery.start_soon(appender.read)
            await appender.wait_acknowledged(200)
            await nursery.start(follow)
            await killed_at("copy segments", source, "--to", target)
            await appender.wait_acknowledged(appender.acknowledged + 200)
            await killed_at("copy the rest", source, "--resume")
            # The writer finishes the hand-over if no process does.
            await appender.wait_acknowledged(appender.acknowledged + 200)
            (status,) = await promoted(source, "--resume")
            assert (status["phase"], status["takes_records"]) == ("done", target)
            await appender.wait_acknowledged(appender.acknowledged + 200)
            # Not a kill: the next writer would wait for the end of its session with ZooKeeper.
            process.send_signal(signal.SIGINT)
            await trio.to_thread.run_sync(process.wait)
            nursery.cancel_scope.cancel()
    assert read == list(range(len(read))), "the reader got each record once, in order"
    async with dlog.open_namespace(source) as namespace:
        async with namespace.open_writer(LOG):
            pass
        async with namespace.open_reader(LOG, follow=False) as reader:
            numbers = [int(record.payload) async for record in reader]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) >= appender.acknowledged
        assert (await namespace.repair.verify(LOG)).is_sound
        assert await namespace.promotion.purge(LOG) > 0
        assert await namespace.count_records(LOG) == len(numbers)
    async with dlog.open_namespace(target) as namespace:
        assert await namespace.count_records(LOG) == len(numbers)
