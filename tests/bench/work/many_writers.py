"""`many`: writers of as many logs in one process, and as many tasks that append to one log."""

from __future__ import annotations

import secrets
import time
from contextlib import AsyncExitStack
from pathlib import Path

import trio

import dlog
from dlog.cli.bench.meter import cpu_s
from tests.bench.work.job import Job
from tests.bench.work.link import Link

SETTLE_S = 1  # of appends, before the clock starts
PAGE_KIB = 4


def measure(job: Job, link: Link) -> None:
    """Open ``job.records`` logs and append to each; then append with one record in flight for each."""
    trio.run(_measure, job, link, job.records)


def measure_one_log(job: Job, link: Link) -> None:
    """Let as many tasks append to one log."""
    trio.run(_measure, job, link, 1)


class _Appends:
    """The tasks, each with one append in flight."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self.count = 0
        self.is_over = False

    async def run(self, writer: dlog.LogWriter) -> None:
        while not self.is_over:
            await writer.append(self._payload)
            self.count += 1


async def _measure(job: Job, link: Link, logs: int) -> None:
    async with AsyncExitStack() as stack:
        namespace = await stack.enter_async_context(dlog.open_namespace(job.address["uri"]))
        prefix, payload = f"bench-{secrets.token_hex(4)}", bytes(job.size)
        async with namespace.open_writer(f"{prefix}-first", create=True) as writer:
            await writer.append(payload)  # so that everything is imported
        done, opened = trio.Event(), list[dlog.LogWriter]()
        rss_kib, cpu_before, began = _rss_kib(), cpu_s(), time.monotonic()

        async def hold(name: str, *, task_status: trio.TaskStatus[None]) -> None:
            task_status.started()
            async with namespace.open_writer(name, create=True) as writer:
                await writer.append(payload)
                opened.append(writer)
                if len(opened) == logs:
                    all_open.set()
                await done.wait()

        all_open = trio.Event()
        async with trio.open_nursery() as holders:
            for number in range(logs):
                await holders.start(hold, f"{prefix}-{number}")
            await all_open.wait()
            opening = {
                "open_cpu_s": cpu_s() - cpu_before,
                "open_wall_s": time.monotonic() - began,
                "rss_kib": (_rss_kib() - rss_kib) / logs,
            }
            appends = _Appends(payload)
            async with trio.open_nursery() as appending:
                for number in range(job.records):
                    appending.start_soon(appends.run, opened[number % logs])
                await trio.sleep(SETTLE_S)
                link.send("mark")
                count, cpu_before, began = appends.count, cpu_s(), time.monotonic()
                await trio.sleep(job.address["seconds"])
                appended = {
                    "appends": appends.count - count,
                    "cpu_s": cpu_s() - cpu_before,
                    "elapsed_s": time.monotonic() - began,
                }
                link.send("done", **opening, **appended)
                appends.is_over = True
            done.set()
        if job.address["deletes"]:
            for name in (f"{prefix}-first", *(f"{prefix}-{number}" for number in range(logs))):
                await namespace.delete_log(name)
        await link.receive_in_loop()


def _rss_kib() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_KIB
