"""A dictionary that survives kill -9: every change is logged first, and a start replays the log.

python examples/write_ahead_log.py DIRECTORY set greeting hello
python examples/write_ahead_log.py DIRECTORY get greeting
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

import dlog


class Store:
    """A dictionary whose changes are durable when ``set`` returns."""

    def __init__(self, values: dict[str, str], log: dlog.LogWriter) -> None:
        self.values, self._log = values, log

    async def set(self, key: str, value: str) -> None:
        """Log first, then change: after a crash in between, the replay applies the change."""
        await self._log.append(json.dumps([key, value]).encode())
        self.values[key] = value


@asynccontextmanager
async def open_store(uri: str) -> AsyncIterator[Store]:
    """Replay the log, then keep it open for new changes."""
    # The writer opens first: it recovers a crashed writer's records, so that the reader sees all of them.
    async with (
        dlog.open_namespace(uri) as namespace,
        namespace.open_writer("changes", create=True) as log,
    ):
        values: dict[str, str] = {}
        async with namespace.open_reader("changes", follow=False) as reader:
            async for record in reader:
                key, value = json.loads(record.payload)
                values[key] = value
        yield Store(values, log)


async def main(uri: str, command: str, key: str, value: str = "") -> None:
    async with open_store(uri) as store:
        if command == "set":
            await store.set(key, value)
        print(store.values.get(key))


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]).absolute().as_uri(), *sys.argv[2:])
