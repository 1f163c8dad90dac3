"""The producer and the consumer.

Inside: when a record is sent and when it is confirmed. Not inside: the replicas (``replica``).
Always: a majority of the replicas has synced what is confirmed; records gather while an entry is not, as with
DLog.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import trio

from dlog.cli.bench.loop.replica import CONSUMER, FRAME, RECEIVE_BYTES, REPLY, RingFile, replica_name
from dlog.cli.bench.loop.sockets import connect, listen
from dlog.cli.bench.schedule import Schedule
from dlog.cli.bench.work.arrivals import Arrivals, cpu_s
from dlog.cli.bench.work.job import STAMP, Job, stamped
from dlog.cli.bench.work.link import Link
from dlog.cli.bench.work.timer import open_timer


class Sink(Protocol):
    """Takes the records of the producer."""

    async def append(self, records: bytes) -> None:
        """Take records; return when the caller may make more."""

    async def flush(self) -> None:
        """Return when the consumer was sent everything."""


class OwnFile:
    """One replica, in the process of the producer."""

    def __init__(self, file: RingFile, consumer: trio.abc.SendStream) -> None:
        self._file, self._consumer = file, consumer

    async def append(self, records: bytes) -> None:
        self._file.write(records)
        await self._consumer.send_all(records)

    async def flush(self) -> None:
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

    async def append(self, records: bytes) -> None:
        self._waiting.append(records)
        await self._send()

    async def flush(self) -> None:
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
        started = await link.receive_in_loop()
        await _write(job, link, started["start_ns"], OwnFile(file, await consumers.accept()))
        return
    async with trio.open_nursery() as nursery:
        streams = [await connect(directory, replica_name(number)) for number in range(replicas)]
        quorum = Quorum(streams)
        for number in range(replicas):
            nursery.start_soon(quorum.take_replies, number)
        link.send("ready")
        started = await link.receive_in_loop()
        await _write(job, link, started["start_ns"], quorum)
        nursery.cancel_scope.cancel()


async def _write(job: Job, link: Link, start_ns: int, sink: Sink) -> None:
    rest = os.urandom(job.size - STAMP.size)
    schedule = Schedule(start_ns, job.rate, job.records)
    sent = 0
    cpu_at_mark = 0.0
    with open_timer(schedule) as timer:
        while sent < job.records:
            due = schedule.due_from(sent, time.monotonic_ns())
            if not due:
                await timer.wait_in_loop()
                continue
            if job.left_out in due:
                cpu_at_mark = cpu_s()
                link.send("mark")
            await sink.append(b"".join([stamped(schedule.due_ns(number), number, rest) for number in due]))
            sent = due.stop
    await sink.flush()
    link.send("done", cpu_us=(cpu_s() - cpu_at_mark) / (job.records - job.left_out) * 1e6)
    await link.receive_in_loop()


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
