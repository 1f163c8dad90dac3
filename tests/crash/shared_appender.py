"""A program that shares the writer of a log and that a test kills.

``python -m tests.crash.shared_appender URI LOG NAME`` appends records ``NAME TASK NUMBER`` from four tasks.
It prints ``ack PAYLOAD`` for each one that is durable, and ``owner`` when it has become the log's owner.
"""

from __future__ import annotations

import os
import sys

import trio

import dlog

TASKS = 4


async def append_until_killed(uri: str, log: str, name: str) -> None:
    """Append from several tasks, each record after the one before is durable."""

    async def append(task: int) -> None:
        number, was_owner = 0, False
        while True:
            payload = b"%b %d %d" % (name.encode(), task, number)
            await writer.append(payload)
            os.write(1, b"ack " + payload + b"\n")
            if writer.is_owner and not was_owner:
                os.write(1, b"owner\n")
            number, was_owner = number + 1, writer.is_owner

    async with (
        dlog.open_namespace(uri) as namespace,
        namespace.open_writer(log, create=True, shared=True) as writer,
        trio.open_nursery() as nursery,
    ):
        for task in range(TASKS):
            nursery.start_soon(append, task)


if __name__ == "__main__":
    trio.run(append_until_killed, sys.argv[1], sys.argv[2], sys.argv[3])
