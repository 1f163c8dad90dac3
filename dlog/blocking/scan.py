"""A scan without ``async``: an iterable of Arrow record batches, and a stream that other programs take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from dlog.errors import NamespaceClosedError
from dlog.scan.scan import Scan as TrioScan
from dlog.scan.scan import ScanReading
from ledger.runtime.tasks.blocking_face import HeldFace, forwarded
from ledger.runtime.tasks.face import Shown, attribute, described

if TYPE_CHECKING:
    import pyarrow as pa


class Scan(HeldFace[TrioScan]):
    """See ``dlog.scan.Scan``. Closed by ``close`` or the end of a ``with`` block, or when it is dropped."""

    _is_part = True  # nothing is open in it while nobody reads it: it may be dropped

    log: Shown[str] = attribute("log", "The log's name.")
    to_table = forwarded(TrioScan.to_table)

    @property
    @described(TrioScan.schema)
    def schema(self) -> pa.Schema:
        return self._inner.schema

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        reading = self._loop.run(self._begin)
        try:
            while (records := self._loop.run(reading.records)) is not None:
                yield self._inner.convert(records)
        finally:
            # Without a wait: a stream that is dropped comes here in any thread, between any two steps of it.
            with suppress(NamespaceClosedError):
                self._loop.call_soon(reading.stop)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """A stream of the batches in Arrow's C interface: another reading of the log each time."""
        import pyarrow as pa

        reader = pa.RecordBatchReader.from_batches(self.schema, iter(self))
        return reader.__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        """The schema in Arrow's C interface, so that a program plans without reading."""
        return self.schema.__arrow_c_schema__()

    async def _begin(self) -> ScanReading:
        return self._inner.read()
