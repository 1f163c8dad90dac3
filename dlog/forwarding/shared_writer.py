"""The writer of a shared log, as each of its programs has it.

Inside: checking and taking records, the calls of ``LogWriter``. Not inside: where records go
(``shared_shell``), what is sent when and again (``forward_machine``).
Always: a caller cannot tell who owns the log.

Source: our own; docs/shared.md. DistributedLog's write proxy has this purpose.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from threading import get_ident

import trio

from dlog.encryption import OVERHEAD_BYTES_MAX
from dlog.errors import (
    BatchTooLongError,
    RecordOutcome,
    RecordTooLongError,
    TxidOutOfOrderError,
    WriteError,
    WriterClosedError,
    WriterOverloadedError,
)
from dlog.format.arguments import as_dlsn, as_txid
from dlog.format.attributes import check_producer, check_rooms
from dlog.format.record import PAYLOAD_BYTES_MAX, RECORD_BYTES_MAX, TXID_MAX
from dlog.forwarding.forward_machine import ForwardPhase, Group
from dlog.forwarding.frames import GROUP_BYTES, RECORDS_MAX, ForwardedCall, Records, Request
from dlog.forwarding.shared_shell import Meeting, NoMeetingError, SharedLog, SharedShell
from dlog.statistics_names import FLUSH, FLUSHES
from dlog.write.batcher import Batch, encoded_bytes
from dlog.write.health import WriterState
from dlog.write.log_writer import OVERLOAD_FACTOR, Buffer, Headers, LogWriter
from dlog.write.opening import closed_at_end
from dlog.write.own_thread import check_own_thread, in_own_thread
from dlog.write.pending import Pending, settled_positions, wait_settled
from dlog.write.trace_headers import TraceHeaders
from ledger.payloads import as_payload
from ledger.runtime.audit import audited_async
from ledger.runtime.tasks.forks import call_in_child
from ledger.runtime.tasks.service_tasks import open_service_tasks
from namespace.dlsn import DLSN

PRODUCER_ROOM_BYTES = 96  # of a record, for its producer


class SharedLogWriter(LogWriter):
    """A ``LogWriter`` that other programs have open, too; made by ``open_writer(shared=True)``."""

    def __init__(self, shell: SharedShell) -> None:
        shared = shell.shared
        config = shared.config
        self.log, self._lookup, self._config = shared.log.name, shared.log, config
        self._forward, self._machine_of_all = shell, shell.machine
        self._closing, self._thread = trio.Event(), get_ident()
        self._takes_large = config.record_bytes_max > PAYLOAD_BYTES_MAX
        self.payload_bytes_max = config.record_bytes_max
        if not self._takes_large:
            overhead = PRODUCER_ROOM_BYTES + (0 if config.encryption is None else OVERHEAD_BYTES_MAX)
            self.payload_bytes_max = min(config.record_bytes_max, PAYLOAD_BYTES_MAX - overhead)
        self._submit_bytes_max = OVERLOAD_FACTOR * config.bytes_in_flight_max
        recorder = shared.log.recorder
        self._traces = TraceHeaders(recorder, self.payload_bytes_max, takes_any=self.keys_and_headers)
        call_in_child(self, SharedLogWriter._refuse_in_child)

    def _refuse_in_child(self) -> None:
        self._thread = get_ident()  # the only one there
        machine = self._machine_of_all
        machine.stopped = WriterClosedError(self.log, "this is a forked child", "open a writer in the child")

    def __repr__(self) -> str:
        return f"<SharedLogWriter of {self.log!r}: {self._forward.describe()}, last txid {self.last_txid}>"

    @property
    def producer(self) -> str:
        """The name that the records of this writer carry."""
        return self._forward.shared.producer

    @property
    def is_owner(self) -> bool:
        """True while this program owns the log."""
        return self._forward.owner is not None

    @property
    def forwarder_count(self) -> int:
        """How many programs forward to this one now."""
        owner = self._forward.owner
        return 0 if owner is None else owner.forwarder_count

    @property
    def last_sequence(self) -> int:
        """The sequence number of the producer's last record, of those submitted here and those of before that
        the log's end holds; -1: none."""
        return self._machine_of_all.next_sequence - 1

    @property
    def last_txid(self) -> int:
        """See ``LogWriter.last_txid``; as far as this program knows."""
        return self._machine_of_all.last_txid

    @property
    def bytes_in_flight(self) -> int:
        """See ``LogWriter.bytes_in_flight``."""
        return self._machine_of_all.waiting_bytes

    @property
    def oldest_pending_s(self) -> float:
        """See ``LogWriter.oldest_pending_s``."""
        since_s = self._machine_of_all.oldest_since_s
        return 0.0 if math.isinf(since_s) else max(0.0, self._machine_of_all.now_s() - since_s)

    @property
    def state(self) -> WriterState:
        """See ``LogWriter.state``; RECOVERING while there is no owner."""
        machine = self._machine_of_all
        if machine.is_closing or isinstance(machine.stopped, WriterClosedError):
            return WriterState.CLOSED if machine.phase is ForwardPhase.CLOSED else WriterState.CLOSING
        if machine.stopped is not None:
            return WriterState.FAILED
        return WriterState.OPEN if machine.link is not None else WriterState.RECOVERING

    @property
    def failure(self) -> WriteError | None:
        """See ``LogWriter.failure``."""
        return self._machine_of_all.stopped

    @in_own_thread
    async def append(
        self,
        payload: Buffer,
        *,
        txid: int | None = None,
        key: Buffer | None = None,
        headers: Headers | None = None,
        sequence: int | None = None,
    ) -> DLSN:
        """See ``LogWriter.append``."""
        attributes = None if key is None and headers is None else self._attributes(key, headers)
        with self._appending():
            attributes = self._traces.of_one(len(payload), attributes)
            if self._machine_of_all.is_over_limit:
                payload = as_payload(payload)
                await self.wait_capacity()
            group = self._taken(payload, txid, attributes, sequence)
            await wait_settled(group)
            return group.dlsn(0)

    @in_own_thread
    async def append_many(
        self,
        payloads: Iterable[Buffer],
        *,
        txids: Iterable[int] | None = None,
        atomic: bool = False,
        keys: Iterable[Buffer | None] | None = None,
        headers: Iterable[Headers | None] | None = None,
        sequence: int | None = None,
    ) -> list[DLSN]:
        """See ``LogWriter.append_many``. Without ``atomic``, records of other programs may come between."""
        records = [as_payload(each) for each in payloads]
        attributes = self._attributes_of(len(records), keys, headers)
        with self._appending_many(len(records)):
            attributes = self._traces.of_all(records, attributes, atomic=atomic)
            if self._machine_of_all.is_over_limit:
                await self.wait_capacity()
            ids = self._checked_all(records, txids)
            check_rooms(records, attributes, self.payload_bytes_max)
            if not records:
                return []
            groups = self._take_groups(records, ids, attributes, atomic, sequence)
            return await settled_positions([(each, 0, count) for each, count in groups])

    @in_own_thread
    async def append_after(
        self,
        payload: Buffer,
        last: DLSN | None,
        *,
        txid: int | None = None,
        key: Buffer | None = None,
        headers: Headers | None = None,
    ) -> DLSN:
        """See ``LogWriter.append_after``."""
        attributes = self._attributes(key, headers)
        with self._appending():
            attributes = self._traces.of_one(len(payload), attributes)
            ids = None if txid is None else [txid]
            (found,) = await self._after([as_payload(payload)], last, ids, [attributes])
            return found

    @in_own_thread
    async def append_many_after(
        self,
        payloads: Iterable[Buffer],
        last: DLSN | None,
        *,
        txids: Iterable[int] | None = None,
        keys: Iterable[Buffer | None] | None = None,
        headers: Iterable[Headers | None] | None = None,
    ) -> list[DLSN]:
        """See ``LogWriter.append_many_after``."""
        records = [as_payload(each) for each in payloads]
        attributes = self._attributes_of(len(records), keys, headers)
        with self._appending_many(len(records)):
            attributes = self._traces.of_all(records, attributes, atomic=True)
            return await self._after(records, last, txids, attributes) if records else []

    async def _after(
        self,
        records: list[bytes],
        last: DLSN | None,
        txids: Iterable[int] | None,
        attributes: Sequence[bytes | None] | None,
    ) -> list[DLSN]:
        ids = self._checked_all(records, txids)
        check_rooms(records, attributes, self.payload_bytes_max)
        self._check_atomic(records, attributes)
        # Of its own: no later record of this writer waits for it, or is in the way when it is repeated.
        request = Request(
            0,
            ForwardedCall.APPEND_AFTER,
            secrets.token_hex(16),
            None if last is None else as_dlsn(last),
            Records(0, records, ids, attributes, is_atomic=True),
        )
        await self._wait_idle()
        return await self._forward.call(request)

    @in_own_thread
    async def append_once(
        self,
        payload: Buffer,
        *,
        txid: int,
        key: Buffer | None = None,
        headers: Headers | None = None,
    ) -> DLSN:
        """See ``LogWriter.append_once``."""
        attributes = self._attributes(key, headers)
        with self._appending():
            records = [as_payload(payload)]
            self._check_lengths(records)
            check_rooms(records, [attributes], self.payload_bytes_max)
            request = Request(
                0, ForwardedCall.APPEND_ONCE, records=Records(0, records, [as_txid(txid)], [attributes])
            )
            (found,) = await self._forward.call(request)
            return found

    @in_own_thread
    async def outcome(self, txid: int) -> DLSN | None:
        """See ``LogWriter.outcome``."""
        found = await self._forward.call(Request(0, ForwardedCall.OUTCOME, txid=as_txid(txid)))
        return found[0] if found else None

    def submit(
        self,
        payload: Buffer,
        *,
        txid: int | None = None,
        key: Buffer | None = None,
        headers: Headers | None = None,
        sequence: int | None = None,
    ) -> Pending:
        """See ``LogWriter.submit``."""
        attributes = None if key is None and headers is None else self._attributes(key, headers)
        waiting_bytes = self._machine_of_all.waiting_bytes
        if waiting_bytes > self._submit_bytes_max:
            raise WriterOverloadedError(self.log, waiting_bytes, self._submit_bytes_max)
        attributes = self._traces.of_one(len(payload), attributes)
        return Pending(self._taken(payload, txid, attributes, sequence), 0)

    def begin_append(
        self,
        payload: Buffer,
        *,
        txid: int | None = None,
        key: Buffer | None = None,
        headers: Headers | None = None,
        sequence: int | None = None,
    ) -> Pending | None:
        """See ``LogWriter.begin_append``."""
        if self._lookup.recorder.observes or self._machine_of_all.is_over_limit:
            return None
        attributes = None if key is None and headers is None else self._attributes(key, headers)
        return Pending(self._taken(payload, txid, attributes, sequence), 0)

    @in_own_thread
    async def wait_capacity(self) -> None:
        """See ``LogWriter.wait_capacity``."""
        machine = self._machine_of_all
        await trio.lowlevel.checkpoint()
        while machine.is_over_limit:
            await self._forward.wait_changed()
        if machine.stopped is not None:
            raise machine.stopped.about(RecordOutcome.NOT_WRITTEN)

    @in_own_thread
    async def flush(self) -> None:
        """See ``LogWriter.flush``."""
        machine = self._machine_of_all
        self._lookup.counts[FLUSHES] += 1
        with self._lookup.operation(FLUSH):
            if unseen := [group for group in machine.failed if not group.error_was_seen]:
                for group in unseen:
                    group.error_was_seen = True
                machine.failed.clear()
                unseen[0].raise_error()
            if machine.newest is None:
                await trio.lowlevel.checkpoint()
                return
            newest = machine.newest
            await wait_settled(newest)
            if newest.error is not None:
                newest.raise_error()
            await self._forward.call(Request(0, ForwardedCall.FLUSH))

    @in_own_thread
    async def truncate(self, first_kept: DLSN) -> DLSN | None:
        """See ``LogWriter.truncate``."""
        await self._forward.shared.check_truncation()
        found = await self._forward.call(Request(0, ForwardedCall.TRUNCATE, position=as_dlsn(first_kept)))
        return found[0] if found else None

    @in_own_thread
    async def seal(self) -> None:
        """See ``LogWriter.seal``. The writers of all programs end."""
        await self._forward.shared.check_admin()
        async with audited_async("seal log", self.log):
            await self._wait_idle()
            try:
                await self._forward.call(Request(0, ForwardedCall.SEAL))
            except WriterClosedError:
                if not self._forward.is_sealed:  # the owner may have gone before it answered
                    raise
            await self.aclose()

    async def aclose(self) -> None:
        """See ``LogWriter.aclose``. If this program owns the log, another one takes it over."""
        check_own_thread(self)
        self._closing.set()
        await self._forward.aclose()

    async def reopen(self) -> None:
        """A shared writer opens itself again as long as it may. Raises what has stopped it for good."""
        check_own_thread(self)
        await trio.lowlevel.checkpoint()
        stopped = self._machine_of_all.stopped
        if self._closing.is_set():
            raise WriterClosedError(self.log)
        if stopped is not None:
            raise stopped.about(RecordOutcome.NOT_WRITTEN)

    async def _wait_idle(self) -> None:
        """Return when each record that was taken before has its outcome."""
        if (newest := self._machine_of_all.newest) is not None:
            await wait_settled(newest)

    def _taken(
        self, payload: Buffer, txid: int | None, attributes: bytes | None, sequence: int | None
    ) -> Group:
        check_own_thread(self)
        if payload.__class__ is not bytes:
            payload = as_payload(payload)
        ids = None if txid is None else self._checked_txids([txid], 1)
        if len(payload) > self.payload_bytes_max:
            raise RecordTooLongError(len(payload), self.payload_bytes_max)
        if attributes is not None:
            check_rooms([payload], [attributes], self.payload_bytes_max)
        with_attributes = None if attributes is None else [attributes]
        size_bytes = len(payload) + len(attributes or b"") + PRODUCER_ROOM_BYTES
        return self._machine_of_all.take(
            [payload], ids, with_attributes, sequence=sequence, size_bytes=size_bytes
        )

    def _take_groups(
        self,
        records: list[bytes],
        txids: list[int] | None,
        attributes: list[bytes | None] | None,
        is_atomic: bool,
        sequence: int | None,
    ) -> list[tuple[Batch, int]]:
        if is_atomic:
            self._check_atomic(records, attributes)
        groups: list[tuple[Batch, int]] = []
        first, size_bytes = 0, 0
        for at, payload in enumerate(records):
            size_bytes += len(payload) + PRODUCER_ROOM_BYTES
            if attributes is not None:
                size_bytes += len(attributes[at] or b"")
            stop, is_last = at + 1, at + 1 == len(records)
            is_full = size_bytes >= GROUP_BYTES or stop - first == RECORDS_MAX
            if is_last or (is_full and not is_atomic):
                group = self._machine_of_all.take(
                    records[first:stop],
                    None if txids is None else txids[first:stop],
                    None if attributes is None else attributes[first:stop],
                    sequence=None if sequence is None else sequence + first,
                    is_atomic=is_atomic,
                    size_bytes=size_bytes,
                )
                groups.append((group, stop - first))
                first, size_bytes = stop, 0
        return groups

    def _check_atomic(self, records: list[bytes], attributes: Sequence[bytes | None] | None) -> None:
        size_bytes = encoded_bytes(records, attributes) + PRODUCER_ROOM_BYTES * (len(records) + 1)
        if size_bytes > RECORD_BYTES_MAX or len(records) > RECORDS_MAX:
            raise BatchTooLongError(self.log, len(records), size_bytes, RECORD_BYTES_MAX)

    def _check_lengths(self, records: list[bytes]) -> None:
        if records and (longest := max(map(len, records))) > self.payload_bytes_max:
            raise RecordTooLongError(longest, self.payload_bytes_max)

    def _checked_all(self, records: list[bytes], txids: Iterable[int] | None) -> list[int] | None:
        self._check_lengths(records)
        return None if txids is None else self._checked_txids(txids, len(records))

    def _checked_txids(self, txids: Iterable[int], count: int) -> list[int]:
        """Transaction ids that are in order here; the owner compares them with those of other programs."""
        ids = [each if each.__class__ is int else as_txid(each) for each in txids]
        if len(ids) != count:
            raise ValueError(f"{count} payloads and {len(ids)} txids: give one txid for each payload")
        before = -1
        for txid in ids:
            if not before <= txid < TXID_MAX or txid < 0:
                raise TxidOutOfOrderError(self.log, txid, before)
            before = txid
        return ids


async def check_program(meeting: Meeting, producer: str) -> None:
    """Check what can be checked of a program before it touches the log.

    Raises:
        TypeError, ValueError: The name of the producer cannot be one.
        ConfigError: The program could never own the log; it learns that now.
    """
    check_producer(producer)
    try:
        await meeting.check_door()
    except NoMeetingError as exc:
        raise exc.problem from None


@asynccontextmanager
async def open_shared_writer(shared: SharedLog, lock_timeout_s: float) -> AsyncIterator[SharedLogWriter]:
    """See ``Namespace.open_writer``; ``check_program`` has passed.

    ``lock_timeout_s``: how long to wait for an owner, or for a writer that does not share the log.
    """
    shell = SharedShell(shared)
    async with open_service_tasks() as tasks:
        recorder = shared.log.recorder
        recorder.open_source(shell, shell.counters, shell.gauges)
        tasks.start_soon(shell.run)
        try:
            await shell.wait_attached(max(lock_timeout_s, 1.0))
            writer = SharedLogWriter(shell)
            async with closed_at_end(writer.aclose):
                yield writer
        finally:
            recorder.close_source(shell)
