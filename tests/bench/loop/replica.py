"""One replica: a file in which each write is synced, and the consumer that gets what is confirmed.

Inside: the file, the order of syncing and sending, the process of a replica. Not inside: what is confirmed
(``tail``).
Always: a reply leaves after the sync; the consumer gets no byte that the producer has not confirmed.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import trio

from tests.bench.loop.sockets import listen
from tests.bench.work.job import Job
from tests.bench.work.link import Link

CONSUMER = "consumer"  # the socket that the consumer connects to
FRAME = struct.Struct(">qq")  # the confirmed bytes of the log; the length of the records after the frame
REPLY = struct.Struct(">q")  # the bytes of the log that the replica has synced
RECEIVE_BYTES = 1 << 20
RING_BYTES = 64 << 20


class RingFile:
    """A file of zeros that is overwritten again and again, so that a sync has no metadata to write."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        self._descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        self._size_bytes = min(size_bytes, RING_BYTES)
        self._position = 0
        os.pwrite(self._descriptor, bytes(self._size_bytes), 0)
        os.fsync(self._descriptor)

    def write(self, data: bytes) -> None:
        """Write the bytes; they are synced when this returns."""
        if self._position + len(data) > self._size_bytes:
            self._position = 0
        left = memoryview(data)
        while left:
            written = os.pwritev(self._descriptor, [left], self._position, os.RWF_DSYNC)
            self._position += written
            left = left[written:]

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


class Backlog:
    """Records that the consumer does not have yet."""

    def __init__(self) -> None:
        self._records = b""
        self._given = self._confirmed = 0  # bytes of the log

    def add(self, records: bytes) -> None:
        """Keep records that follow those before."""
        self._records += records

    def take(self, confirmed: int) -> bytes:
        """The records that the consumer may have from now on. The other replicas may be ahead of this one."""
        self._confirmed = max(self._confirmed, confirmed)
        count = min(self._confirmed - self._given, len(self._records))
        records, self._records = self._records[:count], self._records[count:]
        self._given += count
        return records


class Frames:
    """Cuts what a producer sends."""

    def __init__(self) -> None:
        self._data = b""

    def feed(self, data: bytes) -> tuple[int, bytes]:
        """The greatest confirmed length (-1: none came) and the records in the frames that are complete."""
        data = self._data + data
        confirmed, at = -1, 0
        records: list[bytes] = []
        while len(data) - at >= FRAME.size:
            now_confirmed, length = FRAME.unpack_from(data, at)
            end = at + FRAME.size + length
            if end > len(data):
                break
            records.append(data[at + FRAME.size : end])
            confirmed, at = now_confirmed, end
        self._data = data[at:]
        return confirmed, b"".join(records)


def replicate(job: Job, link: Link) -> None:
    """Be one replica until the producer closes its connection."""
    trio.run(_replicate, job, link)


async def _replicate(job: Job, link: Link) -> None:
    directory, number = job.address["directory"], job.address["number"]
    producers = await listen(directory, replica_name(number))
    consumers = await listen(directory, CONSUMER) if number == 0 else None
    file = RingFile(Path(directory, f"data-{number}"), job.records * job.size)
    link.send("ready")
    producer = await producers.accept()
    consumer = await consumers.accept() if consumers is not None else None
    await serve(producer, consumer, file)
    file.close()


async def serve(producer: trio.abc.Stream, consumer: trio.abc.Stream | None, file: RingFile) -> None:
    """Sync what the producer sends, and give the consumer what is confirmed; end with the producer."""
    frames, backlog = Frames(), Backlog()
    synced = 0
    while data := await producer.receive_some(RECEIVE_BYTES):
        confirmed, records = frames.feed(bytes(data))
        if consumer is not None and (visible := backlog.take(confirmed)):
            await consumer.send_all(visible)  # before the sync, which takes longer
        if records:
            file.write(records)
            synced += len(records)
            await producer.send_all(REPLY.pack(synced))
        if consumer is not None and records:
            backlog.add(records)
            if visible := backlog.take(confirmed):
                await consumer.send_all(visible)


def replica_name(number: int) -> str:
    """The socket that the producer connects to."""
    return f"replica-{number}"
