"""A writer for asyncio."""

from __future__ import annotations

import asyncio
from asyncio import get_running_loop
from collections.abc import Generator

from dlog.aio.bridge import Bridge
from dlog.aio.face import Face, called, closing, forwarded
from dlog.errors import RecordOutcome, WriteError
from dlog.write import pending
from dlog.write.health import WriterState
from dlog.write.log_writer import Buffer, Headers
from dlog.write.log_writer import LogWriter as TrioWriter
from ledger.payloads import as_payload
from ledger.pickling import ProcessBound
from ledger.runtime.tasks.face import Shown, attribute, described, shown
from namespace.dlsn import DLSN


class Pending(ProcessBound):
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
    @described(pending.Pending.outcome)
    def outcome(self) -> RecordOutcome:
        return self._inner.outcome

    @property
    @described(pending.Pending.dlsn)
    def dlsn(self) -> DLSN:
        return self._inner.dlsn


class LogWriter(Face[TrioWriter]):
    """See ``dlog.LogWriter``. Made by ``Namespace.open_writer``."""

    def __init__(self, bridge: Bridge, inner: TrioWriter) -> None:
        super().__init__(bridge, inner)
        self._loop: asyncio.AbstractEventLoop | None = get_running_loop()
        self._check_loop = bridge.check_caller  # before anything is written

    log: Shown[str] = attribute("log", "The log's name.")
    payload_bytes_max: Shown[int] = attribute("payload_bytes_max", "A longer payload is refused.")
    last_txid: Shown[int] = shown(TrioWriter.last_txid)
    bytes_in_flight: Shown[int] = shown(TrioWriter.bytes_in_flight)
    bytes_in_flight_max: Shown[int] = shown(TrioWriter.bytes_in_flight_max)
    keys_and_headers: Shown[bool] = shown(TrioWriter.keys_and_headers)
    producer: Shown[str | None] = shown(TrioWriter.producer)
    is_owner: Shown[bool] = shown(TrioWriter.is_owner)
    forwarder_count: Shown[int] = shown(TrioWriter.forwarder_count)
    last_sequence: Shown[int] = shown(TrioWriter.last_sequence)
    state: Shown[WriterState] = shown(TrioWriter.state)
    failure: Shown[WriteError | None] = shown(TrioWriter.failure)
    oldest_pending_s: Shown[float] = shown(TrioWriter.oldest_pending_s)
    health = called(TrioWriter.health)

    append_many = forwarded(TrioWriter.append_many)
    append_after = forwarded(TrioWriter.append_after)
    append_many_after = forwarded(TrioWriter.append_many_after)
    append_once = forwarded(TrioWriter.append_once)
    outcome = forwarded(TrioWriter.outcome)
    wait_capacity = forwarded(TrioWriter.wait_capacity)
    flush = forwarded(TrioWriter.flush)
    truncate = forwarded(TrioWriter.truncate)
    seal = forwarded(TrioWriter.seal)
    reopen = forwarded(TrioWriter.reopen)
    aclose = closing(TrioWriter.aclose)

    @described(TrioWriter.append)
    async def append(
        self,
        payload: bytes | bytearray | memoryview,
        *,
        txid: int | None = None,
        key: Buffer | None = None,
        headers: Headers | None = None,
        sequence: int | None = None,
    ) -> DLSN:
        self._check_loop()
        try:
            pending = self._inner.begin_append(
                payload, txid=txid, key=key, headers=headers, sequence=sequence
            )
        except Exception:
            await asyncio.sleep(0)  # or a caller that tries again and again would keep the loop
            raise
        if pending is None:
            # Copied now: the caller may reuse its buffer during the wait.
            return await self._bridge.run(
                self._inner.append,
                as_payload(payload),
                txid=txid,
                key=key,
                headers=headers,
                sequence=sequence,
            )
        return await Pending(pending)

    @described(TrioWriter.submit)
    def submit(
        self,
        payload: bytes | bytearray | memoryview,
        *,
        txid: int | None = None,
        key: Buffer | None = None,
        headers: Headers | None = None,
        sequence: int | None = None,
    ) -> Pending:
        try:  # as ``_check_loop``, without a call
            here = get_running_loop()
        except RuntimeError:
            here = None
        if here is not self._loop:
            self._check_loop()
        return Pending(self._inner.submit(payload, txid=txid, key=key, headers=headers, sequence=sequence))
