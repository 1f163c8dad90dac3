"""A stream of events with one publisher and two followers. One follower starts late and catches up.

python examples/event_stream.py DIRECTORY
"""

from __future__ import annotations

import sys
from pathlib import Path

import trio

import dlog

EVENTS = 20


async def publish(namespace: dlog.Namespace) -> None:
    """Append events. When ``append`` returns, the event is durable and the followers can read it."""
    async with namespace.open_writer("events") as log:
        for number in range(EVENTS):
            await log.append(f"event {number}".encode())
            await trio.sleep(0.01)


async def follow(namespace: dlog.Namespace, name: str, *, delay_s: float) -> None:
    """Read from the first record on and wait for more; keep the position that a restart would need."""
    await trio.sleep(delay_s)
    position: dlog.DLSN | dlog.Start = dlog.EARLIEST
    count = 0
    while count < EVENTS:
        async with namespace.open_reader("events", start=position) as reader:
            for record in await reader.read_batch(5) or ():  # None would be the end
                count += 1
                position = record.dlsn.next_slot()
                print(f"{name}: {record.payload.decode()} at {record.dlsn}", flush=True)


async def main(uri: str) -> None:
    async with dlog.open_namespace(uri) as namespace:
        await namespace.create_log("events", exist_ok=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish, namespace)
            nursery.start_soon(lambda: follow(namespace, "early", delay_s=0))
            nursery.start_soon(lambda: follow(namespace, "late", delay_s=0.1))


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]).absolute().as_uri())
