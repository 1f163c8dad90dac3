"""`logs`: create, open, append to and close one log after the other; the floor does so with a synced file."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import trio

import dlog
from dlog.cli.bench.meter import cpu_s
from tests.bench.work.job import Job
from tests.bench.work.link import Link

STEPS = ("create", "open", "append", "close")


class Steps:
    """The wall-clock time and the CPU time of each step, summed over the logs that are measured."""

    def __init__(self) -> None:
        self.wall_s = dict.fromkeys(STEPS, 0.0)
        self.cpu_s = dict.fromkeys(STEPS, 0.0)
        self._at = (0.0, 0.0)

    def begin(self) -> None:
        """The next step starts now."""
        self._at = (time.perf_counter(), cpu_s())

    def end(self, step: str) -> None:
        """The step ended, and the next one starts now."""
        wall_before, cpu_before = self._at
        self.begin()
        self.wall_s[step] += self._at[0] - wall_before
        self.cpu_s[step] += self._at[1] - cpu_before


def measure(job: Job, link: Link) -> None:
    """Send the mean times of the logs after the first ``job.left_out``."""
    trio.run(_measure, job, link)


def measure_floor(job: Job, link: Link) -> None:
    """As ``measure`` with a file for each log; the file and its directory are synced."""
    trio.run(_measure_files, job, link)


async def _measure(job: Job, link: Link) -> None:
    async with dlog.open_namespace(job.address["uri"]) as namespace:
        payload = os.urandom(job.size)
        names: list[str] = []

        async def live(steps: Steps) -> None:
            log = f"bench-{secrets.token_hex(4)}"
            names.append(log)
            steps.begin()
            await namespace.create_log(log)
            steps.end("create")
            async with namespace.open_writer(log) as writer:
                steps.end("open")
                await writer.append(payload)
                steps.end("append")
            steps.end("close")

        await _repeat(job, link, live)
        for log in names:
            await namespace.delete_log(log)


async def _measure_files(job: Job, link: Link) -> None:
    directory = Path(job.address["directory"])
    payload = os.urandom(job.size)

    async def live(steps: Steps) -> None:
        home = directory / secrets.token_hex(4)
        steps.begin()
        home.mkdir()
        steps.end("create")
        file = os.open(home / "log", os.O_CREAT | os.O_WRONLY, 0o600)
        steps.end("open")
        os.write(file, payload)
        os.fsync(file)
        place = os.open(home, os.O_RDONLY)
        os.fsync(place)
        os.close(place)
        steps.end("append")
        os.close(file)
        steps.end("close")

    await _repeat(job, link, live)


async def _repeat(job: Job, link: Link, live: Callable[[Steps], Awaitable[None]]) -> None:
    for _ in range(job.left_out):
        await live(Steps())
    steps = Steps()
    link.send("mark")
    for _ in range(job.records):
        await live(steps)
    link.send("done", **outcome(steps, job.records))
    await link.receive_in_loop()


def outcome(steps: Steps, logs: int) -> dict[str, float]:
    """The mean times of one log, in ms."""
    return {
        "cpu_ms": round(sum(steps.cpu_s.values()) / logs * 1000, 3),
        "wall_ms": round(sum(steps.wall_s.values()) / logs * 1000, 3),
        **{f"{step}_cpu_ms": round(steps.cpu_s[step] / logs * 1000, 3) for step in STEPS},
    }
