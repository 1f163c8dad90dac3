"""The number on the disks and in the metadata store: which old copies of the disks it reveals."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from bookie.disk.real_disk import RealDisk
from bookie.errors import CookieError
from bookie.identity.incarnation import (
    Incarnation,
    IncarnationNumber,
    decode_incarnation,
    encode_incarnation,
    incarnation_mismatch,
)
from ledger.metadata_store.errors import ConnectionLostError
from ledger.metadata_store.memory import MemoryStore, MemoryTree, open_memory_store
from ledger.metadata_store.store import Stat

PATH = "/cookies/b"
DATA = b"the cookie"


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    async with open_memory_store(MemoryTree()) as opened:
        await opened.create(PATH, DATA, parents=True)
        yield opened


@pytest.fixture
def number(tmp_path: Path) -> Incarnation:
    directories = [tmp_path / "j", tmp_path / "l"]
    for directory in directories:
        directory.mkdir()
    return Incarnation(RealDisk(), directories, PATH, DATA)


async def mismatch(number: Incarnation, store: MemoryStore) -> str | None:
    return incarnation_mismatch(number.read(), await number.registered(store))


def copy_of(number: Incarnation) -> dict[Path, bytes]:
    return {path: (path / "INCARNATION").read_bytes() for path in number._directories}


def restore(copy: dict[Path, bytes]) -> None:
    for path, data in copy.items():
        (path / "INCARNATION").write_bytes(data)


async def test_it_grows_on_the_disks_and_in_the_store_and_the_cookie_stays(
    number: Incarnation, store: MemoryStore
) -> None:
    for version in (1, 2, 3):
        await number.raise_number(store)
        node = await store.get(PATH)
        assert (node.value, node.stat.version) == (DATA, version)
        assert {found.version for found in number.read().values() if found} == {version}
        assert await mismatch(number, store) is None


async def test_a_copy_from_before_the_last_raise_is_recognised(
    number: Incarnation, store: MemoryStore
) -> None:
    await number.raise_number(store)
    copy = copy_of(number)
    assert await mismatch(number, store) is None
    await number.raise_number(store)
    restore(copy)
    assert "is an old copy" in str(await mismatch(number, store))


async def test_a_stop_at_any_step_of_a_raise_leaves_no_mismatch(
    number: Incarnation, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await number.raise_number(store)
    now = await number.registered(store)
    first, second = number._directories
    ahead = encode_incarnation(IncarnationNumber(now.created_ms, now.version + 1))
    (first / "INCARNATION").write_bytes(ahead)
    assert await mismatch(number, store) is None, "after the first directory"
    (second / "INCARNATION").write_bytes(ahead)
    assert await mismatch(number, store) is None, "after the last"
    await store.put(PATH, DATA)
    assert await mismatch(number, store) is None, "the reply of the store was lost"


async def test_a_lost_reply_is_not_taken_for_another_bookie(
    number: Incarnation, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = MemoryStore.put

    async def lost(self: MemoryStore, path: str, value: bytes, *, expected: int = -1) -> Stat:
        await put(self, path, value, expected=expected)
        raise ConnectionLostError(path, "the reply was lost")

    monkeypatch.setattr(MemoryStore, "put", lost)
    with pytest.raises(ConnectionLostError):
        await number.raise_number(store)
    monkeypatch.undo()
    assert await mismatch(number, store) is None
    await number.raise_number(store)
    assert await mismatch(number, store) is None


async def test_disks_without_a_number_match_only_a_cookie_that_was_never_raised(
    number: Incarnation, store: MemoryStore
) -> None:
    assert await mismatch(number, store) is None
    await store.put(PATH, DATA)
    assert "has no INCARNATION file" in str(await mismatch(number, store))


async def test_a_cookie_created_again_by_hand_is_a_mismatch(number: Incarnation, store: MemoryStore) -> None:
    await number.raise_number(store)
    found = number.read()
    for other in (IncarnationNumber(1, 1), IncarnationNumber(1, 2), IncarnationNumber(1, 0)):
        assert incarnation_mismatch(found, other) is not None


async def test_a_full_disk_stops_neither_the_raise_nor_the_start(
    number: Incarnation, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await number.raise_number(store)

    def full(self: RealDisk, path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "no space left", str(path))

    monkeypatch.setattr(RealDisk, "replace_file", full)
    await number.raise_number(store)
    assert (await number.registered(store)).version == 1, "the store must not be ahead of the disks"
    monkeypatch.undo()
    assert await mismatch(number, store) is None


async def test_the_store_is_never_ahead_of_a_directory(
    number: Incarnation, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = MemoryStore.put
    seen: list[set[int]] = []

    async def watched(self: MemoryStore, path: str, value: bytes, *, expected: int = -1) -> Stat:
        seen.append({found.version for found in number.read().values() if found})
        return await put(self, path, value, expected=expected)

    monkeypatch.setattr(MemoryStore, "put", watched)
    await number.raise_number(store)
    await number.raise_number(store)
    assert seen == [{1}, {2}]


async def test_a_raise_is_one_request_if_no_other_process_writes_the_cookie(
    number: Incarnation, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await number.raise_number(store)
    for request in ("get", "sync", "exists"):
        monkeypatch.setattr(MemoryStore, request, None)
    await number.raise_number(store)
    monkeypatch.undo()
    assert (await number.registered(store)).version == 2
    assert await mismatch(number, store) is None


@pytest.mark.parametrize("versions", [0, 1, 2])
async def test_a_cookie_that_was_written_or_created_again_meanwhile_is_read_again(
    number: Incarnation, store: MemoryStore, monkeypatch: pytest.MonkeyPatch, versions: int
) -> None:
    await number.raise_number(store)
    if versions:
        await store.put(PATH, DATA)
    else:  # with the version that the old node had
        monkeypatch.setattr(store._session._tree, "_wall_ms", lambda: 7)
        await store.delete(PATH)
        await store.create(PATH, DATA)
        await store.put(PATH, DATA)
    if versions == 2:
        await store.put(PATH, DATA)
    await number.raise_number(store)
    assert await mismatch(number, store) is None
    await number.raise_number(store)
    assert await mismatch(number, store) is None


async def test_a_missing_cookie_is_an_error(number: Incarnation, store: MemoryStore) -> None:
    await store.delete(PATH)
    with pytest.raises(CookieError, match="was decommissioned"):
        await number.raise_number(store)


async def test_while_serving_it_is_raised_only_if_something_was_written(
    number: Incarnation, store: MemoryStore, autojump_clock: trio.testing.MockClock
) -> None:
    progress = 0
    raised: list[float] = []

    async def raise_number(store: MemoryStore) -> None:
        raised.append(trio.current_time())
        if len(raised) == 1:
            raise ConnectionLostError(PATH, "unreachable")

    number.raise_number = raise_number  # type: ignore[assignment,method-assign]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(number.keep_raising, lambda: store, lambda: progress, 10.0)
        await trio.sleep(35)
        assert raised == []
        progress = 1
        await trio.sleep(30)
        assert raised == [40.0, 50.0], "twice, since the first attempt failed"
        progress = 2
        await trio.sleep(10)
        assert raised == [40.0, 50.0, 70.0]
        nursery.cancel_scope.cancel()


async def test_a_store_that_is_long_out_of_reach_is_one_line(
    number: Incarnation,
    store: MemoryStore,
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    is_there = False
    progress = iter(range(10_000))

    async def raise_number(store: MemoryStore) -> None:
        if not is_there:
            raise ConnectionLostError(PATH, "unreachable")

    number.raise_number = raise_number  # type: ignore[assignment,method-assign]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(number.keep_raising, lambda: store, lambda: next(progress), 10.0)
        await trio.sleep(600)
        assert len(caplog.records) == 1
        is_there = True
        await trio.sleep(60)
        is_there = False
        await trio.sleep(600)
        assert len(caplog.records) == 2
        nursery.cancel_scope.cancel()


@given(st.integers(0, 2**62), st.integers(0, 2**31))
def test_numbers_survive_encoding_and_decoding(created_ms: int, version: int) -> None:
    assert decode_incarnation(
        encode_incarnation(IncarnationNumber(created_ms, version))
    ) == IncarnationNumber(created_ms, version)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_number_or_none(data: bytes) -> None:
    found = decode_incarnation(data)
    assert found is None or encode_incarnation(found).split() == [b"%d" % int(word) for word in data.split()]
