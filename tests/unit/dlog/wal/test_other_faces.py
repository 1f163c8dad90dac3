"""The write-ahead log for asyncio and without ``async``: the same results."""

# covers: dlog/aio/wal.py
# covers: dlog/blocking/wal.py

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import dlog.aio
import dlog.blocking
import dlog.wal
from dlog.wal import OperationConflictError, WalStoppedError

pytestmark = pytest.mark.slow


class Sum:
    def __init__(self) -> None:
        self.total = 0

    def apply(self, operation: bytes) -> int:
        self.total += int(operation)
        return self.total

    def dump(self) -> bytes:
        return b"%d" % self.total

    def restore(self, dump: bytes) -> None:
        self.total = int(dump)


def test_without_async(tmp_path: Path) -> None:
    for round_number in range(2):
        state = Sum()
        with (
            dlog.blocking.open_namespace(tmp_path.as_uri()) as namespace,
            dlog.blocking.open_wal(
                namespace, reopen=True, apply=state.apply, snapshot=state.dump, restore=state.restore
            ) as log,
        ):
            assert log.read(lambda: state.total) == 7 * round_number  # noqa: B023
            assert log.append(b"3") == 7 * round_number + 3
            with pytest.raises(OperationConflictError):
                log.append(b"4", index=1)
            assert log.append(bytearray(b"4"), index=2 * round_number + 2) == 7 * round_number + 7
            assert log.snapshot()
            assert log.index == log.snapshot_index == 2 * (round_number + 1)
            assert repr(log).startswith("<blocking WriteAheadLog 'wal'")
    with pytest.raises((WalStoppedError, dlog.WriteError, dlog.NamespaceClosedError)):
        log.append(b"1")


def test_with_asyncio(tmp_path: Path) -> None:
    async def main(round_number: int) -> None:
        state = Sum()
        async with (
            dlog.aio.open_namespace(tmp_path.as_uri()) as namespace,
            dlog.aio.open_wal(
                namespace, reopen=True, apply=state.apply, snapshot=state.dump, restore=state.restore
            ) as log,
        ):
            assert state.total == 10 * round_number
            await asyncio.gather(*(log.append(b"1") for _ in range(10)))
            assert await log.snapshot()
            assert log.index == log.snapshot_index == 10 * (round_number + 1)

    for round_number in range(2):
        asyncio.run(main(round_number))


def test_a_standby_without_async(tmp_path: Path) -> None:
    state, theirs = Sum(), Sum()
    with (
        dlog.blocking.open_namespace(tmp_path.as_uri()) as namespace,
        dlog.blocking.follow_wal(
            namespace, apply=state.apply, snapshot=state.dump, restore=state.restore
        ) as standby,
    ):
        with dlog.blocking.open_wal(namespace, apply=theirs.apply) as log:
            log.append(b"3")
            log.append(b"4")
            standby.wait_index(2)
            assert (standby.index, standby.lag(), standby.failure) == (2, 0, None)
            assert standby.read(lambda: state.total) == 7
        with standby.take_over() as log:
            assert log.append(b"5") == 12
            assert log.snapshot()
        with pytest.raises(WalStoppedError):
            standby.lag()


def test_a_standby_with_asyncio(tmp_path: Path) -> None:
    async def main() -> None:
        state, theirs = Sum(), Sum()
        async with (
            dlog.aio.open_namespace(tmp_path.as_uri()) as namespace,
            dlog.aio.follow_wal(
                namespace, apply=state.apply, snapshot=state.dump, restore=state.restore
            ) as standby,
        ):
            async with dlog.aio.open_wal(namespace, apply=theirs.apply) as log:
                await log.append(b"3")
                await log.append(b"4")
                await standby.wait_index(2)
                assert (standby.index, await standby.lag(), state.total) == (2, 0, 7)
            async with standby.take_over() as log:
                assert await log.append(b"5") == 12

    asyncio.run(main())
