"""Adds to one bookie in the form in which a connection delivers them: framed, in chunks, a bounded number
in flight.

Inside: a bookie's service over its storage, and the peer that feeds it. Not inside: sockets, measurements.
Always: an add counts when its acknowledgement has left the service; a rejected add ends the benchmark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import trio

from bookie.errors import StorageFailedError
from bookie.requests.deferred import DeferredRequest
from bookie.requests.session import BookieService
from bookie.server.config import ServerConfig
from bookie.storage.config import StorageConfig
from bookie.storage.storage import Storage
from dlog.cli.bench.latency import BatchesInFlight, Latencies
from dlog.cli.bench.options import PAYLOADS
from ledger.codes import Code
from ledger.digest import DigestType, EntryCodec
from ledger.wire import v2

now = time.perf_counter

ENTRIES = EntryCodec(DigestType.CRC32C, b"bench")
LEDGERS = 4
_FRAME_LENGTH_BYTES = 4
_ACK = v2.add_reply(Code.OK, 0, 0)
_ACK_HEAD_BYTES = 12  # length, header, code


def storage_config(directory: Path, **changes: Any) -> StorageConfig:
    """The default configuration with journal and ledger directories below ``directory``."""
    journals: Any = (directory / "journal",)  # mypy takes the converter's type variable literally
    ledgers: Any = (directory / "ledgers",)
    config = StorageConfig(journal_directories=journals, ledger_directories=ledgers)
    return attrs.evolve(config, **changes)


class EntryStream:
    """Entries of a few ledgers in turn, as frames, with payloads that do not compress."""

    def __init__(self, payloads: list[bytes], *, first_ledger_id: int = 0, ledgers: int = LEDGERS) -> None:
        self._payloads = payloads
        self._encoders = [v2.AddEncoder(first_ledger_id + at, ENTRIES) for at in range(ledgers)]
        self._next_ids = [0] * ledgers
        self._turn = 0
        self.frame_bytes = _FRAME_LENGTH_BYTES + self._encoders[0].overhead_bytes + len(payloads[0])

    def frames(self, count: int) -> list[bytes]:
        """The next ``count`` entries, all of one ledger; the next call continues with the next ledger."""
        turn = self._turn
        self._turn = (turn + 1) % len(self._encoders)
        first = self._next_ids[turn]
        self._next_ids[turn] = first + count
        encode, payloads = self._encoders[turn].encode, self._payloads
        return [
            encode(entry_id, entry_id - 1, 0, payloads[entry_id % PAYLOADS])
            for entry_id in range(first, first + count)
        ]

    def bodies(self, count: int) -> list[bytes]:
        """The next ``count`` entries, in the form in which a bookie stores them."""
        start = _FRAME_LENGTH_BYTES + v2.ADD_BODY_OFFSET
        return [frame[start:] for frame in self.frames(count)]

    def last_entry_ids(self) -> Iterator[tuple[int, int]]:
        """Each ledger with the id of the last entry made for it."""
        for encoder, next_id in zip(self._encoders, self._next_ids, strict=True):
            yield encoder.ledger_id, next_id - 1


class Feeder:
    """Keeps a bounded number of adds in flight."""

    def __init__(self, storage: Storage, stream: EntryStream, *, inflight: int) -> None:
        self._storage, self._stream, self._inflight = storage, stream, inflight
        self._session = BookieService(storage).open_session(self._on_replies, self._reject_slow)
        received = ServerConfig().receive_bytes  # bytes that a connection reads from its socket at once
        self._chunk = max(1, min(inflight, received // stream.frame_bytes))
        self._sent = self._acked = 0
        self._progress = trio.Event()
        self._batches = BatchesInFlight(Latencies())
        self._failure: str | None = None

    async def feed(self, count: int, on_progress: Callable[[int], None] | None = None) -> Latencies:
        """Add ``count`` entries; return their latencies when all of them are acknowledged.

        Raises:
            StorageFailedError: The bookie rejected an add, or its storage failed.
        """
        self._batches.latencies = latencies = Latencies()
        storage, stop = self._storage, self._sent + count
        first = self._acked
        while self._acked < stop:
            self._progress = trio.Event()
            while (left := stop - self._sent) > 0:
                chunk = min(self._chunk, left)
                if self._sent - self._acked + chunk > self._inflight:
                    break
                self._send(chunk)
                await storage.wait_capacity()
            if self._acked < stop:
                await self._progress.wait()
            if self._failure is not None:
                raise StorageFailedError(self._failure)
            if on_progress is not None:
                on_progress(self._acked - first)
        return latencies

    def _send(self, count: int) -> None:
        frames = self._stream.frames(count)
        size = len(frames[0])
        spans = [(at + _FRAME_LENGTH_BYTES, at + size) for at in range(0, size * count, size)]
        self._batches.submitted(self._sent + count - 1, now())
        self._sent += count
        self._session.handle(b"".join(frames), spans)

    def _on_replies(self, frames: bytes) -> None:
        size = len(_ACK)
        for at in range(_ACK_HEAD_BYTES - 4, len(frames), size):
            if frames[at : at + 4] != _ACK[_ACK_HEAD_BYTES - 4 : _ACK_HEAD_BYTES]:
                code = int.from_bytes(frames[at : at + 4], "big")
                self._failure = f"the bookie replied to an add with code {code}"
                break
        self._acked += len(frames) // size
        self._batches.confirmed(self._acked - 1, now())
        self._progress.set()

    def _reject_slow(self, work: DeferredRequest) -> None:
        raise AssertionError(f"an add needs no slow work, but the service asked for {work!r}")
