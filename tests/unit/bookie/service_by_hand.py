"""A bookie's service without a disk or a socket: runs become durable when the test says so."""

from __future__ import annotations

import struct
from collections.abc import Callable

from bookie.ledgers import LedgerRecord
from bookie.service import BookieService, Session, Slow
from ledger.digest import DigestType, EntryCodec, master_key
from ledger.wire import v2, v3
from ledger.wire.frame import FrameBuffer
from ledger.wire.messages import AddRequest, IncomingReply, ReadRequest, Reply, Request

ENTRIES = EntryCodec(DigestType.CRC32C, b"pass")
KEY = master_key(b"pass")
OTHER_KEY = master_key(b"other")


class HandDisk:
    """The storage's methods that a session calls, with runs that become durable when the test says so."""

    def __init__(self) -> None:
        self.ledgers: dict[int, LedgerRecord] = {}
        self.entries: dict[tuple[int, int], bytes] = {}
        self.staged: list[tuple[str, int, int]] = []
        self.awaited: list[int] = []
        self.runs: list[tuple[list[tuple[str, int, int]], Callable[[BaseException | None], None], bool]] = []

    def ledger(self, ledger_id: int) -> LedgerRecord | None:
        return self.ledgers.get(ledger_id)

    def create_ledger(self, ledger_id: int, key: bytes) -> LedgerRecord:
        assert ledger_id not in self.ledgers
        self.ledgers[ledger_id] = LedgerRecord(ledger_id, key)
        self.staged.append(("key", ledger_id, -1))
        return self.ledgers[ledger_id]

    def stage_entry(self, ledger: LedgerRecord, entry_id: int, lac: int, body: bytes) -> None:
        assert type(body) is bytes
        assert struct.unpack_from(">qqq", body) == (ledger.ledger_id, entry_id, lac)
        self.entries[ledger.ledger_id, entry_id] = body
        ledger.lac = max(ledger.lac, lac)
        ledger.last_entry_id = max(ledger.last_entry_id, entry_id)
        self.staged.append(("entry", ledger.ledger_id, entry_id))

    def stage_fence(self, ledger: LedgerRecord) -> None:
        ledger.fenced = True
        self.staged.append(("fence", ledger.ledger_id, -1))

    def stage_explicit_lac(self, ledger: LedgerRecord, body: bytes) -> None:
        ledger.explicit_lac = body
        ledger.lac = max(ledger.lac, struct.unpack_from(">q", body, 8)[0])
        self.staged.append(("lac", ledger.ledger_id, -1))

    def await_ledger(self, ledger_id: int) -> None:
        self.awaited.append(ledger_id)

    def submit(self, on_durable: Callable[[BaseException | None], None], *, sync: bool = True) -> None:
        self.runs.append((self.staged, on_durable, sync))
        self.staged = []

    def read_cached(self, ledger_id: int, entry_id: int) -> bytes | None:
        return self.entries.get((ledger_id, entry_id))

    def sync(self, error: BaseException | None = None) -> None:
        runs, self.runs = self.runs, []
        for _, on_durable, _ in runs:
            on_durable(error)


class Peer:
    """One connection: requests go in as frames, what comes out is decoded."""

    def __init__(self, service: BookieService) -> None:
        self.service = service
        self.slow: list[Slow] = []
        self._out = bytearray()
        self._session: Session = service.open_session(self._out.extend, self.slow.append)

    def send_frames(self, *frames: bytes) -> None:
        data, spans = FrameBuffer().feed(b"".join(frames))
        self._session.handle(data, spans)

    def ask(self, request: Request, *, version: int = 2, txn: int = 0, high_priority: bool = False) -> None:
        codec = v2 if version == 2 else v3
        self.send_frames(codec.encode_request(request, transaction_id=txn, high_priority=high_priority))

    def answers(self) -> list[IncomingReply]:
        data, spans = FrameBuffer().feed(bytes(self._out))
        self._out.clear()
        return [
            v2.decode_reply(data, *span) if data[span[0]] <= 7 else v3.decode_reply(data, *span)
            for span in spans
        ]

    def replies(self) -> list[Reply]:
        return [incoming.reply for incoming in self.answers()]

    def raw(self) -> bytes:
        out = bytes(self._out)
        self._out.clear()
        return out


def entry(ledger_id: int, entry_id: int, lac: int | None = None, payload: bytes = b"hello") -> bytes:
    return ENTRIES.pack(ledger_id, entry_id, entry_id - 1 if lac is None else lac, 5, payload)


def add(ledger_id: int, entry_id: int, **more: object) -> AddRequest:
    key = more.pop("key", KEY)
    lac = more.pop("lac", None)
    return AddRequest(ledger_id, entry_id, key, entry(ledger_id, entry_id, lac), **more)  # type: ignore[arg-type]


def fence(ledger_id: int, entry_id: int = -1, key: bytes | None = KEY) -> ReadRequest:
    return ReadRequest(ledger_id, entry_id, fence=True, master_key=key)
