"""A scan for asyncio: an asynchronous iterable of Arrow record batches."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from dlog.aio.face import Face, closing, forwarded
from dlog.scan.scan import Scan as TrioScan
from ledger.runtime.tasks.face import Shown, attribute, described

if TYPE_CHECKING:
    import pyarrow as pa


class Scan(Face[TrioScan]):
    """See ``dlog.scan.Scan``. Made by ``Namespace.scan``."""

    log: Shown[str] = attribute("log", "The log's name.")

    aclose = closing(TrioScan.aclose)
    to_table = forwarded(TrioScan.to_table)

    @property
    @described(TrioScan.schema)
    def schema(self) -> pa.Schema:
        return self._inner.schema

    async def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        self._bridge.check_caller()
        reading = self._inner.read()
        try:
            while (batch := await self._bridge.run(reading.batch)) is not None:
                yield batch
        finally:
            reading.stop()  # in the loop's own thread, where the guest run is
