"""`idle`: the CPU time of readers that wait at the end of a log, and of tasks that wait for nothing."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import AsyncIterator

import trio

import dlog
from dlog.cli.bench.meter import cpu_s
from tests.bench.work.job import Job
from tests.bench.work.link import Link

SETTLE_S = 2  # after the last follower has begun to wait, before the clock starts


def measure(job: Job, link: Link) -> None:
    """Let ``job.records`` readers follow logs to which nothing is appended; send the CPU time of a second."""
    trio.run(_follow, job, link)


def measure_floor(job: Job, link: Link) -> None:
    """Let as many tasks of trio wait for an event that does not come."""
    trio.run(_sleep, job, link)


async def _follow(job: Job, link: Link) -> None:
    async with contextlib.AsyncExitStack() as stack:
        namespace = await stack.enter_async_context(dlog.open_namespace(job.address["uri"]))
        logs = [f"bench-{secrets.token_hex(4)}" for _ in range(job.address["logs"])]
        for log in logs:
            await stack.enter_async_context(_open_log(namespace, log))
        async with trio.open_nursery() as nursery:
            for number in range(job.records):
                await nursery.start(_follow_one, namespace, logs[number % len(logs)])
            await _timed(job, link)
            nursery.cancel_scope.cancel()


@contextlib.asynccontextmanager
async def _open_log(namespace: dlog.Namespace, log: str) -> AsyncIterator[None]:
    """A log with one record and a writer that stays open."""
    await namespace.create_log(log)
    async with namespace.open_writer(log) as writer:
        await writer.append(b"first")
        await writer.flush()
        yield
    await namespace.delete_log(log)


async def _follow_one(
    namespace: dlog.Namespace,
    log: str,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    async with namespace.open_reader(log) as reader:
        await reader.read_batch(1)
        task_status.started()
        await reader.read_batch(1)
        raise AssertionError(f"a record came in {log}, to which nothing is appended")


async def _sleep(job: Job, link: Link) -> None:
    async with trio.open_nursery() as nursery:
        never = trio.Event()
        for _ in range(job.records):
            nursery.start_soon(never.wait)
        await _timed(job, link)
        nursery.cancel_scope.cancel()


async def _timed(job: Job, link: Link) -> None:
    await trio.sleep(SETTLE_S)
    link.send("mark")
    started, cpu_before = time.monotonic(), cpu_s()
    await trio.sleep(job.address["seconds"])
    elapsed_s = time.monotonic() - started
    link.send("done", cpu_s=cpu_s() - cpu_before, elapsed_s=elapsed_s)
    await link.receive_in_loop()
