"""A service with a standby: ``python -m tests.crash.standby_service URI NAME``.

It follows the write-ahead log, takes it over when it can, and appends until it is killed. Lines on stdout:
"following" once it has begun, "owner N" once it owns the state, which has N operations; "ack N" for each
operation of its own. An operation is the name and its index.
"""

from __future__ import annotations

import os
import sys

import trio

import dlog
from dlog.wal import follow_wal


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


class State:
    """The number of operations. They must come in order, each once."""

    def __init__(self) -> None:
        self.index = 0

    def apply(self, operation: bytes) -> None:
        index = int(operation.split()[1])
        if index != self.index + 1:
            say("wrong", index, "after", self.index)
        self.index = index

    def dump(self) -> bytes:
        return b"%d" % self.index

    def restore(self, dump: bytes) -> None:
        self.index = int(dump)


async def main(uri: str, name: str) -> None:
    state = State()
    async with (
        dlog.open_namespace(uri) as namespace,
        follow_wal(
            namespace,
            apply=state.apply,
            snapshot=state.dump,
            restore=state.restore,
            operations_between_snapshots=50,
        ) as standby,
    ):
        say("following")
        async with standby.take_over() as log:
            say("owner", state.index)
            while True:
                await log.append(f"{name} {log.index + 1}".encode())
                say("ack", log.index)


if __name__ == "__main__":
    trio.run(main, sys.argv[1], sys.argv[2])
