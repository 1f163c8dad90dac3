"""A bookie's service without a disk or a socket: batches become durable when the test calls ``sync``."""

from __future__ import annotations

import struct

from bookie.journal.group_commit import OnDurable, WriteBatch
from bookie.ledger_record import LedgerRecord
from bookie.requests.deferred import DeferredRequest
from bookie.requests.repeated_adds import StoredEntry
from bookie.requests.session import BookieService, ClientSession
from bookie.storage.storage import Storage
from ledger.digest import DigestType, EntryCodec, master_key
from ledger.wire import v2, v3
from ledger.wire.frame import FrameBuffer
from ledger.wire.messages import AddRequest, IncomingReply, IncomingRequest, ReadRequest, Reply, Request

ENTRIES = EntryCodec(DigestType.CRC32C, b"pass")
KEY = master_key(b"pass")
OTHER_KEY = master_key(b"other")


class NamedBatch(WriteBatch):
    """A batch that also keeps the names of its records: kind, ledger id, entry id."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[tuple[str, int, int]] = []
        self.awaited: list[int] = []

    def stage(self, kind: str, ledger_id: int, entry_id: int = -1) -> None:
        self.names.append((kind, ledger_id, entry_id))
        self.records[0].append(kind.encode())

    def await_ledger(self, ledger_id: int) -> None:
        super().await_ledger(ledger_id)
        self.awaited.append(ledger_id)


class HandDisk:
    """The methods of the storage that a session calls. ``sync`` makes the submitted batches durable."""

    def __init__(self) -> None:
        self.ledgers: dict[int, LedgerRecord] = {}
        self.entries: dict[tuple[int, int], bytes] = {}
        self.flushed: set[tuple[int, int]] = set()  # entries that are on disk only
        self.unsubmitted: list[NamedBatch] = []
        self.batches: list[NamedBatch] = []  # submitted, not durable

    def new_batch(self) -> NamedBatch:
        batch = NamedBatch()
        self.unsubmitted.append(batch)
        return batch

    @property
    def staged(self) -> list[tuple[str, int, int]]:
        """The names of the records in batches that are not submitted."""
        return [name for batch in self.unsubmitted for name in batch.names]

    def ledger(self, ledger_id: int) -> LedgerRecord | None:
        return self.ledgers.get(ledger_id)

    def create_ledger(self, batch: NamedBatch, ledger_id: int, key: bytes) -> LedgerRecord:
        assert ledger_id not in self.ledgers
        self.ledgers[ledger_id] = LedgerRecord(ledger_id, key)
        batch.stage("key", ledger_id)
        return self.ledgers[ledger_id]

    def create_ledger_by_hand(self, ledger_id: int) -> LedgerRecord:
        self.ledgers[ledger_id] = LedgerRecord(ledger_id, KEY)
        return self.ledgers[ledger_id]

    def stage_entry(
        self, batch: NamedBatch, ledger: LedgerRecord, entry_id: int, lac: int, body: bytes
    ) -> None:
        assert type(body) is bytes
        assert struct.unpack_from(">qqq", body) == (ledger.ledger_id, entry_id, lac)
        self.entries[ledger.ledger_id, entry_id] = body
        ledger.lac = max(ledger.lac, lac)
        ledger.last_entry_id = max(ledger.last_entry_id, entry_id)
        batch.stage("entry", ledger.ledger_id, entry_id)

    def stage_fence(self, batch: NamedBatch, ledger: LedgerRecord) -> None:
        ledger.fenced = True
        batch.stage("fence", ledger.ledger_id)

    def hint_lac(self, ledger: LedgerRecord, body: bytes) -> bool:
        return Storage.hint_lac(self, ledger, body)  # type: ignore[arg-type]

    def stage_explicit_lac(self, batch: NamedBatch, ledger: LedgerRecord, body: bytes) -> None:
        ledger.explicit_lac = body
        ledger.lac = max(ledger.lac, struct.unpack_from(">q", body, 8)[0])
        batch.stage("lac", ledger.ledger_id)

    def submit(self, batch: NamedBatch, on_durable: OnDurable, *, sync: bool = True) -> None:
        batch.on_durable, batch.sync = on_durable, sync
        self.unsubmitted.remove(batch)
        self.batches.append(batch)

    def find_entry(self, ledger: LedgerRecord, entry_id: int) -> bytes | bool:
        place = ledger.ledger_id, entry_id
        return place in self.flushed or self.entries.get(place, False)

    def read_cached(self, ledger_id: int, entry_id: int) -> bytes | None:
        return self.entries.get((ledger_id, entry_id))

    def sync(self, error: BaseException | None = None) -> None:
        batches, self.batches = self.batches, []
        for batch in batches:
            batch.on_durable(error)


class Peer:
    """One connection: sends requests as frames and decodes the replies."""

    def __init__(self, service: BookieService) -> None:
        self.service = service
        self.deferred: list[DeferredRequest] = []
        self._out = bytearray()
        self._session: ClientSession = service.open_session(self._out.extend, self.deferred.append)

    def send_frames(self, *frames: bytes) -> None:
        data, spans = FrameBuffer().feed(b"".join(frames))
        rest = self._session.handle(data, spans)
        while rest:
            rest = self._session.handle(data, rest)

    def add_again(self, deferred: DeferredRequest, stored: StoredEntry) -> None:
        assert isinstance(deferred, IncomingRequest)
        self._session.add_again(deferred, stored)

    def ask(self, request: Request, *, version: int = 2, txn: int = 0, high_priority: bool = False) -> None:
        codec = v2 if version == 2 else v3
        self.send_frames(codec.encode_request(request, transaction_id=txn, high_priority=high_priority))

    def incoming_replies(self) -> list[IncomingReply]:
        data, spans = FrameBuffer().feed(bytes(self._out))
        self._out.clear()
        return [
            v2.decode_reply(data, *span) if data[span[0]] <= 7 else v3.decode_reply(data, *span)
            for span in spans
        ]

    def replies(self) -> list[Reply]:
        return [incoming.reply for incoming in self.incoming_replies()]

    def raw(self) -> bytes:
        out = bytes(self._out)
        self._out.clear()
        return out


def entry(ledger_id: int, entry_id: int, lac: int | None = None, payload: bytes = b"hello") -> bytes:
    return ENTRIES.pack(ledger_id, entry_id, entry_id - 1 if lac is None else lac, 5, payload)


def add(
    ledger_id: int,
    entry_id: int,
    *,
    key: bytes = KEY,
    lac: int | None = None,
    recovery: bool = False,
    deferred_sync: bool = False,
) -> AddRequest:
    body = entry(ledger_id, entry_id, lac)
    return AddRequest(ledger_id, entry_id, key, body, recovery=recovery, deferred_sync=deferred_sync)


def fence(ledger_id: int, entry_id: int = -1, key: bytes | None = KEY) -> ReadRequest:
    return ReadRequest(ledger_id, entry_id, fence=True, master_key=key)
