"""A directory that is moved, removed or replaced while a process has it open loses no acknowledged record."""

# covers: ledger/runtime/held_directories.py

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import attrs
import pytest
import trio

import dlog
from dlog import connect
from ledger.runtime.held_directories import CHECK_S
from tests.fakes.moved_directories import CHANGES, keep_copy, move, remove, replace_by_old_copy, tree, unmount


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "parent" / "ns"
    unmount(tmp_path / "parent" / "ns")


@pytest.fixture(autouse=True)
def _impatient_ledgers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record in flight has an outcome soon: no test waits for the ten seconds that a bookie gets."""
    real = connect.client_config
    monkeypatch.setattr(
        connect, "client_config", lambda config: attrs.evolve(real(config), unavailable_timeout_s=0.2)
    )


def uri(directory: Path) -> str:
    return f"file://{directory}"


async def write_until_lost(writer: dlog.LogWriter, acknowledged: list[bytes]) -> None:
    """Append until the writer is told that its directory is lost."""
    with pytest.raises(dlog.NamespaceLostError, match=r"removed|replaced"):  # noqa: PT012
        while True:
            payload = b"%d" % len(acknowledged)
            await writer.append(payload)
            acknowledged.append(payload)


async def stored(directory: Path) -> list[bytes]:
    async with dlog.open_namespace(uri(directory)) as namespace:
        async with namespace.open_writer("log"):
            pass  # recovers the segment
        async with namespace.open_reader("log", follow=False) as reader:
            return [record.payload async for record in reader]


def check(found: list[bytes], acknowledged: list[bytes]) -> None:
    """Nothing acknowledged is missing; the record in flight may be there."""
    assert found[: len(acknowledged)] == acknowledged
    assert len(found) <= len(acknowledged) + 1


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
async def test_a_writer_is_told_and_no_acknowledged_record_is_lost(
    directory: Path, change: Callable[[Path], Path]
) -> None:
    acknowledged: list[bytes] = []
    async with dlog.open_namespace(uri(directory)) as namespace:
        async with namespace.open_writer("log", create=True) as writer:
            for number in range(20):
                await writer.append(b"%d" % number)
                acknowledged.append(b"%d" % number)
            keep_copy(directory)
            moved = change(directory)
            there = tree(directory)
            with suppress(dlog.WriteError):
                await write_until_lost(writer, acknowledged)
        with pytest.raises(dlog.NamespaceLostError):
            await namespace.create_log("other")
        with pytest.raises(dlog.NamespaceLostError):
            async with namespace.open_writer("log"):
                pass
    assert (tree(directory)) == there, "nothing is written there"
    unmount(directory)
    if change is not remove:
        check(await stored(moved), acknowledged)


@pytest.mark.slow
async def test_a_group_is_answered_only_a_moment_after_the_last_look(directory: Path) -> None:
    async with dlog.open_namespace(uri(directory)) as namespace:  # noqa: SIM117
        async with namespace.open_writer("log", create=True) as writer:
            await writer.append(b"first")
            await trio.sleep(2 * CHECK_S)  # the last look is too old for the next group
            move(directory)
            with pytest.raises(dlog.NamespaceLostError):
                await writer.append(b"second")


@pytest.mark.slow
async def test_a_new_namespace_in_its_place_and_the_moved_one_both_keep_all(directory: Path) -> None:
    acknowledged: list[bytes] = []
    async with dlog.open_namespace(uri(directory)) as one, one.open_writer("log", create=True) as writer:
        for number in range(200):
            await writer.append(b"%d" % number)
            acknowledged.append(b"%d" % number)
        moved = move(directory)
        async with dlog.open_namespace(uri(directory)) as two:  # noqa: SIM117
            async with two.open_writer("log", create=True) as other:
                for number in range(200):
                    await other.append(b"new %d" % number)
                with suppress(dlog.WriteError):
                    await write_until_lost(writer, acknowledged)
                await other.append(b"new 200")
    check(await stored(moved), acknowledged)
    assert await stored(directory) == [b"new %d" % number for number in range(201)]


@pytest.mark.slow
async def test_a_follower_and_an_attached_process_are_told(directory: Path) -> None:
    async with dlog.open_namespace(uri(directory)) as host, dlog.open_namespace(uri(directory)) as attached:
        async with host.open_writer("log", create=True) as writer:
            await writer.append(b"0")
        async with attached.open_reader("log") as reader:
            assert (await anext(reader)).payload == b"0"
            move(directory)
            with pytest.raises(dlog.NamespaceLostError), trio.fail_after(30):
                await anext(reader)
        for namespace in (attached, host):
            with pytest.raises(dlog.NamespaceLostError):
                await namespace.list_logs()


@pytest.mark.slow
async def test_purge_and_compaction_of_a_moved_directory_touch_nothing_in_its_place(directory: Path) -> None:
    async with dlog.open_namespace(uri(directory)) as namespace:
        async with namespace.open_writer("log", create=True) as writer:
            await writer.append(b"0")
        keep_copy(directory)
        replace_by_old_copy(directory)
        before = tree(directory)
        with pytest.raises(dlog.NamespaceLostError):
            await namespace.delete_log("log")
        assert tree(directory) == before
    assert tree(directory) == before
