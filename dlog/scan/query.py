"""A query of DuckDB on a scan, in a thread.

Inside: a scan as a stream for threads of a program of trio, the query, its end when it is cancelled.
Always: a batch is read in the loop and made in the thread that asks for it, and the loop waits for no thread;
a cancelled query has ended in DuckDB when the caller continues; no extension is loaded from the network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import outcome
import pyarrow as pa
import trio

from dlog.errors import ConfigError
from dlog.scan.scan import Scan
from ledger.pickling import PicklableError

TABLE = "log"  # the name of the scan in queries
ROWS_AT_ONCE = 1024


class QueryError(PicklableError):
    """DuckDB refuses the query, or fails. ``is_wrong``: because of the text of the query."""

    def __init__(self, problem: str, *, is_wrong: bool) -> None:
        super().__init__(problem)
        self.is_wrong = is_wrong


Take = Callable[[list[str], list[tuple[Any, ...]]], None]


class ThreadScan:
    """A stream of a scan in Arrow's C interface; made in the loop, used in threads.

    Args:
        advance: Called with the number of rows of each batch.
    """

    def __init__(self, scan: Scan, advance: Callable[[int], None]) -> None:
        self._scan, self._advance, self._token = scan, advance, trio.lowlevel.current_trio_token()
        self.error: Exception | None = None  # of the last reading that failed

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        reading = trio.from_thread.run_sync(self._scan.read, trio_token=self._token)
        try:
            while (records := trio.from_thread.run(reading.records, trio_token=self._token)) is not None:
                self._advance(len(records))
                yield self._scan.convert(records)
        except Exception as exc:
            self.error = exc
            raise
        finally:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(reading.stop)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """A stream of the batches: another reading of the log each time."""
        reader = pa.RecordBatchReader.from_batches(self._scan.schema, iter(self))
        return reader.__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        """The schema, so that a program plans without reading."""
        return self._scan.schema.__arrow_c_schema__()


async def query(scan: Scan, sql: str, take: Take, advance: Callable[[int], None]) -> None:
    """Run a query on the scan, whose name in it is ``log``.

    Args:
        take: Called in a thread with the names of the columns, and with some rows; once or more.
        advance: Called in a thread with the number of records that were read.

    Raises:
        ConfigError: The package duckdb is not installed; the message names the extra.
        QueryError: DuckDB's error.
        The errors of ``LogReader.read_batch``.
    """
    try:
        import duckdb
    except ImportError as exc:
        raise ConfigError("a query needs the package duckdb: pip install '.[scan]'") from exc
    table = ThreadScan(scan, advance)

    def run(database: Any) -> None:
        try:
            database.register(TABLE, table)
            found = database.execute(sql)
            names = [each[0] for each in found.description or ()]
            rows = found.fetchmany(ROWS_AT_ONCE)
            take(names, rows)
            while rows := found.fetchmany(ROWS_AT_ONCE):
                take(names, rows)
        except duckdb.Error as exc:
            if table.error is not None:
                raise table.error from exc
            is_wrong = isinstance(exc, duckdb.ProgrammingError)
            raise QueryError(f"the query: {exc}", is_wrong=is_wrong) from None

    with duckdb.connect(config={"autoinstall_known_extensions": "false"}) as database:
        await _interruptible(lambda: run(database), database.interrupt, scan)


async def _interruptible(run: Callable[[], None], interrupt: Callable[[], None], scan: Scan) -> None:
    """Run a function in a thread. If cancelled, interrupt it and end the readings that it waits for."""

    async def interrupt_when_cancelled() -> None:
        with _at_end(interrupt):
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await scan.aclose()

    # Captured, so that the nursery does not wrap the error in a group.
    result: outcome.Outcome[None] | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(interrupt_when_cancelled)
        result = await outcome.acapture(trio.to_thread.run_sync, run)
        nursery.cancel_scope.cancel()
    assert result is not None  # else the cancellation was raised
    result.unwrap()


@contextmanager
def _at_end(call: Callable[[], None]) -> Iterator[None]:
    try:
        yield
    finally:
        call()
