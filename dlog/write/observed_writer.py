"""A writer whose calls are measured and traced.

Inside: the calls that wait for records. Not inside: writing (``log_writer``).
Always: nothing is done for a single record of a batch. ``opening`` uses this class only with the settings
``statistics`` and ``tracing``, so that the other writers do nothing for them.
"""

from __future__ import annotations

from collections.abc import Iterable

from dlog.statistics_names import APPEND_MANY, FLUSH
from dlog.write.log_writer import LogWriter
from dlog.write.pending import Pending
from ledger.runtime.statistics.tracing import MESSAGE_ID, Span
from namespace.dlsn import DLSN

Buffer = bytes | bytearray | memoryview


class ObservedLogWriter(LogWriter):
    """See ``LogWriter``."""

    async def append(self, payload: Buffer, *, txid: int | None = None) -> DLSN:
        """See ``LogWriter.append``."""
        with self._appending() as span:
            return _told(span, await super().append(payload, txid=txid))

    async def append_after(self, payload: Buffer, last: DLSN | None, *, txid: int | None = None) -> DLSN:
        """See ``LogWriter.append_after``."""
        with self._appending() as span:
            return _told(span, await super().append_after(payload, last, txid=txid))

    async def append_once(self, payload: Buffer, *, txid: int) -> DLSN:
        """See ``LogWriter.append_once``."""
        with self._appending() as span:
            return _told(span, await super().append_once(payload, txid=txid))

    async def append_many(
        self, payloads: Iterable[Buffer], *, txids: Iterable[int] | None = None, atomic: bool = False
    ) -> list[DLSN]:
        """See ``LogWriter.append_many``."""
        payloads = list(payloads)
        with self._lookup.operation(
            APPEND_MANY, "append_many", operation_type="send", message_count=len(payloads)
        ):
            return await super().append_many(payloads, txids=txids, atomic=atomic)

    async def append_many_after(
        self, payloads: Iterable[Buffer], last: DLSN | None, *, txids: Iterable[int] | None = None
    ) -> list[DLSN]:
        """See ``LogWriter.append_many_after``."""
        payloads = list(payloads)
        with self._lookup.operation(
            APPEND_MANY, "append_many", operation_type="send", message_count=len(payloads)
        ):
            return await super().append_many_after(payloads, last, txids=txids)

    async def flush(self) -> None:
        """See ``LogWriter.flush``."""
        with self._lookup.operation(FLUSH):
            await super().flush()

    def _submit_now(self, payload: bytes, txid: int | None) -> Pending | None:
        return None  # the caller then calls ``append``


def _told(span: Span | None, dlsn: DLSN) -> DLSN:
    if span is not None:
        span.set_attribute(MESSAGE_ID, str(dlsn))
    return dlsn
