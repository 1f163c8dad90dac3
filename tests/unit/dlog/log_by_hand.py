"""A log laid out by hand for those who read it: metadata in memory, ledgers that are lists of entries."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

import dlog
from dlog.envelope import seal_envelope
from dlog.log_reader import open_log_reader
from dlog.log_source import LogSource
from dlog.record import encode_records
from ledger.errors import LedgerError, NoSuchLedgerError
from namespace import paths
from namespace.logs import create_log
from namespace.memory import MemoryStore, MemoryTree
from namespace.segment import LogSegment, encode_segment

NS, LOG = "/ns", "log"


@attrs.define(eq=False)
class Ledger:
    entries: list[bytes]
    lac: int
    is_closed: bool = False
    error: LedgerError | None = None
    entries_at_once: int = 2  # that one read gives


class Handle:
    """As ``ledger.handle.ReadHandle``."""

    def __init__(self, ledger_id: int, ledger: Ledger) -> None:
        self.ledger_id, self._ledger = ledger_id, ledger

    async def __aenter__(self) -> Handle:
        return self

    async def __aexit__(self, *exc: object) -> None:
        pass

    @property
    def is_closed(self) -> bool:
        return self._ledger.is_closed

    @property
    def last_confirmed(self) -> int:
        return self._ledger.lac

    async def read_last_confirmed(self) -> int:
        await trio.lowlevel.checkpoint()
        return self._ledger.lac

    async def read_payloads(self, first: int, last: int, *, size_bytes_max: int | None = None) -> list[bytes]:
        await trio.lowlevel.checkpoint()
        if self._ledger.error is not None:
            raise self._ledger.error
        return self._ledger.entries[first : min(last + 1, first + self._ledger.entries_at_once)]

    async def wait_last_confirmed_beyond(self, entry_id: int, *, timeout_s: float) -> int:
        with trio.move_on_after(timeout_s):
            while self._ledger.lac <= entry_id and not self._ledger.is_closed:  # noqa: ASYNC110
                await trio.sleep(0.01)
        return self._ledger.lac


class Log:
    """A log whose nodes and ledgers the test writes."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.ledgers: dict[int, Ledger] = {}
        self.source = LogSource(store, self, NS, LOG, b"")  # type: ignore[arg-type]

    async def open(self, ledger_id: int, *, password: bytes, recover: bool) -> Handle:
        assert not recover, "a reader disturbs no writer"
        await trio.lowlevel.checkpoint()
        if ledger_id not in self.ledgers:
            raise NoSuchLedgerError(ledger_id)
        return Handle(ledger_id, self.ledgers[ledger_id])

    async def put(self, segment: LogSegment) -> None:
        await self.store.create(paths.segment_path(NS, LOG, segment.name), encode_segment(segment))

    async def remove(self, segment: LogSegment) -> None:
        await self.store.delete(paths.segment_path(NS, LOG, segment.name))

    async def begin(self, seqno: int, ledger_id: int, entries: Sequence[bytes], lac: int) -> LogSegment:
        self.ledgers[ledger_id] = Ledger(list(entries), lac)
        segment = LogSegment(segment_seqno=seqno, ledger_id=ledger_id, first_txid=0)
        await self.put(segment)
        return segment

    async def complete(
        self, segment: LogSegment, count: int, *, start: int = 0, last_txid: int = 5
    ) -> LogSegment:
        ledger = self.ledgers[segment.ledger_id]
        ledger.lac, ledger.is_closed = len(ledger.entries) - 1, True
        done = segment.completed(
            last_txid=last_txid,
            record_count=count,
            last_entry_id=ledger.lac,
            last_slot_id=0,
            completed_ms=1,
            start_sequence_id=start,
        )
        await self.put(done)
        await self.remove(segment)
        return done

    @asynccontextmanager
    async def reader(self, start: Any = dlog.EARLIEST, **options: Any) -> AsyncIterator[dlog.LogReader]:
        config = dlog.ReaderConfig(
            patience_s=options.pop("patience_s", 30),
            read_ahead_bytes_max=options.pop("ahead", 1 << 20),
            check_positions=options.pop("check_positions", True),
        )
        async with open_log_reader(self.source, config, start=start, **options) as reader:
            yield reader


@asynccontextmanager
async def open_log() -> AsyncIterator[Log]:
    store = MemoryStore(MemoryTree())
    await store.create(NS)
    await create_log(store, NS, LOG)
    yield Log(store)
    await store.aclose()


def entries_of(first: int, stop: int, *, base: int = 0) -> list[bytes]:
    """One record in each entry, numbered."""
    return [seal_envelope(encode_records([b"%d" % n], [5], n - base + 1)) for n in range(first, stop)]


async def payloads(reader: dlog.LogReader) -> list[int]:
    return [int(record.payload) async for record in reader]
