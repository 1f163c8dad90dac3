"""A scan of a log: the records between two bounds, as Arrow record batches.

Inside: ``Scan``, one reading of it, the bounds. Not inside: arrays (``schema``, ``dlog.read.arrow_columns``),
the reader.
Always: each reading of a scan gives the same records, unless they are truncated; a reading that is dropped
or stopped closes its reader; records become arrays outside of the event loop's thread.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import attrs
import trio

from dlog.errors import ConfigError, NamespaceClosedError
from dlog.read.log_reader import BATCH_RECORDS, LogReader
from dlog.read.positioning import LATEST, Start
from dlog.read.record_batch import RecordBatch
from ledger.pickling import ProcessBound
from ledger.runtime.tasks.service_tasks import ServiceTasks, open_service_tasks
from namespace.dlsn import DLSN

if TYPE_CHECKING:
    import pyarrow as pa

    from dlog.scan.schema import Converter

BATCH_BYTES = 16 * 1024 * 1024  # a batch has this many of payloads or BATCH_RECORDS records, or is the last
SAMPLE_RECORDS = 1000  # from which the fields of JSON payloads are found

Position = DLSN | int | Start
Opened = AbstractAsyncContextManager[LogReader]


@attrs.frozen
class ScannedLog:
    """The log of a scan, by the calls of its namespace."""

    name: str
    open_reader: Callable[[Position, DLSN], Opened]  # from a position to a record
    last_dlsn: Callable[[], Awaitable[DLSN | None]]


@attrs.frozen
class Bounds:
    """Which records a scan gives: decided once, so that each reading gives the same."""

    start: Position
    last: DLSN | None  # inclusive; None if there are none
    txid_max: int | None  # the first greater one ends the scan

    @classmethod
    def of(cls, start: Position, end: Position | None, last: DLSN | None) -> Bounds:
        """The bounds in a log whose last visible record is ``last``."""
        if isinstance(end, DLSN) and last is not None:
            last = min(end, last)
        if start is LATEST or (isinstance(start, DLSN) and last is not None and start > last):
            last = None
        return cls(start, last, end if isinstance(end, int) else None)

    def cut(self, records: RecordBatch) -> RecordBatch:
        """The records within the bounds; fewer only at the end."""
        if self.txid_max is None or not records or max(records.txids) <= self.txid_max:
            return records
        return records[: next(at for at, txid in enumerate(records.txids) if txid > self.txid_max)]


class ScanReading:
    """One reading of a scan, from its start."""

    def __init__(self, scan: Scan, bounds: Bounds, open_reader: Callable[[Position, DLSN], Opened]) -> None:
        self._scan, self._bounds, self._open_reader = scan, bounds, open_reader
        self._reader: LogReader | None = None
        self._error: Exception | None = None
        self._ready, self._stopped = trio.Event(), trio.Event()
        self._is_at_end = False

    async def run(self) -> None:
        """Hold the reader open until ``stop``: a task of the scan."""
        assert self._bounds.last is not None  # or there is nothing to read
        try:
            async with self._open_reader(self._bounds.start, self._bounds.last) as reader:
                self._reader = reader
                self._ready.set()
                await self._stopped.wait()
        except Exception as exc:  # ``records`` raises it
            self._error = exc
        finally:
            self._reader = None
            self._ready.set()

    async def records(self, records_max: int | None = None) -> RecordBatch | None:
        """The records of the next batch, at most ``records_max``; None at the end."""
        wanted = BATCH_RECORDS if records_max is None else records_max
        batches: list[RecordBatch] = []
        count = size = 0
        if not self._is_at_end and self._bounds.last is not None:
            await self._ready.wait()
        while count < wanted and size < BATCH_BYTES and not self._is_at_end:
            batch = await self._next(wanted - count)
            batches.append(batch)
            count += len(batch)
            size += batch.payload_bytes
        if self._is_at_end:
            self.stop()
        return RecordBatch.joined(batches) if count else None

    async def _next(self, records_max: int) -> RecordBatch:
        if self._bounds.last is None:
            self._is_at_end = True
            return RecordBatch()
        if self._reader is None:
            raise self._error or NamespaceClosedError(f"scan of log {self._scan.log!r}: it was closed")
        batch = await self._reader.read_batch(records_max)
        kept = RecordBatch() if batch is None else self._bounds.cut(batch)
        self._is_at_end = batch is None or len(kept) < len(batch)
        return kept

    async def batch(self) -> pa.RecordBatch | None:
        """The next batch; None at the end."""
        records = await self.records()
        return None if records is None else await trio.to_thread.run_sync(self._scan.convert, records)

    def stop(self) -> None:
        """Close the reader soon. In the thread of the loop."""
        self._stopped.set()


class Batches:
    """The iterator over one reading; dropping it closes the reader."""

    def __init__(self, reading: ScanReading) -> None:
        self._reading, self._token = reading, trio.lowlevel.current_trio_token()

    def __aiter__(self) -> Batches:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        batch = await self._reading.batch()
        if batch is None:
            raise StopAsyncIteration
        return batch

    def __del__(self) -> None:
        # Called in any thread, between any two steps of it.
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._reading.stop)


class Scan(ProcessBound):
    """The records of a log as Arrow record batches. Made by ``Namespace.scan``.

    Iterating gives the batches: with ``async for`` in trio and asyncio, with ``for`` in ``dlog.blocking``.
    Each iteration reads the log again and gives the same records. Several may be under way at a time. One
    that is left early closes its reader.

    In ``dlog.blocking`` a scan has ``__arrow_c_stream__`` too, so that DuckDB, Polars, pandas and pyarrow
    take it as a table, without a copy of the arrays. Such a stream cannot wait for an event loop, so the
    scans of trio and asyncio have none: give these programs the table of ``to_table``.
    """

    def __init__(self, log: ScannedLog, converter: Converter, bounds: Bounds, tasks: ServiceTasks) -> None:
        """For ``open_scan``."""
        self.log, self._log, self._converter, self._bounds = log.name, log, converter, bounds
        self._tasks, self._is_closed = tasks, False

    def __repr__(self) -> str:
        return f"<Scan of {self.log!r}: {', '.join(self.schema.names)}>"

    @property
    def schema(self) -> pa.Schema:
        """The names and types of the columns."""
        return self._converter.schema

    def __aiter__(self) -> Batches:
        return Batches(self.read())

    async def to_table(self) -> pa.Table:
        """Read all records into one table, in memory.

        Raises:
            The errors of ``LogReader.read_batch``.
        """
        import pyarrow as pa

        return pa.Table.from_batches([batch async for batch in self], schema=self.schema)

    async def aclose(self) -> None:
        """End all iterations. Idempotent; leaving ``async with`` calls it."""
        self._is_closed = True
        self._tasks.cancel()
        await trio.lowlevel.checkpoint()

    def read(self) -> ScanReading:
        """Begin another reading."""
        if self._is_closed:
            raise NamespaceClosedError(f"scan of log {self.log!r}: it was closed; make another one")
        reading = ScanReading(self, self._bounds, self._log.open_reader)
        if self._bounds.last is not None:
            self._tasks.start_soon(reading.run)
        return reading

    def convert(self, records: RecordBatch) -> pa.RecordBatch:
        """The records as arrays. It takes its time: not in the thread of a loop."""
        return self._converter.convert(records)


def converter_of(
    columns: Sequence[str] | None, fields: Mapping[str, Any] | bool, *, typed: bool, decrypts: bool
) -> Converter:
    """What makes the batches of a scan; see ``Namespace.scan``.

    Raises:
        ConfigError: The package pyarrow is not installed; the message names the extra.
    """
    try:
        from dlog.scan.schema import Converter
    except ImportError as exc:
        raise ConfigError("a scan needs the package pyarrow: pip install '.[scan]'") from exc
    return Converter(columns, fields, typed=typed, decrypts=decrypts)


@asynccontextmanager
async def open_scan(
    log: ScannedLog, converter: Converter, start: Position, end: Position | None
) -> AsyncIterator[Scan]:
    """Open a scan; see ``Namespace.scan``."""
    bounds = Bounds.of(start, end, await log.last_dlsn())
    async with open_service_tasks() as tasks:
        scan = Scan(log, converter, bounds, tasks)
        try:
            if converter.infers:
                await _infer(scan, converter)
            yield scan
        finally:
            scan._is_closed = True


async def _infer(scan: Scan, converter: Converter) -> None:
    """Find the fields of the first records."""
    reading = scan.read()
    try:
        records = await reading.records(SAMPLE_RECORDS)
        await trio.to_thread.run_sync(converter.infer, RecordBatch() if records is None else records)
    finally:
        reading.stop()
