"""A log for tests of readers: the test writes its metadata in memory and its ledgers as lists of entries."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import attrs
import trio

import dlog
from dlog.format.envelope import seal_envelope
from dlog.format.record import encode_records
from dlog.read.log_reader import open_log_reader
from dlog.read.read_only_log import ReadOnlyLog
from ledger.errors import LedgerError, NoSuchLedgerError
from ledger.metadata_store.memory import MemoryStore, MemoryTree
from ledger.runtime.statistics import Recorder
from namespace.log_nodes import LogNodes
from namespace.logs import create_log
from namespace.segments.segment import LogSegment, encode_segment
from tests.fakes.log_paths import paths_of

NS, LOG = "/ns", "log"


T = TypeVar("T")


def _wake(ledger: Ledger, _: attrs.Attribute[T], value: T) -> T:
    ledger.changed.set()
    ledger.changed = trio.Event()
    return value


@attrs.define(eq=False)
class Ledger:
    entries: list[bytes]
    lac: int = attrs.field(on_setattr=_wake)
    is_closed: bool = attrs.field(default=False, on_setattr=_wake)
    error: LedgerError | None = None
    entry_errors: dict[int, LedgerError] = attrs.field(factory=dict)
    entries_at_once: int = 2  # the most that one read returns
    changed: trio.Event = attrs.field(factory=trio.Event, init=False)  # set with ``lac`` or ``is_closed``


class Handle:
    """Stands in for ``ledger.handle.ReadHandle``."""

    def __init__(self, ledger_id: int, ledger: Ledger) -> None:
        self.ledger_id, self._ledger = ledger_id, ledger
        self._waiting: set[trio.CancelScope] = set()

    async def __aenter__(self) -> Handle:
        return self

    async def __aexit__(self, *exc: object) -> None:
        pass

    async def close(self) -> None:
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
        if first in self._ledger.entry_errors:
            raise self._ledger.entry_errors[first]
        bad = [each for each in self._ledger.entry_errors if each > first]
        stop = min(last + 1, first + self._ledger.entries_at_once, *bad)
        return self._ledger.entries[first:stop]

    def take_recent(self, first: int, last: int) -> list[bytes]:
        return []

    def end_waits(self) -> None:
        for scope in self._waiting:
            scope.cancel()

    async def wait_last_confirmed_beyond(self, entry_id: int, *, timeout_s: float) -> int:
        with trio.move_on_after(timeout_s) as scope:
            self._waiting.add(scope)
            while self._ledger.lac <= entry_id and not self._ledger.is_closed:
                await self._ledger.changed.wait()
        self._waiting.discard(scope)
        return self._ledger.lac


class Log:
    """A log whose nodes and ledgers the test writes."""

    def __init__(self, store: MemoryStore) -> None:
        self.store, self.recorder = store, Recorder()
        self.ledgers: dict[int, Ledger] = {}
        self.read_only = ReadOnlyLog(LogNodes(store, NS, LOG), self, b"")  # type: ignore[arg-type]

    async def open(self, ledger_id: int, *, password: bytes, recover: bool) -> Handle:
        assert not recover, "a reader must not fence the writer"
        await trio.lowlevel.checkpoint()
        if ledger_id not in self.ledgers:
            raise NoSuchLedgerError(ledger_id)
        return Handle(ledger_id, self.ledgers[ledger_id])

    async def put(self, segment: LogSegment) -> None:
        await self.store.create(paths_of(NS, LOG).segment_path(segment.name), encode_segment(segment))

    async def remove(self, segment: LogSegment) -> None:
        await self.store.delete(paths_of(NS, LOG).segment_path(segment.name))

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
            retry_timeout_s=options.pop("retry_timeout_s", 30),
            read_ahead_bytes_max=options.pop("ahead", 1 << 20),
            check_positions=options.pop("check_positions", True),
        )
        async with open_log_reader(self.read_only, config, start=start, **options) as reader:
            yield reader


@asynccontextmanager
async def open_log() -> AsyncIterator[Log]:
    store = MemoryStore(MemoryTree())
    await store.create(NS)
    await create_log(LogNodes(store, NS, LOG))
    yield Log(store)
    await store.aclose()


def entries_of(first: int, stop: int, *, base: int = 0) -> list[bytes]:
    """Entries with one record each; the payload is the record's number."""
    return [seal_envelope(encode_records([b"%d" % n], [5], n - base + 1)) for n in range(first, stop)]


async def payloads(reader: dlog.LogReader) -> list[int]:
    return [int(record.payload) async for record in reader]
