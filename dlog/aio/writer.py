"""A writer for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

from dlog.aio.bridge import Bridge, passed
from dlog.errors import RecordOutcome
from dlog.write import log_writer, pending
from ledger.payloads import as_payload
from ledger.runtime.statistics.tracing import MESSAGE_ID
from namespace.dlsn import DLSN


class Pending:
    """See ``dlog.Pending``. ``await`` it for its DLSN; several times, and also after a cancelled wait."""

    __slots__ = ("_inner",)

    def __init__(self, inner: pending.Pending) -> None:
        self._inner = inner

    def __repr__(self) -> str:
        return repr(self._inner)

    def __await__(self) -> Generator[object, object, DLSN]:
        if self._inner.outcome is RecordOutcome.PENDING:
            settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def settle() -> None:
                if not settled.done():
                    settled.set_result(None)

            self._inner.on_settled(settle)
            yield from settled.__await__()
        return self._inner.dlsn

    @property
    def outcome(self) -> RecordOutcome:
        """See ``dlog.Pending.outcome``."""
        return self._inner.outcome

    @property
    def dlsn(self) -> DLSN:
        """See ``dlog.Pending.dlsn``."""
        return self._inner.dlsn


class LogWriter:
    """See ``dlog.LogWriter``. Made by ``Namespace.open_writer``."""

    def __init__(self, bridge: Bridge, inner: log_writer.LogWriter) -> None:
        self._bridge, self._inner = bridge, inner
        self.log = inner.log

    def __repr__(self) -> str:
        return f"<asyncio {repr(self._inner)[1:]}"

    @property
    def last_txid(self) -> int:
        """See ``dlog.LogWriter.last_txid``."""
        return self._inner.last_txid

    @property
    def bytes_in_flight(self) -> int:
        """See ``dlog.LogWriter.bytes_in_flight``."""
        return self._inner.bytes_in_flight

    @property
    def bytes_in_flight_max(self) -> int:
        """See ``dlog.LogWriter.bytes_in_flight_max``."""
        return self._inner.bytes_in_flight_max

    @property
    def payload_bytes_max(self) -> int:
        """See ``dlog.LogWriter.payload_bytes_max``."""
        return self._inner.payload_bytes_max

    async def append(self, payload: bytes | bytearray | memoryview, *, txid: int | None = None) -> DLSN:
        """See ``dlog.LogWriter.append``."""
        if self._inner.bytes_in_flight >= self._inner.bytes_in_flight_max:
            payload = as_payload(payload)  # copied now: the caller may reuse its buffer during the wait
        with self._inner._appending() as span:
            if self._inner.bytes_in_flight >= self._inner.bytes_in_flight_max:
                await self.wait_capacity()
            dlsn = await self.submit(payload, txid=txid)
            if span is not None:
                span.set_attribute(MESSAGE_ID, str(dlsn))
            return dlsn

    def submit(self, payload: bytes | bytearray | memoryview, *, txid: int | None = None) -> Pending:
        """See ``dlog.LogWriter.submit``."""
        return Pending(self._inner.submit(payload, txid=txid))

    append_many = passed(log_writer.LogWriter.append_many)
    append_after = passed(log_writer.LogWriter.append_after)
    append_many_after = passed(log_writer.LogWriter.append_many_after)
    append_once = passed(log_writer.LogWriter.append_once)
    outcome = passed(log_writer.LogWriter.outcome)
    wait_capacity = passed(log_writer.LogWriter.wait_capacity)
    flush = passed(log_writer.LogWriter.flush)
    truncate = passed(log_writer.LogWriter.truncate)
    seal = passed(log_writer.LogWriter.seal)
    reopen = passed(log_writer.LogWriter.reopen)
    aclose = passed(log_writer.LogWriter.aclose)
