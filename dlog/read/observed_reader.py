"""A reader whose calls are measured and traced.

Inside: the calls that return a batch, and the waits of an iteration. Not inside: reading (``log_reader``).
Always: nothing is done for a record that is decoded already. The namespace uses this class only with the
settings ``statistics`` and ``tracing``, so that the other readers do nothing for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from dlog.format.record import Record
from dlog.read.log_reader import LogReader
from dlog.statistics_names import RECEIVE
from ledger.runtime.statistics.tracing import MESSAGE_COUNT, Span


class ObservedLogReader(LogReader):
    """See ``LogReader``."""

    async def __anext__(self) -> Record:
        if self._index == len(self._records):
            with self._receiving() as span:
                is_found = await self._refill()
                if span is not None:
                    span.set_attribute(MESSAGE_COUNT, len(self._records) - self._index if is_found else 0)
            if not is_found:
                raise StopAsyncIteration
        self._index += 1
        return self._records[self._index - 1]

    async def _read_records(
        self, records_max: int, *, wait_s: float | None, columns: bool
    ) -> Sequence[Record] | None:
        with self._receiving() as span:
            records = await super()._read_records(records_max, wait_s=wait_s, columns=columns)
            if span is not None:
                span.set_attribute(MESSAGE_COUNT, len(records or ()))
        return records

    def _receiving(self) -> AbstractContextManager[Span | None]:
        return self._log.operation(RECEIVE, "receive", operation_type="receive")
