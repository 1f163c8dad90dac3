"""Calls that fail at once, made again and again: they let others run, and can be cancelled."""

# covers: ledger/runtime/tasks/failing_calls.py

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import assert_checkpoints

import dlog
import dlog.aio
import dlog.blocking
from dlog.wal import open_wal

ATTEMPTS = 1000  # without a checkpoint the others would wait for all of them
FIRST = dlog.DLSN(1, 0, 0)
Call = Callable[[Any], Awaitable[object]]
CALLS: dict[str, Call] = {
    "append": lambda log: log.append(b"x"),
    "append with headers": lambda log: log.append(b"x", headers={"": b""}),
    "append_many": lambda log: log.append_many([b"x"]),
    "append_after": lambda log: log.append_after(b"x", dlog.DLSN(7, 0, 0)),
    "append_many_after": lambda log: log.append_many_after([b"x"], dlog.DLSN(7, 0, 0)),
    "append_once": lambda log: log.append_once(b"x", txid=2**61),
    "truncate": lambda log: log.truncate(FIRST),
    "seal": lambda log: log.seal(),
    "a long record": lambda log: log.append(bytes(1 << 22)),
    "text": lambda log: log.append("text"),
}


def fail(log: dlog.LogWriter) -> None:
    log._machine.stop(dlog.LogWriteError(log.log, "bookies are away", dlog.RecordOutcome.NOT_WRITTEN))


async def expect_error_at_checkpoint(call: Call, on: object) -> None:
    with assert_checkpoints(), pytest.raises((dlog.DLogError, TypeError, ValueError)):
        await call(on)


@pytest.fixture
async def namespace(tmp_path: Path) -> AsyncIterator[dlog.Namespace]:
    async with dlog.open_namespace(tmp_path.as_uri()) as opened:
        yield opened


@pytest.mark.parametrize("shared", [False, True])
async def test_each_call_of_a_closed_writer_fails_at_a_checkpoint(
    namespace: dlog.Namespace, shared: bool
) -> None:
    async with namespace.open_writer("orders", create=True, shared=shared) as log:
        await log.append(b"first")
    for call in CALLS.values():
        await expect_error_at_checkpoint(call, log)


async def test_each_call_of_a_failed_writer_fails_at_a_checkpoint(namespace: dlog.Namespace) -> None:
    with suppress(dlog.LogWriteError):
        async with namespace.open_writer("orders", create=True) as log:
            await log.append(b"first")
            fail(log)
            for call in CALLS.values():
                await expect_error_at_checkpoint(call, log)
            await expect_error_at_checkpoint(lambda log: log.flush(), log)
            await expect_error_at_checkpoint(lambda log: log.wait_capacity(), log)
            await expect_error_at_checkpoint(lambda log: log.outcome(0), log)


async def test_so_do_a_closed_reader_and_a_closed_write_ahead_log(namespace: dlog.Namespace) -> None:
    async with open_wal(namespace, apply=len) as wal:
        await wal.append(b"first")
    await expect_error_at_checkpoint(lambda wal: wal.append(b"second"), wal)
    (log, *_) = await namespace.list_logs()
    async with namespace.open_reader(log) as reader:
        pass
    await expect_error_at_checkpoint(anext, reader)
    await expect_error_at_checkpoint(lambda reader: reader.read_batch(1), reader)


async def append_stubbornly(log: Any) -> None:
    for _ in range(ATTEMPTS):
        with suppress(dlog.DLogError):
            await log.append(b"x")
    raise AssertionError("the loop was kept from the cancellation")


async def test_a_loop_over_failing_appends_can_be_cancelled_on_trio(namespace: dlog.Namespace) -> None:
    async with namespace.open_writer("orders", create=True) as log:
        pass
    async with trio.open_nursery() as nursery:
        nursery.start_soon(append_stubbornly, log)
        await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("is_namespace_open", [True, False])
def test_so_can_one_on_asyncio(tmp_path: Path, is_namespace_open: bool) -> None:
    async def cancelled(log: Any) -> None:
        task = asyncio.create_task(append_stubbornly(log))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def main() -> None:
        async with dlog.aio.open_namespace(tmp_path.as_uri()) as namespace:
            async with namespace.open_writer("orders", create=True) as log:
                pass
            if is_namespace_open:
                await cancelled(log)
        if not is_namespace_open:
            await cancelled(log)

    asyncio.run(main())


def test_a_thread_with_failing_appends_keeps_no_other_thread_waiting(tmp_path: Path) -> None:
    is_over = threading.Event()
    with dlog.blocking.open_namespace(tmp_path.as_uri()) as namespace:
        log = namespace.open_writer("orders", create=True)
        log.close()

        def append() -> None:
            while not is_over.is_set():
                with suppress(dlog.DLogError):
                    log.append(b"x")

        thread = threading.Thread(target=append)
        thread.start()
        try:
            assert namespace.list_logs() == ["orders"]
        finally:
            is_over.set()
            thread.join()
