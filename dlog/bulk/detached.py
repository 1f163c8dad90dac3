"""Writing a detached segment: records into a ledger that no log names yet.

Inside: cutting records into entries, the ledger from its creation to its end.
Not inside: the log's nodes (``attaching``), fencing: nobody else knows the ledger.
Always: a segment is reported only after its ledger is closed at its last entry, so that every record in it is
durable on an ack quorum and its end can never change; a segment that fails is never reported.

Source: DistributedLog, BKLogSegmentWriter.java (the bytes of entries); docs/bulk.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import trio

from dlog.bulk.plan import BatchPlan, DetachedSegment, LogPlan
from dlog.config import NamespaceConfig
from dlog.errors import DLogError, RecordTooLongError, TxidOutOfOrderError, translated
from dlog.format.arguments import as_txid
from dlog.format.attributes import attributes_of, check_room, encode_attributes_record
from dlog.format.envelope import PARTS_ENVELOPE_VERSION, seal_envelope
from dlog.format.large_record import head_of, parts_of
from dlog.format.record import FLAG_CONTROL, FLAG_PART, TXID_MAX, encode_record, encode_records
from dlog.ownership import MadeHere, delete_ledger
from dlog.write.batcher import Batch, Batcher
from dlog.write.full_ensemble import count_degraded
from ledger.client import LedgerClient
from ledger.errors import LedgerError
from ledger.handle import WriteHandle
from ledger.metadata_store.errors import MetadataError
from ledger.payloads import as_payload
from ledger.pickling import ProcessBound
from namespace.log_metadata import ALLOCATION_KEY

CLEANUP_S = 5.0  # deleting the ledger of a segment that failed; what is left is an orphan


class DetachedSegmentWriter(ProcessBound):
    """Takes the records of one detached segment, in order. Made by ``Namespace.batches.open_segment``."""

    def __init__(self, log: str, planned: LogPlan, handle: WriteHandle, config: NamespaceConfig) -> None:
        self.log = log
        self._planned, self._handle, self._config = planned, handle, config
        self._first_txid: int | None = None
        self._last_txid = self._sent_txid = planned.txid_min
        self._batcher = Batcher(entry_bytes_target=config.writer.entry_bytes_target)
        self._record_count = self._size_bytes = 0
        self._last_entry_id = self._last_slot_id = -1
        self._result: DetachedSegment | None = None
        self._is_given_up = False
        chosen = config.writer.keys_and_headers
        self._takes_attributes = not config.shared_with_java if chosen is None else chosen

    def __repr__(self) -> str:
        return f"<DetachedSegmentWriter of {self.log}, ledger {self._handle.ledger_id}>"

    @property
    def result(self) -> DetachedSegment | None:
        """The segment, once the block was left without an error; None before, and if it has no records."""
        return self._result

    def give_up(self) -> None:
        """Have the end of the block delete the segment, as if the block had raised an error."""
        self._is_given_up = True

    async def append_many(
        self,
        payloads: Sequence[bytes | bytearray | memoryview],
        *,
        txids: Sequence[int] | None = None,
        keys: Sequence[bytes | bytearray | memoryview | None] | None = None,
        headers: Sequence[Mapping[str, bytes | bytearray | memoryview] | None] | None = None,
    ) -> None:
        """Add records after the others. They are durable once the block was left.

        If cancelled, all of them are added, or none if the segment has failed; the writer stays usable.

        Args:
            txids: The transaction id of each record, none less than that of the record before it in the log.
                None: all records have the plan's.
            keys, headers: One for each payload; None for a record without. See ``LogWriter.append``.

        Raises:
            ValueError: There are not as many ids, keys or headers as records, or one is beyond its limits.
                None was added.
            ConfigError: Apache's programs share the namespace, and ``WriterConfig.keys_and_headers`` is not
                true. None was added.
            TxidOutOfOrderError: An id is less than that of the record before it. None was added.
            RecordTooLongError: A payload is longer than ``WriterConfig.record_bytes_max``. None was added.
            LogUnavailableError: Bookies are out of reach. Give the segment up, and write another.
        """
        taken = list(map(as_payload, payloads))
        longest = max(map(len, taken), default=0)
        if longest > (longest_allowed := self._config.writer.record_bytes_max):
            raise RecordTooLongError(longest, longest_allowed)
        attributes = attributes_of(self.log, len(taken), keys, headers, takes_any=self._takes_attributes)
        if attributes is not None:
            for payload, each in zip(taken, attributes, strict=True):
                check_room(payload, each, longest_allowed)
        ids = [self._planned.txid] * len(taken) if txids is None else list(map(as_txid, txids))
        self._check_txids(ids, len(taken))
        if taken:
            self._first_txid = ids[0] if self._first_txid is None else self._first_txid
            self._last_txid = ids[-1]
        if attributes is None:
            self._batcher.add_mixed(taken, ids)
        else:
            self._batcher.add_each(taken, ids, attributes)
        await self._send()

    def _check_txids(self, txids: Sequence[int], count: int) -> None:
        if len(txids) != count:
            raise ValueError(f"log {self.log!r}: {len(txids)} transaction ids for {count} records")
        before = self._last_txid
        for txid in txids:
            if not 0 <= txid < TXID_MAX:
                raise ValueError(f"log {self.log!r}: invalid transaction id {txid}")
            if txid < before:
                raise TxidOutOfOrderError(self.log, txid, before)
            before = txid

    async def _send(self) -> None:
        with translated(self.log, "writing a detached segment"):
            while True:
                # First the wait: a call that is cancelled in it leaves every batch in its place.
                await self._handle.wait_bytes_in_flight_below(self._config.writer.bytes_in_flight_max)
                if (batch := self._batcher.take(idle=False)) is None:
                    return
                self._submit(batch)

    def _submit(self, batch: Batch) -> None:
        attributes, position = b"", self._record_count + len(batch.payloads)
        if batch.attributes is not None:
            attributes = encode_attributes_record(batch.attributes, position, batch.txids[-1])
        if batch.is_large:
            all_before = batch.attributes is not None
            for part in parts_of(batch.payloads[0], all_before=all_before):
                # A control record repeats what is before it.
                self._submit_part(FLAG_CONTROL | FLAG_PART, self._record_count, self._sent_txid, part)
            head, txid = head_of(batch.payloads[0], all_before=all_before), batch.txids[0]
            entry_id = self._submit_part(FLAG_PART, position, txid, head, attributes)
        else:
            body = encode_records(batch.payloads, batch.txids, self._record_count + 1) + attributes
            entry_id = self._submit_entry(seal_envelope(body, self._config.compression))
        self._last_entry_id, self._last_slot_id = entry_id, len(batch.payloads) - 1
        self._record_count += len(batch.payloads)
        self._sent_txid = batch.txids[-1]

    def _submit_part(
        self, flags: int, position: int, txid: int, payload: bytes, attributes: bytes = b""
    ) -> int:
        body = encode_record(flags, position, txid, payload) + attributes
        return self._submit_entry(
            seal_envelope(body, self._config.compression, version=PARTS_ENVELOPE_VERSION)
        )

    def _submit_entry(self, entry: bytes) -> int:
        self._size_bytes += len(entry)
        return self._handle.submit(entry)

    async def finish(self) -> None:
        """Write what is left and close the ledger. For ``open_segment``."""
        if self._is_given_up:
            self._handle.abandon()
            return
        self._batcher.cut()
        await self._send()
        with translated(self.log, "closing a detached segment"):
            if self._last_entry_id >= 0:
                await self._handle.wait_confirmed(self._last_entry_id)
            await self._handle.close()
        if self._record_count:
            assert self._first_txid is not None  # the first record set it
            self._result = DetachedSegment(
                log=self.log,
                ledger_id=self._handle.ledger_id,
                txid=self._first_txid,
                last_txid=self._last_txid,
                record_count=self._record_count,
                last_entry_id=self._last_entry_id,
                last_slot_id=self._last_slot_id,
                size_bytes=self._size_bytes,
            )


@asynccontextmanager
async def open_detached(
    client: LedgerClient, namespace_path: str, config: NamespaceConfig, plan: BatchPlan, log: str
) -> AsyncIterator[DetachedSegmentWriter]:
    """The writer of a detached segment; see ``Namespace.batches.open_segment``."""
    planned = plan.logs[log]
    # As a writer's ledger: the stamp proves when it can never get into the log any more (docs/metadata.md
    # 16.13). Attaching is conditional on that version of the ``allocation`` node.
    stamp = b"%d:%d" % (planned.allocation_created_ms, planned.versions[2])
    custom = plan.mark(namespace_path, log).custom | {ALLOCATION_KEY: stamp}
    with translated(log, "creating the ledger of a detached segment"):
        handle = await client.create_from(config.ledger_spec(custom))
    count_degraded(client, log, handle)
    claim = MadeHere(handle.metadata.custom)
    writer = DetachedSegmentWriter(log, planned, handle, config)
    try:
        yield writer
        await writer.finish()
    except BaseException:
        handle.abandon()
        await _delete(client, handle.ledger_id, claim)
        raise
    if writer.result is None:
        await _delete(client, handle.ledger_id, claim)


async def _delete(client: LedgerClient, ledger_id: int, claim: MadeHere) -> None:
    """Delete a ledger that was never reported, if that works at once."""
    with trio.move_on_after(CLEANUP_S) as scope:
        scope.shield = True
        try:
            await delete_ledger(client, ledger_id, claim)
        except (DLogError, LedgerError, MetadataError):
            pass  # an orphan, which ``dlog log orphans`` finds
