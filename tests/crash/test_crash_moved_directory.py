"""A directory that is moved, replaced or removed under two processes that write, read, purge and compact."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio

import dlog
from tests.crash.directory_victim import open_victim, payload_of
from tests.fakes.moved_directories import (
    CHANGES,
    case,
    keep_copy,
    mount_over,
    move,
    remove,
    replace_by_old_copy,
    tree,
)
from tests.mounts import unmount

pytestmark = pytest.mark.slow
TIMEOUT_S = 120
KILLED = [move, replace_by_old_copy, mount_over]  # where an attached process could take over the wrong place


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "parent" / "ns"
    unmount(tmp_path / "parent" / "ns")


async def check(directory: Path, acknowledged: dict[str, int]) -> None:
    """Every acknowledged record is there; up to one in flight may be, too."""
    async with dlog.open_namespace(directory.as_uri()) as namespace:
        for log, count in acknowledged.items():
            async with namespace.open_writer(log):
                pass  # recovers the segment
            async with namespace.open_reader(log, follow=False) as reader:
                found = [bytes(record.payload) async for record in reader]
            assert count <= len(found) <= count + 1
            assert found == [payload_of(log, number) for number in range(len(found))]


@pytest.mark.parametrize(
    ("change", "is_killed"),
    [
        *[case(change, False, name=f"{change.__name__}-told") for change in CHANGES],
        *[case(change, True, name=f"{change.__name__}-killed") for change in KILLED],
    ],
)
async def test_two_processes_lose_no_acknowledged_record(
    directory: Path, change: Callable[[Path], Path], is_killed: bool
) -> None:
    async with dlog.open_namespace(directory.as_uri()) as namespace:
        await namespace.create_log("old")
    keep_copy(directory)
    with trio.fail_after(TIMEOUT_S):
        async with open_victim(directory, "host") as host:
            await host.wait(10)
            async with open_victim(directory, "attached") as attached:
                await attached.wait(10)
                await host.wait(10, compacted=2)
                present = change(directory)
                there = tree(directory)
                if is_killed:
                    await trio.sleep(random.Random(change.__name__).uniform(0, 0.1))
                    await host.kill()
                else:
                    assert await host.wait_end() == 0
                    assert host.told == {"append", "follow", "purge"}
                assert await attached.wait_end() == 0
                assert attached.told == {"append", "follow", "purge"}
    assert tree(directory) == there, "nothing is written at the path"
    unmount(directory)
    if change is not remove:
        await check(present, {"host": host.acknowledged, "attached": attached.acknowledged})


async def test_a_new_namespace_in_its_place_keeps_its_records_too(directory: Path) -> None:
    with trio.fail_after(TIMEOUT_S):
        async with open_victim(directory, "host") as host:
            await host.wait(10, compacted=1)
            present = move(directory)
            async with (
                dlog.open_namespace(directory.as_uri()) as namespace,
                namespace.open_writer("new", create=True) as writer,
            ):
                for number in range(50):
                    await writer.append(payload_of("new", number))
                await host.kill()
                await writer.append(payload_of("new", 50))
    await check(present, {"host": host.acknowledged})
    await check(directory, {"new": 51})
