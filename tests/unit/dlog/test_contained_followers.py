"""An error that nobody foresaw ends one reader, writer or round, and not the block that it is open in."""

# covers: dlog/contained.py

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

import dlog
from dlog.groups import GroupConfig, join_group
from dlog.groups.member import GroupMember
from dlog.read.log_reader import LogReader
from dlog.read.read_ahead import ReadAhead
from dlog.shards import create_sharded_log, open_sharded_reader
from dlog.wal import open_wal
from dlog.write.space import Purger
from dlog.write.writer_shell import WriterShell
from dlog.write.writer_timers import WriterTimers
from ledger.metadata_store.lock import DistributedLock
from ledger.runtime.tasks.failure_domain import contained_failures
from ledger.runtime.tasks.timers import Timers


class UnforeseenError(Exception):
    """As a library may raise it."""


@pytest.fixture
async def namespace(tmp_path: Path) -> AsyncIterator[dlog.Namespace]:
    with trio.fail_after(60):
        async with dlog.open_namespace(tmp_path.as_uri()) as opened:
            for log in ("bad", "good"):
                async with opened.open_writer(log, create=True) as writer:
                    await writer.append_many([b"0", b"1", b"2"])
            yield opened


def failing(
    call: Callable[..., Awaitable[Any]], times: int, fails: Callable[[Any], bool] = lambda _: True
) -> Callable[..., Awaitable[Any]]:
    """``call``, which raises so often for the objects that ``fails`` is true of."""
    left = times

    async def faulty(self: object, *args: object, **more: object) -> Any:
        nonlocal left
        if left and fails(self):
            left -= 1
            raise UnforeseenError("first line\nsecond line")
        return await call(self, *args, **more)

    return faulty


async def for_ever(call: Callable[[], Awaitable[object]]) -> None:
    while True:
        await call()


async def read(namespace: dlog.Namespace, log: str) -> list[bytes]:
    async with namespace.open_reader(log, follow=False) as reader:
        return [record.payload async for record in reader]


@pytest.mark.slow
@pytest.mark.parametrize("part", ["_follow_segments", "_watch_list", "_list_in_vain"])
async def test_an_error_in_a_follower_is_raised_by_its_next_call_and_the_block_goes_on(
    namespace: dlog.Namespace, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contained_failures["reader of a log"]
    faulty = failing(getattr(ReadAhead, part), 1, lambda ahead: ahead._log.name == "bad")
    monkeypatch.setattr(ReadAhead, part, faulty)
    async with namespace.open_reader("good") as good, namespace.open_reader("bad") as bad:
        for _ in range(2):
            with pytest.raises(dlog.DLogError, match=r"'bad'.*UnforeseenError: first line$"):
                await for_ever(lambda: bad.read_batch(9))
        assert [record.payload for record in await good.read_batch(9) or ()] == [b"0", b"1", b"2"]
    assert contained_failures["reader of a log"] == before + 1
    assert await read(namespace, "bad") == [b"0", b"1", b"2"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "method"),
    [
        (WriterShell, "_perform"),
        (WriterShell, "watch_lock"),
        (DistributedLock, "wait_lost"),
        (WriterTimers, "run"),
    ],
)
async def test_an_error_in_a_task_of_a_writer_ends_that_writer_and_loses_nothing(
    namespace: dlog.Namespace, owner: type, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contained_failures["writer of a log"]
    async with namespace.open_writer("good") as good:
        await good.append(b"3")
        monkeypatch.setattr(owner, method, failing(getattr(owner, method), 1))
        # The task of the timers exists only with a time to keep.
        async with namespace.open_writer("bad", config=dlog.WriterConfig(keep_alive_s=60)) as bad:
            written = [b"0", b"1", b"2"]

            async def append() -> None:
                await bad.append(b"more")
                written.append(b"more")

            with pytest.raises(dlog.LogWriteError, match="unexpected UnforeseenError: first line;"):
                await for_ever(append)
            await good.append(b"in the block")
        await good.append(b"4")
    assert contained_failures["writer of a log"] == before + 1
    async with namespace.open_writer("bad") as again:
        await again.append(b"last")
    found = await read(namespace, "bad")
    assert found[: len(written)] == written
    assert found[-1] == b"last"
    assert await read(namespace, "good") == [b"0", b"1", b"2", b"3", b"in the block", b"4"]


@pytest.mark.slow
async def test_an_error_in_a_round_of_a_purge_ends_the_round(
    namespace: dlog.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contained_failures["purge of a log"]
    rounds = trio.Event()

    async def purge() -> tuple[()]:
        if contained_failures["purge of a log"] == before:
            raise UnforeseenError("once")
        rounds.set()
        return ()

    async def is_due() -> bool:
        return True

    purger = Purger("bad", purge, is_due, Timers())
    async with trio.open_nursery() as nursery:
        purger.begin(nursery.start_soon)
        await purger.wait_idle()
        purger.request()
        await rounds.wait()
        nursery.cancel_scope.cancel()
    assert contained_failures["purge of a log"] == before + 1


QUICK = GroupConfig(check_interval_s=0.05)


@pytest.mark.slow
async def test_an_error_while_a_group_shares_its_logs_ends_that_look(
    namespace: dlog.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contained_failures["sharing the logs of a group"]
    monkeypatch.setattr(GroupMember, "_look", failing(GroupMember._look, 2))
    async with join_group(namespace, "g", ["bad", "good"], config=QUICK) as member:
        seen = [len((await anext(member)).records) for _ in range(2)]
    assert seen == [3, 3]
    assert contained_failures["sharing the logs of a group"] == before + 2


@pytest.mark.slow
async def test_an_error_while_a_group_reads_a_log_is_raised_by_the_next_call_of_the_member(
    namespace: dlog.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contained_failures["reader of a group"]
    async with namespace.open_writer("good") as writer:
        faulty = failing(DistributedLock.wait_lost, 1, lambda lock: "bad" in lock.path)
        monkeypatch.setattr(DistributedLock, "wait_lost", faulty)
        async with join_group(namespace, "g", ["bad"], config=QUICK) as member:
            with pytest.raises(dlog.DLogError, match=r"'bad'.*UnforeseenError: first line$"):
                await for_ever(lambda: anext(member))
            await writer.append(b"3")
        async with join_group(namespace, "g", ["bad"], config=QUICK) as member:
            assert len((await anext(member)).records) == 3
    assert contained_failures["reader of a group"] == before + 1


@pytest.mark.slow
async def test_an_error_in_the_reader_of_a_shard_is_raised_by_the_merged_reader(
    namespace: dlog.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_sharded_log(namespace, "s", 2)
    async with namespace.open_writer("good") as writer:
        monkeypatch.setattr(LogReader, "_read_records", failing(LogReader._read_records, 1))
        async with open_sharded_reader(namespace, "s", follow=False) as merged:
            for _ in range(2):
                with pytest.raises(dlog.DLogError, match=r"'s'.*UnforeseenError: first line$"):
                    await anext(merged)
            await writer.append(b"3")


@pytest.mark.slow
async def test_an_error_in_a_dump_of_a_service_costs_no_operation(namespace: dlog.Namespace) -> None:
    state: list[bytes] = []
    tried = trio.Event()

    def dump() -> bytes:
        if not tried.is_set():
            tried.set()
            raise UnforeseenError("of the service")
        return b",".join(state)

    def restore(dumped: bytes) -> None:
        state[:] = dumped.split(b",")

    before = contained_failures["snapshot of a write-ahead log"]
    for _ in range(2):
        state.clear()
        async with open_wal(
            namespace,
            apply=state.append,
            snapshot=dump,
            restore=restore,
            name="w",
            operations_between_snapshots=2,
        ) as wal:
            for number in range(len(state), len(state) + 4):
                await wal.append(b"%d" % number)
            await tried.wait()
    assert state == [b"%d" % number for number in range(8)]
    assert contained_failures["snapshot of a write-ahead log"] == before + 1
