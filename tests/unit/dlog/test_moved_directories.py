"""A directory that is moved, removed or replaced while a process has it open loses no acknowledged record."""

# covers: ledger/runtime/held_directories.py

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

import dlog
import dlog.aio
import dlog.blocking
from bookie.disk import real_disk
from dlog import connect
from ledger.config import ClientConfig
from ledger.deploy.embedded import EmbeddedStack, open_embedded_stack
from ledger.errors import DirectoryMovedError, MetadataStoreError
from ledger.transport.dial import Address
from tests.fakes.moved_directories import CHANGES, case, keep_copy, move, remove, replace_by_old_copy, tree
from tests.mounts import unmount


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "parent" / "ns"
    unmount(tmp_path / "parent" / "ns")


@pytest.fixture(autouse=True)
def _patient_ledgers(monkeypatch: pytest.MonkeyPatch) -> None:
    """No ledger gives up a bookie by itself, so a record in flight fails by the loss alone, or never."""
    real = connect.client_config
    monkeypatch.setattr(
        connect, "client_config", lambda config: attrs.evolve(real(config), unavailable_timeout_s=1e9)
    )


@pytest.fixture
def always_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host looks at its directory before each group is answered."""
    monkeypatch.setattr(real_disk, "CHECK_S", 0)


BACKSTOP_S = 60  # instead of for ever


def uri(directory: Path) -> str:
    return f"file://{directory}"


async def write_until_lost(writer: dlog.LogWriter, acknowledged: list[bytes]) -> None:
    """Append until the writer is told that its directory is lost."""
    with trio.fail_after(BACKSTOP_S), pytest.raises(dlog.NamespaceLostError, match=r"removed|replaced"):  # noqa: PT012
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


@asynccontextmanager
async def open_stack(directory: Path) -> AsyncIterator[EmbeddedStack]:
    directory.parent.mkdir()
    async with open_embedded_stack(directory, ClientConfig(unavailable_timeout_s=1e9)) as stack:
        yield stack


def check(found: list[bytes], acknowledged: list[bytes]) -> None:
    """Nothing acknowledged is missing; the record in flight may be there."""
    assert found[: len(acknowledged)] == acknowledged
    assert len(found) <= len(acknowledged) + 1


@pytest.mark.slow
@pytest.mark.parametrize("change", [case(change) for change in CHANGES])
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
@pytest.mark.usefixtures("always_looks")
async def test_a_record_in_flight_fails_as_soon_as_the_host_sees_that_its_directory_is_gone(
    directory: Path,
) -> None:
    async with dlog.open_namespace(uri(directory)) as namespace:  # noqa: SIM117
        async with namespace.open_writer("log", create=True) as writer:
            await writer.append(b"first")
            move(directory)
            with trio.fail_after(BACKSTOP_S), pytest.raises(dlog.NamespaceLostError) as caught:
                await writer.append(b"second")
            assert isinstance(caught.value, dlog.WriteError)
            assert caught.value.outcome is dlog.RecordOutcome.UNKNOWN


def append_blocking(directory: Path) -> None:
    with dlog.blocking.open_namespace(uri(directory)) as namespace:  # noqa: SIM117
        with namespace.open_writer("log", create=True) as writer:
            writer.append(b"first")
            move(directory)
            writer.append(b"second")


def append_with_asyncio(directory: Path) -> None:
    async def append() -> None:
        async with dlog.aio.open_namespace(uri(directory)) as namespace:  # noqa: SIM117
            async with namespace.open_writer("log", create=True) as writer:
                await writer.append(b"first")
                move(directory)
                await writer.append(b"second")

    asyncio.run(append())


@pytest.mark.slow
@pytest.mark.usefixtures("always_looks")
@pytest.mark.parametrize("append", [append_blocking, append_with_asyncio], ids=lambda each: each.__name__)
async def test_a_record_in_flight_fails_as_soon_with_the_other_faces(
    directory: Path, append: Callable[[Path], None]
) -> None:
    with trio.fail_after(BACKSTOP_S), pytest.raises(dlog.NamespaceLostError, match=r"removed|replaced"):
        await trio.to_thread.run_sync(append, directory, abandon_on_cancel=True)


@pytest.mark.slow
@pytest.mark.usefixtures("always_looks")
async def test_an_entry_in_flight_fails_as_soon_and_so_does_each_entry_after_it(directory: Path) -> None:
    async with open_stack(directory) as stack:
        ledger = await stack.client.create(ensemble_size=1, write_quorum=1, ack_quorum=1)
        await ledger.append(b"first")
        move(directory)
        for payload in (b"second", b"third"):
            with trio.fail_after(BACKSTOP_S), pytest.raises(DirectoryMovedError, match="nothing is there"):
                await ledger.append(payload)
        with pytest.raises(MetadataStoreError):
            await stack.client.create(ensemble_size=1, write_quorum=1, ack_quorum=1)


@pytest.mark.slow
async def test_an_entry_of_a_ledger_that_was_made_while_the_directory_was_lost_fails(directory: Path) -> None:
    async with open_stack(directory) as stack:
        stack.client.lose(lambda: DirectoryMovedError("it is gone"))
        ledger = await stack.client.create(ensemble_size=1, write_quorum=1, ack_quorum=1)
        with pytest.raises(DirectoryMovedError, match="it is gone"):
            await ledger.append(b"first")


@pytest.mark.slow
async def test_a_loss_that_was_seen_before_the_client_was_open_is_told(directory: Path) -> None:
    told: list[str] = []
    async with open_stack(directory) as stack:
        move(directory)
        with pytest.raises(DirectoryMovedError):
            await stack.hosting.dial(Address("", 0))
        stack.hosting.when_lost(lambda make_error: told.append(str(make_error())))
        assert ["nothing is there now" in one for one in told] == [True]


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
