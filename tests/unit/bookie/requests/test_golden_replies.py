"""Requests that Java's client, or a hand, sent to Java's bookies: our bookie answers them as Java's did.

Each capture is replayed over connections to bookies of ours, and every answer is compared, decoded, with what
was captured, but for the deviations listed below. Source: docs/protocol.md 9 and 13.
"""

from __future__ import annotations

import json
import struct
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from bookie.bookie import Bookie, open_bookie
from bookie.journal.files import JournalConfig
from bookie.storage.config import StorageConfig
from ledger.catalog.availability import decode_availability
from ledger.codes import Code
from ledger.digest import master_key
from ledger.errors import WireError
from ledger.wire import v2, v3
from ledger.wire.frame import FrameBuffer
from ledger.wire.messages import (
    AddReply,
    AddRequest,
    BatchReadRequest,
    BookieInfoReply,
    IncomingReply,
    ListEntriesReply,
    ReadLacReply,
    ReadReply,
    ReadRequest,
    RefusedReply,
    WriteLacRequest,
)
from tests.effort import sampled
from tests.places import GOLDEN_FILES

GOLDEN = GOLDEN_FILES / "bookkeeper"
SKIPPED = ("sasl", "start-tls", "not-authenticated")  # what is tested there is not offered, or elsewhere
CAPTURES = [
    path for path in sorted(GOLDEN.glob("*/wire/*.jsonl")) if not any(word in path.name for word in SKIPPED)
]

# The beginning of a request's ``what``, or its transaction id: the code ours answers with, and why.
DEVIATIONS = {
    # docs/protocol.md 9.2: the ids beside a body that says otherwise. Java stores by the body.
    "entryId field 5, body says 3": Code.BAD_REQUEST,
    # docs/protocol.md 9.2: an id the journal needs for itself; Java stores it.
    "negative entry id -5": Code.BAD_REQUEST,
    # docs/protocol.md 9.1: 4.18.0 closes the connection or answers an empty OK, 4.17.3 acts on ledger 0.
    "without its sub-message": Code.BAD_REQUEST,
}
CLOSED = "closed"
KEYED_REQUEST = AddRequest | ReadRequest | BatchReadRequest | WriteLacRequest


@asynccontextmanager
async def bookie_in(directory: Path) -> AsyncIterator[Bookie]:
    config = StorageConfig(
        journal_directories=[directory / "journal"],
        ledger_directories=[directory / "ledgers"],
        journal=JournalConfig(file_bytes_max=1 << 20, preallocate_bytes=1 << 16),
    )
    async with open_bookie(config) as bookie:
        yield bookie


class Caller:
    """One connection of a capture."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._frames = FrameBuffer()
        self.unmatched: list[IncomingReply | bytes] = []
        self.last_hex = ""

    async def answer(self) -> IncomingReply | bytes | str:
        """The next answer; its bytes if it does not decode, CLOSED if there is none to come."""
        while not self.unmatched:
            try:
                chunk = await self.stream.receive_some(65536)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return CLOSED
            if not chunk:
                return CLOSED
            data, spans = self._frames.feed(bytes(chunk))
            self.unmatched += [decoded(data, *span) for span in spans]
        return self.unmatched.pop(0)


def decoded(data: bytes, start: int, end: int) -> IncomingReply | bytes:
    if data[start] <= 2:
        return v2.decode_reply(data, start, end)
    if data[start] == 0x0A and data[start + 2] == 8:
        return v3.decode_reply(data, start, end)
    return data[start:end]


def comparable(answer: IncomingReply | bytes | str) -> object:
    """Without what no two machines share: disk sizes, dates."""
    if not isinstance(answer, IncomingReply):
        return answer
    reply = answer.reply
    if isinstance(reply, BookieInfoReply):
        present = (reply.total_disk_bytes is not None, reply.free_disk_bytes is not None)
        return (answer.transaction_id, reply.code, present)
    if isinstance(reply, ReadReply) and reply.lac_update_ms is not None:
        return attrs.evolve(answer, reply=attrs.evolve(reply, lac_update_ms=0))
    return answer


def deviation(what: str) -> Code | None:
    return next((code for part, code in DEVIATIONS.items() if part in what.split(":")[0]), None)


@pytest.mark.slow
@pytest.mark.parametrize("capture", sampled(CAPTURES, 8), ids=lambda path: f"{path.parts[-3]}-{path.stem}")
async def test_answers_are_those_of_java(capture: Path, tmp_path: Path) -> None:
    rows = rows_of(capture)
    async with trio.open_nursery() as nursery:
        bookies: dict[str, Bookie] = {}
        stop = trio.Event()

        async def run(name: str, *, task_status: trio.TaskStatus[None]) -> None:
            async with bookie_in(tmp_path / name) as bookie:
                if capture.stem.startswith("read-only"):
                    bookie.service.rights.writable = False
                seed(bookie, [row for row in rows if str(row["bookie"]) == name])
                bookies[name] = bookie
                task_status.started()
                await stop.wait()

        for name in sorted({str(row["bookie"]) for row in rows}):
            await nursery.start(run, name)
        callers: dict[tuple[str, str], Caller] = {}
        asked: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        closed: set[tuple[str, str]] = set()
        differences = []
        with trio.fail_after(30):
            for row in rows:
                key = (row["conn"], str(row["bookie"]))
                if row["dir"] == "c2b" and key in closed and "on the same connection" not in row["what"]:
                    del callers[key]  # the capture goes on with a new connection under the same number
                    closed.discard(key)
                if key not in callers:
                    ours, theirs = trio.testing.memory_stream_pair()
                    callers[key] = Caller(ours)
                    nursery.start_soon(bookies[key[1]].serve_stream, theirs)
                caller = callers[key]
                if row["dir"] == "c2b":
                    asked[key].append(row["what"])
                    caller.last_hex = row["hex"]
                    try:
                        await caller.stream.send_all(bytes.fromhex(row["hex"]))
                    except trio.BrokenResourceError:
                        pass  # closed already, as the capture says in its next line
                elif row["proto"] == "tcp" and not row["what"].startswith("no answer"):
                    closed.add(key)
                if row["dir"] == "b2c" and (difference := await compare(row, caller, asked[key])):
                    differences.append(difference)
        stop.set()
        nursery.cancel_scope.cancel()
    assert differences == []


def rows_of(capture: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in capture.read_text().splitlines()]


def seed(bookie: Bookie, rows: list[dict[str, str]]) -> None:
    """Store what the capture's bookie held before: entries that are read there and were not added there."""
    added: set[tuple[int, int]] = set()
    held: dict[tuple[int, int], bytes] = {}
    keys: dict[int, bytes] = {}
    for row in rows:
        if not row.get("hex") or row["proto"] not in ("v2", "v3"):
            continue
        data = bytes.fromhex(row["hex"])
        if len(data) <= 4 or row["what"].startswith(("frame of", "only")):
            continue
        if row["dir"] == "c2b":
            try:
                request = (v2 if data[4] <= 2 else v3).decode_request(data, 4, len(data)).request
            except WireError:
                continue  # made to be refused
            if isinstance(request, AddRequest) and len(request.body) >= 32:
                added.add(struct.unpack_from(">qq", request.body))
            if isinstance(request, KEYED_REQUEST) and request.master_key is not None:
                keys.setdefault(request.ledger_id, request.master_key)
            continue
        answer = decoded(data, 4, len(data))
        reply = answer.reply if isinstance(answer, IncomingReply) else None
        bodies: list[bytes | None] = []
        if isinstance(reply, ReadReply):
            bodies = [reply.body]
        elif isinstance(reply, ReadLacReply):
            bodies = [reply.last_entry_body]
        elif isinstance(reply, ListEntriesReply) and reply.availability is not None:
            listed = [
                entry_id for entry_id in range(100) if entry_id in decode_availability(reply.availability)
            ]
            bodies = [struct.pack(">qqqq", reply.ledger_id, entry_id, -1, 0) for entry_id in listed]
        for body in bodies:
            if body is not None:
                ids: tuple[int, int] = struct.unpack_from(">qq", body)
                if ids not in added:
                    held.setdefault(ids, body)
    storage = bookie.storage
    batch = storage.new_batch()
    for (ledger_id, entry_id), body in held.items():
        ledger = storage.ledger(ledger_id)
        if ledger is None:
            ledger = storage.create_ledger(batch, ledger_id, keys.get(ledger_id, master_key(b"pass")))
        storage.stage_entry(batch, ledger, entry_id, struct.unpack_from(">q", body, 16)[0], body)
    storage.submit(batch, lambda error: None)


async def store_as_java_did(row_hex: str, caller: Caller) -> None:
    """Add the entry under the ids of its body, so that the capture goes on from the same state."""
    data = bytes.fromhex(row_hex)
    request = v3.decode_request(data, 4, len(data)).request
    assert isinstance(request, AddRequest)
    ledger_id, entry_id = struct.unpack_from(">qq", request.body)
    honest = attrs.evolve(request, ledger_id=ledger_id, entry_id=entry_id)
    await caller.stream.send_all(v3.encode_request(honest, transaction_id=99_999))
    answer = await caller.answer()
    assert isinstance(answer, IncomingReply)
    assert answer.reply == AddReply(Code.OK, ledger_id, entry_id)


async def compare(row: dict[str, str], caller: Caller, asked: list[str]) -> str | None:
    what = asked[-1]
    if row["proto"] == "tcp" and row["what"].startswith("no answer"):
        return None
    expected: IncomingReply | bytes | str
    if row["proto"] == "tcp":
        expected = CLOSED
    else:
        data = bytes.fromhex(row["hex"])
        expected = decoded(data, 4, len(data))
    if what.startswith("v3 after v2"):
        # In Java a connection that has seen version 2 takes no version 3; ours decides by frame
        # (docs/protocol.md 1.2).
        answer = await caller.answer()
        return None if isinstance(answer, IncomingReply) and answer.version == 3 else f"{what}: {answer!r}"
    if deviation(what) is not None:
        answer = await caller.answer()
        assert isinstance(answer, IncomingReply), (what, answer)
        if "body says" in what:
            await store_as_java_did(caller.last_hex, caller)
        return None if answer.reply.code is deviation(what) else f"{what}: {answer}"
    # Answers to several requests under way come in any order.
    seen: list[IncomingReply] = []
    while True:
        answer = await caller.answer()
        if comparable(answer) == comparable(expected):
            caller.unmatched[:0] = seen
            return None
        if not isinstance(answer, IncomingReply) or len(seen) > 50:
            return f"{what}: expected {expected!r}, got {[*seen, answer]}"
        if isinstance(expected, IncomingReply) and same_question(answer, expected):
            return f"{what}: expected {expected}, got {answer}"
        seen.append(answer)


def same_question(one: IncomingReply, other: IncomingReply) -> bool:
    if (one.version, one.operation, one.transaction_id) != (
        other.version,
        other.operation,
        other.transaction_id,
    ):
        return False
    if one.version == 3 or isinstance(one.reply, RefusedReply):
        return True
    return getattr(one.reply, "entry_id", None) == getattr(other.reply, "entry_id", None)


def test_the_captures_are_there() -> None:
    assert len(CAPTURES) >= 20
