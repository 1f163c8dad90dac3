"""A directory that several processes share; the tests kill some of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

import dlog

pytestmark = pytest.mark.cluster

APPEND_FOR_EVER = """
import sys, trio, dlog
async def main():
    async with dlog.open_namespace(sys.argv[1]) as namespace:
        async with namespace.open_writer("log", create=True) as writer:
            number = int(sys.argv[2])
            while True:
                await writer.append_many([b"%d" % n for n in range(number, number + 7)])
                number += 7
                print(number, flush=True)
trio.run(main)
"""

HOLD_OPEN = """
import sys, trio, dlog
async def main():
    async with dlog.open_namespace(sys.argv[1]):
        print("open", flush=True)
        await trio.sleep_forever()
trio.run(main)
"""


@contextmanager
def running(script: str, *args: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", script, *args], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


async def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    with trio.fail_after(60):
        return (await trio.to_thread.run_sync(process.stdout.readline)).strip()


async def numbers_in(namespace: dlog.Namespace) -> list[int]:
    async with namespace.open_reader("log", follow=False) as reader:
        return [int(record.payload) async for record in reader]


async def test_the_durable_records_of_a_killed_writer_are_in_the_log(tmp_path: Path) -> None:
    uri, acknowledged = f"file://{tmp_path}", 0
    for _ in range(3):
        with running(APPEND_FOR_EVER, uri, str(acknowledged)) as process:
            for _ in range(20):
                acknowledged = int(await line_of(process))
            process.send_signal(signal.SIGKILL)
            assert process.stdout is not None
            for line in process.stdout:
                acknowledged = int(line)
        async with dlog.open_namespace(uri) as namespace:
            async with namespace.open_writer("log"):
                pass  # opening a writer recovers the log
            numbers = await numbers_in(namespace)
        assert numbers[:acknowledged] == list(range(acknowledged))
        assert numbers == list(range(len(numbers))), "later records are in order and not repeated"
        acknowledged = len(numbers)


async def test_a_writer_continues_when_the_hosting_process_is_killed(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}"
    with running(HOLD_OPEN, uri) as host:
        assert await line_of(host) == "open"
        async with dlog.open_namespace(uri) as namespace, namespace.open_writer("log", create=True) as writer:
            dlsns = [await writer.append(b"%d" % n) for n in range(10)]
            pendings = [writer.submit(b"%d" % n) for n in range(10, 200)]
            host.kill()
            pendings += [writer.submit(b"%d" % n) for n in range(200, 300)]
            with trio.fail_after(60):
                dlsns += [await pending for pending in pendings]
                dlsns.append(await writer.append(b"300"))
            await writer.flush()
            async with namespace.open_reader("log", follow=False) as reader:
                records = [record async for record in reader]
    assert [int(record.payload) for record in records] == list(range(301))
    assert [record.dlsn for record in records] == dlsns


async def test_a_follower_goes_on_when_the_process_that_writes_and_hosts_is_killed(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}"
    async with dlog.open_namespace(f"{uri}") as namespace:
        await namespace.create_log("log")
    with running(APPEND_FOR_EVER, uri, "0") as process:
        acknowledged = int(await line_of(process))
        async with dlog.open_namespace(uri) as namespace, namespace.open_reader("log", cursor="c") as reader:
            with trio.fail_after(60):
                seen = [int((await anext(reader)).payload) for _ in range(acknowledged)]
                await reader.commit()
                process.kill()
                async with namespace.open_writer("log") as writer:
                    await writer.append(b"-1")
                while seen[-1] != -1:
                    seen.append(int((await anext(reader)).payload))
                cursor = await reader.commit()
            assert seen == [*range(len(seen) - 1), -1]
            assert cursor is not None
            assert cursor == await namespace.cursors("log").get("c")


async def test_a_second_process_attaches_to_the_first(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}"
    async with dlog.open_namespace(uri) as namespace:
        await namespace.create_log("log")
        async with namespace.open_reader("log") as reader:
            with running(APPEND_FOR_EVER, uri, "0") as process:
                await line_of(process)
                with trio.fail_after(60):
                    for number in range(100):
                        assert int((await anext(reader)).payload) == number
                with pytest.raises(dlog.LogLockedError, match=str(process.pid)):
                    async with namespace.open_writer("log", lock_timeout_s=0):
                        pass
            with trio.fail_after(60):
                async with namespace.open_writer("log", lock_timeout_s=30) as writer:
                    await writer.append(b"-1")
        assert (await numbers_in(namespace))[-1] == -1


FORK_AND_HOLD_OPEN = """
import os, signal, sys, trio, dlog
async def main():
    async with dlog.open_namespace(sys.argv[1]):
        child = os.fork()
        if child == 0:
            signal.pause()
            os._exit(0)
        print(child, flush=True)
        await trio.sleep_forever()
trio.run(main)
"""


async def test_a_forked_child_of_a_killed_host_does_not_prevent_a_takeover(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}"
    with running(FORK_AND_HOLD_OPEN, uri) as host:
        child = int(await line_of(host))
        try:
            host.send_signal(signal.SIGKILL)
            host.wait()
            with trio.fail_after(30):
                async with dlog.open_namespace(uri) as namespace:
                    async with namespace.open_writer("log", create=True) as writer:
                        await writer.append(b"0")
                    assert await numbers_in(namespace) == [0]
        finally:
            os.kill(child, signal.SIGKILL)
