"""An upgrade from the last tagged state: bookies in turn under a writer and a reader, then the clients."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trio

import dlog
from dlog.cluster import LocalCluster
from dlog.cluster.guardian import open_guardian
from tests.crash import previous_version
from tests.places import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper, pytest.mark.slow]
TEST_TIMEOUT_S = 180
RECORDS_BETWEEN = 20

CLUSTER = """
import sys, pathlib, trio, dlog
from dlog.cluster import open_local_cluster

async def main():
    async with open_local_cluster(pathlib.Path(sys.argv[1]), session_timeout_ms=3000) as cluster:
        print(dlog.__file__, cluster.uri, flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)

trio.run(main)
"""
WRITER = """
import sys, trio, dlog

async def main():
    async with dlog.open_namespace(sys.argv[1]) as namespace:
        print(dlog.__file__, flush=True)
        async with namespace.open_writer("orders") as writer, trio.open_nursery() as nursery:
            async def write():
                number = 0
                while True:
                    await writer.append(b"%d" % number)
                    print(number, flush=True)
                    number += 1
            nursery.start_soon(write)
            await trio.to_thread.run_sync(sys.stdin.read)
            nursery.cancel_scope.cancel()

trio.run(main)
"""
READER = """
import sys, trio, dlog

async def main():
    async with dlog.open_namespace(sys.argv[1]) as namespace:
        print(dlog.__file__, flush=True)
        async with namespace.open_reader("orders") as reader:
            async for record in reader:
                print(record.payload.decode(), flush=True)

trio.run(main)
"""


class Program:
    """A process of the previous version that prints one line for each step."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self._lines = self._read()

    async def _read(self) -> AsyncIterator[str]:
        assert self.process.stdout is not None
        rest = b""
        async for part in self.process.stdout:
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                yield line.decode()

    async def line(self) -> str:
        return await anext(self._lines)

    async def first_line(self, tree: Path) -> list[str]:
        """The words of the first line after the place that DLog was imported from."""
        place, *words = (await self.line()).split()
        assert Path(place).is_relative_to(tree)
        return words

    async def end(self) -> list[str]:
        """Close its stdin, wait for its end, and return the lines that were not read."""
        assert self.process.stdin is not None
        await self.process.stdin.aclose()
        lines = [line async for line in self._lines]
        assert await self.process.wait() == 0
        return lines


@contextlib.asynccontextmanager
async def program(tree: Path, text: str, *words: str) -> AsyncIterator[Program]:
    process = await previous_version.start(tree, "-c", text, *words)
    try:
        yield Program(process)
    finally:
        if process.returncode is None:
            process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("previous") / "tree"
    previous_version.unpack(directory)
    return directory


@pytest.fixture
def group() -> Iterator[int]:
    with open_guardian() as group:
        yield group


async def test_bookies_then_clients_are_upgraded_in_turn_and_a_bookie_goes_back(
    tmp_path: Path, tree: Path, group: int
) -> None:
    home = tmp_path / "cluster"
    with trio.fail_after(TEST_TIMEOUT_S):
        async with program(tree, CLUSTER, str(home)) as former:
            (uri,) = await former.first_line(tree)
            cluster = LocalCluster(home, session_timeout_ms=3000, group=group)
            assert [runs_in(cluster, index) for index in range(3)] == [tree] * 3
            async with dlog.open_namespace(uri) as namespace:
                await namespace.create_log("orders")
            async with program(tree, READER, uri) as reader, program(tree, WRITER, uri) as writer:
                await reader.first_line(tree)
                await writer.first_line(tree)
                seen = 0

                async def both_go_on() -> None:
                    nonlocal seen
                    for _ in range(RECORDS_BETWEEN):
                        assert int(await writer.line()) == int(await reader.line()) == seen
                        seen += 1

                for index in range(3):
                    await both_go_on()
                    assert await cluster.terminate(index)
                    await both_go_on()
                    with contextlib.chdir(ROOT):
                        await cluster.restart(index)
                    assert runs_in(cluster, index) == ROOT
                await both_go_on()
                written = seen + len(await writer.end())

                async with dlog.open_namespace(uri) as namespace:
                    async with namespace.open_writer("orders") as newer:
                        # An append that was cut off may or may not be there; the reader decides below.
                        await newer.append_many([b"new-%d" % number for number in range(100)])
                    async with namespace.open_reader("orders", end=dlog.LATEST) as all_of_it:
                        payloads = [record.payload.decode() async for record in all_of_it]
                    old = payloads[:-100]
                    assert old == [str(number) for number in range(len(old))]
                    assert written <= len(old) <= written + 1
                    assert payloads[-100:] == [f"new-{number}" for number in range(100)]
                    rest = [await reader.line() for _ in payloads[seen:]]
                    assert rest == payloads[seen:], "a reader of the previous version reads the new records"

            await the_previous_version_serves_again(cluster, tree, uri, payloads)
            await cluster.stop()
            await former.end()


def runs_in(cluster: LocalCluster, index: int) -> Path:
    """The directory that a bookie runs in, so the tree that it was imported from."""
    process = cluster.state.bookies[index].process
    assert process is not None
    return Path(f"/proc/{process.pid}/cwd").readlink()


async def the_previous_version_serves_again(
    cluster: LocalCluster, tree: Path, uri: str, payloads: list[str]
) -> None:
    """All three bookies go back, on the directories that this version wrote."""
    with contextlib.chdir(tree):  # `python -m` imports from its working directory first
        for index in range(3):
            assert await cluster.terminate(index)
            await cluster.restart(index)
            assert runs_in(cluster, index) == tree
    async with dlog.open_namespace(uri) as namespace:
        async with namespace.open_writer("orders") as writer:
            await writer.append(b"after the way back")
        async with namespace.open_reader("orders", end=dlog.LATEST) as reader:
            again = [record.payload.decode() async for record in reader]
    assert again == [*payloads, "after the way back"]


APPEND = """
import sys, trio, dlog

async def main():
    async with dlog.open_namespace(sys.argv[1]) as namespace:
        await namespace.create_log("orders")
        async with namespace.open_writer("orders") as writer:
            await writer.append_many([b"%d" % number for number in range(1000)])
    print(dlog.__file__)

trio.run(main)
"""


async def test_a_directory_of_the_previous_version_is_read_and_written(tmp_path: Path, tree: Path) -> None:
    uri = (tmp_path / "log").as_uri()
    with trio.fail_after(TEST_TIMEOUT_S):
        async with program(tree, APPEND, uri) as former:
            await former.first_line(tree)
            await former.end()
        async with dlog.open_namespace(uri) as namespace:
            async with namespace.open_writer("orders") as writer:
                await writer.append(b"1000")
            async with namespace.open_reader("orders", end=dlog.LATEST) as reader:
                assert [int(record.payload) async for record in reader] == list(range(1001))
