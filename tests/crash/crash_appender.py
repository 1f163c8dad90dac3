"""A process that a test kills: it appends numbered records and prints each acknowledgement.

``python crash_appender.py URI LOG`` continues behind the last record of the log. It prints ``open N`` when
the writer is open behind record N, and ``ack N`` when every record up to N is acknowledged.

Inside: the process, its handle for tests, and the check of the log afterwards.
"""

from __future__ import annotations

import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from subprocess import PIPE

import trio

import dlog

BATCHES_IN_FLIGHT = 4


def payload_of(number: int) -> bytes:
    """The payload of record ``number``. Payloads have very different sizes and contents."""
    rng = random.Random(number)
    return b"%d:" % number + rng.randbytes(rng.choice([0, 1, 20, 100, 1000, 5000]))


async def append_until_killed(uri: str, log: str) -> None:
    """Append batches, several in flight, and print the acknowledged numbers."""
    # The lock of a killed writer is free when its session has ended.
    config = dlog.NamespaceConfig(session_timeout_ms=6000)
    async with (
        dlog.open_namespace(uri, config=config) as namespace,
        namespace.open_writer(log, create=True) as writer,
        trio.open_nursery() as nursery,
    ):
        number = max(writer.last_txid, 0)
        print("open", number, flush=True)
        send, receive = trio.open_memory_channel[tuple[int, dlog.Pending]](BATCHES_IN_FLIGHT)
        nursery.start_soon(_print_acknowledged, receive)
        while True:
            await writer.wait_capacity()
            for _ in range(random.randint(1, 20)):
                number += 1
                pending = writer.submit(payload_of(number), txid=number)
            await send.send((number, pending))


async def _print_acknowledged(receive: trio.MemoryReceiveChannel[tuple[int, dlog.Pending]]) -> None:
    async for number, pending in receive:
        await pending
        print("ack", number, flush=True)


class Appender:
    """A test's handle on the process."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self.acknowledged = 0
        self.opened_behind: int | None = None
        self._rest = b""

    async def _receive(self) -> bool:
        assert self.process.stdout is not None
        chunk = await self.process.stdout.receive_some()
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            word, number = line.split()
            if word == b"open":
                self.opened_behind = int(number)
            else:
                self.acknowledged = int(number)
        return bool(chunk)

    async def wait_open(self) -> None:
        """Wait until the process has opened its writer; fail if it ends before."""
        while self.opened_behind is None:
            goes_on = await self._receive()
            assert goes_on, "the appender ended by itself; its error is printed above"

    async def wait_acknowledged(self, number: int) -> None:
        """Wait until record ``number`` is acknowledged; fail if the process ends before."""
        while self.acknowledged < number:
            goes_on = await self._receive()
            assert goes_on, "the appender ended by itself; its error is printed above"

    async def kill(self) -> int:
        """SIGKILL the process; return the last record that it reported as acknowledged."""
        self.process.kill()
        while await self._receive():
            pass  # lines that the process printed before its death count
        await self.process.wait()
        return self.acknowledged


@asynccontextmanager
async def open_appender(uri: str, log: str) -> AsyncIterator[Appender]:
    """Start the process; kill it at the end of the block."""
    process = await trio.lowlevel.open_process([sys.executable, __file__, uri, log], stdout=PIPE)
    appender = Appender(process)
    try:
        yield appender
    finally:
        with trio.CancelScope(shield=True):
            process.kill()
            await process.wait()
            assert process.stdout is not None
            await process.stdout.aclose()


async def check_log(uri: str, log: str, acknowledged: int) -> int:
    """Check that the log has every acknowledged record once, unchanged and in order; return their number."""
    last = 0
    async with dlog.open_namespace(uri) as namespace:
        # A reader sees a dead writer's segment only up to its last LAC until a new writer recovers it.
        async with namespace.open_writer(log) as writer:
            recovered = writer.last_txid
        async with namespace.open_reader(log, follow=False) as reader:
            while records := await reader.read_batch(5000):
                for record in records:
                    assert record.txid == last + 1, f"record {record.txid} follows {last}"
                    assert record.payload == payload_of(record.txid), (
                        f"record {record.txid} has another payload"
                    )
                    last = record.txid
    assert last == recovered
    assert last >= acknowledged, f"record {acknowledged} was acknowledged, but the log ends at {last}"
    return last


if __name__ == "__main__":
    trio.run(append_until_killed, sys.argv[1], sys.argv[2])
