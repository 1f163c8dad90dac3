"""The producer and the consumer.

Inside: when a record is sent and when it is confirmed. Not inside: the replicas (``replica``).
Always: a majority of the replicas has synced what is confirmed; records gather while an entry is not, as with
DLog.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import trio

from tests.bench.loop.replica import CONSUMER, FRAME, RECEIVE_BYTES, REPLY, RingFile, replica_name
from tests.bench.loop.sockets import connect, listen
from tests.bench.work.arrivals import Arrivals
from tests.bench.work.due_records import write_due
from tests.bench.work.job import Job
from tests.bench.work.link import Link


class OwnFile:
    """One replica, in the process of the producer."""

    def __init__(self, file: RingFile, consumers: trio.SocketListener) -> None:
        self._file, self._consumers = file, consumers
        self._consumer: trio.SocketStream | None = None

    async def append(self, records: list[bytes]) -> None:
        """Sync the records and send them to the consumer, which has connected before the first one is due."""
        if self._consumer is None:
            self._consumer = await self._consumers.accept()
        data = b"".join(records)
        self._file.write(data)
        await self._consumer.send_all(data)

    async def flush(self) -> None:
        """Return: nothing waits."""
        await trio.lowlevel.checkpoint()


class Quorum:
    """Several replicas, each a process."""

    def __init__(self, replicas: Sequence[trio.abc.Stream]) -> None:
        self._replicas = replicas
        self._synced = [0] * len(replicas)
        self._waiting: list[bytes] = []
        self._sent = self._told = 0  # bytes of the log: sent to the replicas; confirmed to the first of them
        self._order = trio.Lock()  # every replica gets the frames in one order
        self._done = trio.Event()
        self._is_flushing = False

    @property
    def confirmed(self) -> int:
        """The bytes of the log that a majority has synced."""
        return sorted(self._synced)[(len(self._synced) - 1) // 2]

    async def append(self, records: list[bytes]) -> None:
        """Send the records, or let them wait for the entry before them."""
        self._waiting += records
        await self._send()

    async def flush(self) -> None:
        """Return when a majority has synced every record and the consumer may have it."""
        self._is_flushing = True
        await self._send()
        await self._done.wait()

    async def take_replies(self, number: int) -> None:
        """Take the replies of one replica; for a task."""
        unread = b""
        while data := await self._replicas[number].receive_some(RECEIVE_BYTES):
            unread += data
            end = len(unread) // REPLY.size * REPLY.size
            if end:
                (self._synced[number],) = REPLY.unpack_from(unread, end - REPLY.size)
                unread = unread[end:]
                await self._send()

    async def _send(self) -> None:
        if self.confirmed < self._sent:
            return
        async with self._order:
            confirmed = self.confirmed
            if confirmed < self._sent:
                return  # another task sent meanwhile
            if self._waiting:
                records = b"".join(self._waiting)
                self._waiting = []
                self._sent += len(records)
                self._told = confirmed
                frame = FRAME.pack(confirmed, len(records)) + records
                for replica in self._replicas:
                    await replica.send_all(frame)
            elif confirmed > self._told:
                self._told = confirmed
                await self._replicas[0].send_all(FRAME.pack(confirmed, 0))
        if self._is_flushing and not self._waiting and self._told == self._sent:
            self._done.set()


def produce(job: Job, link: Link) -> None:
    """Write the records when they are due."""
    trio.run(_produce, job, link)


def consume(job: Job, link: Link) -> None:
    """Follow the first replica to the last record."""
    trio.run(_consume, job, link)


async def _produce(job: Job, link: Link) -> None:
    directory, replicas = job.address["directory"], job.address["replicas"]
    if replicas == 1:
        consumers = await listen(directory, CONSUMER)
        file = RingFile(Path(directory, "data-0"), job.records * job.size)
        link.send("ready")
        own = OwnFile(file, consumers)
        await write_due(job, link, own.append, own.flush)
        file.close()
        return
    async with trio.open_nursery() as nursery:
        quorum = Quorum([await connect(directory, replica_name(number)) for number in range(replicas)])
        for number in range(replicas):
            nursery.start_soon(quorum.take_replies, number)
        link.send("ready")
        await write_due(job, link, quorum.append, quorum.flush)
        nursery.cancel_scope.cancel()


async def _consume(job: Job, link: Link) -> None:
    arrivals = Arrivals(job.records, job.left_out)
    stream = await connect(job.address["directory"], CONSUMER)
    link.send("ready")
    unread, size = b"", job.size
    while not arrivals.complete:
        data = await stream.receive_some(RECEIVE_BYTES)
        if not data:
            raise AssertionError("the producer ended early")
        unread += data
        end = len(unread) // size * size
        arrivals.add([unread[first : first + size] for first in range(0, end, size)], time.monotonic_ns())
        unread = unread[end:]
    link.send("done", **arrivals.outcome())
    await link.receive_in_loop()
