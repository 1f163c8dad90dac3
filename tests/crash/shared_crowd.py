"""Programs that share the writer of one log, and what a test does to them; each is a ``shared_appender``."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio

import dlog
from tests.places import ROOT


@attrs.define(eq=False)
class Appender:
    """A process of ``shared_appender``."""

    process: trio.Process
    acknowledged: list[bytes] = attrs.field(factory=list)
    has_owned: bool = False

    @property
    def is_alive(self) -> bool:
        return self.process.returncode is None

    async def listen(self) -> None:
        """Read what it prints until it ends."""
        assert self.process.stdout is not None
        rest = b""
        async for chunk in self.process.stdout:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if line == b"owner":
                    self.has_owned = True
                else:
                    self.acknowledged.append(line.removeprefix(b"ack "))


@attrs.define(eq=False)
class Crowd:
    """The programs of one log, in the order of their starts."""

    uri: str
    _nursery: trio.Nursery
    log: str = "orders"
    appenders: list[Appender] = attrs.field(factory=list)

    @property
    def living(self) -> list[Appender]:
        return [each for each in self.appenders if each.is_alive]

    @property
    def owner(self) -> Appender:
        """The newest program that has owned the log and lives."""
        return next(each for each in reversed(self.appenders) if each.has_owned and each.is_alive)

    async def start(self) -> None:
        """Start one more program."""
        program = [sys.executable, "-m", "tests.crash.shared_appender"]
        command = [*program, self.uri, self.log, f"p{len(self.appenders)}"]
        process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE, cwd=ROOT)
        self.appenders.append(Appender(process))
        self._nursery.start_soon(self.appenders[-1].listen)

    async def more_from(self, appenders: list[Appender], records: int) -> None:
        """Return once each of them has had so many more records acknowledged."""
        enough = [len(each.acknowledged) + records for each in appenders]
        for each, least in zip(appenders, enough, strict=True):
            while len(each.acknowledged) < least:  # noqa: ASYNC110
                await trio.sleep(0.01)

    async def kill(self, appender: Appender) -> None:
        """Kill a program, and wait until it is gone."""
        appender.process.kill()
        await appender.process.wait()

    async def check(self) -> None:
        """Kill all programs; each record is in the log once, in the order of its task, none is missing."""
        for each in self.living:
            await self.kill(each)
        payloads = await stored(self.uri, self.log)
        counts = Counter(payloads)
        assert [payload for payload, stored_count in counts.items() if stored_count > 1] == []
        assert {payload for each in self.appenders for payload in each.acknowledged} - set(counts) == set()
        numbers: dict[bytes, list[int]] = {}
        for payload in payloads:
            task, _, number = payload.rpartition(b" ")
            numbers.setdefault(task, []).append(int(number))
        assert all(found == list(range(len(found))) for found in numbers.values())


@asynccontextmanager
async def open_crowd(uri: str, log: str = "orders") -> AsyncIterator[Crowd]:
    """Programs of one log; they are killed at the end of the block."""
    async with trio.open_nursery() as nursery:
        crowd = Crowd(uri, nursery, log)
        try:
            yield crowd
        finally:
            with trio.CancelScope(shield=True):
                for each in crowd.living:
                    await crowd.kill(each)


async def stored(uri: str, log: str = "orders", config_file: Path | None = None) -> list[bytes]:
    """The records, once what a killed owner left in progress is completed: readers see all of it then."""
    async with dlog.open_namespace(uri, config_file=config_file) as namespace:
        async with namespace.open_writer(log):
            pass
        async with namespace.open_reader(log, follow=False) as reader:
            return [record.payload async for record in reader]
