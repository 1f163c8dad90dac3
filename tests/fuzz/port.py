"""Fuzzing the port of a real bookie, in this process and over loopback, beside a good client.

Inside: the bookie on a new directory, hostile connections one after the other, and what must hold after each.
Not inside: mutation (``mutate``).
Always: after each connection the good client reads its entry unchanged and adds another one; each reply
decodes; memory is bounded; the bookie logs no unexpected error. With permissions in force, no reply to a peer
has a payload of a ledger that it may not read.
"""

from __future__ import annotations

import logging
import random
import tempfile
import tracemalloc
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from trio.testing import open_stream_to_socket_listener

from bookie.bookie import open_bookie
from bookie.journal.files import JournalConfig
from bookie.requests.permissions import NO_SUCH_LEDGER, OUT_OF_REACH, Access, Decision, Permissions
from bookie.server.config import ServerConfig
from bookie.storage.config import StorageConfig
from ledger.auth.authentication import AuthRefusedError, AuthStep, PeerIdentity
from ledger.codes import Code
from ledger.digest import DigestType, EntryCodec, master_key
from ledger.errors import WireError
from ledger.wire import v2, v3
from ledger.wire.frame import FrameBuffer
from ledger.wire.messages import (
    AddReply,
    AddRequest,
    AuthReply,
    AuthRequest,
    BatchReadRequest,
    ForceLedgerRequest,
    IncomingReply,
    ListEntriesRequest,
    ReadLacRequest,
    ReadReply,
    ReadRequest,
    Request,
    WriteLacRequest,
)
from tests.fuzz.engine import Failure, tracing_memory
from tests.fuzz.frame_talk import Steps
from tests.fuzz.mutate import Mutator
from tests.fuzz.wire_targets import captured

PORT, GUARDED_PORT = "port", "guarded_port"  # without and with permissions
LEDGER, PASSWORD = 777_777, b"of the good client"
GOOD = EntryCodec(DigestType.CRC32C, PASSWORD)
KEY = master_key(PASSWORD)
MEMORY_BYTES_MAX = 48 * 1024 * 1024  # of one connection's turn: buffers of the bookie and its write cache
PAYLOAD = b"for the good client only"
PLUGIN, GOOD_NAME, STRANGER_NAME = "names", b"good", b"stranger"
HANG_S = 60.0  # a guard against a hang, on any machine


def framed(message: bytes) -> bytes:
    return len(message).to_bytes(4, "big") + message


def attacks_on_the_good_ledger() -> list[bytes]:
    """Requests about the good client's ledger, with a key that is not its key."""
    forged = EntryCodec(DigestType.CRC32C, b"").pack(LEDGER, 0, -1, 5, b"other")
    stranger = master_key(b"")
    requests: list[Request] = [
        AddRequest(LEDGER, 0, stranger, forged),
        AddRequest(LEDGER, 0, stranger, forged, recovery=True),
        ReadRequest(LEDGER, 0, fence=True, master_key=stranger),
        ReadRequest(LEDGER, 0),
    ]
    found = [v2.encode_request(request) for request in requests]
    more: list[Request] = [
        WriteLacRequest(LEDGER, 5, stranger, GOOD.pack_lac(LEDGER, 5)),
        ReadLacRequest(LEDGER),
        ForceLedgerRequest(LEDGER),
        ListEntriesRequest(LEDGER),
        ReadRequest(LEDGER, -1, previous_lac=1 << 40, timeout_ms=1 << 40),
    ]
    found += [v3.encode_request(request) for request in (*requests, *more)]
    found.append(v2.encode_request(BatchReadRequest(LEDGER, 0, 1, 0, 1 << 30)))
    return found


def overwrites() -> list[bytes]:
    """Adds of other bytes for a stored entry, with the ledger's own key. A change of these could fence."""
    forged = GOOD.pack(LEDGER, 0, -1, 5, b"other")
    requests = [AddRequest(LEDGER, 0, KEY, forged, recovery=recovery) for recovery in (False, True)]
    return [codec.encode_request(request) for request in requests for codec in (v2, v3)]


def seeds() -> list[bytes]:
    """Conversations: the frames of one connection."""
    messages = [framed(each) for protocol in ("v2", "v3") for each in captured(protocol, "c2b")]
    attacks = attacks_on_the_good_ledger()
    return [*attacks, b"".join(attacks), *messages, b"".join(messages[:8]), b"".join(messages[-8:])]


def reframed(rng: random.Random, data: bytes) -> bytes:
    """The bytes with lengths that fit them, so that the messages and not the frames are wrong."""
    out, at = b"", 0
    while at + 4 < len(data) and len(out) < 32_768:
        size = int.from_bytes(data[at : at + 4], "big")
        size = size if 0 < size <= len(data) - at - 4 else rng.randint(1, len(data) - at - 4)
        out += framed(data[at + 4 : at + 4 + size])
        at += 4 + size
    return out


class _Errors(logging.Handler):
    """Keeps errors that the bookie logs with a traceback: it did not expect them."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.found.append(f"{record.getMessage()[:300]}: {record.exc_info[1]!r}")


class Names(Steps):
    """A plug-in that believes each peer its name: permissions are fuzzed, not authentication."""

    plugin = PLUGIN

    def answer(self, token: bytes) -> AuthStep:
        if token not in (GOOD_NAME, STRANGER_NAME):
            raise AuthRefusedError("an unknown name")
        return AuthStep(b"", PeerIdentity(token.decode(), PLUGIN))


async def decide(name: str, ledger_ids: Sequence[int]) -> Mapping[int, Decision]:
    """The good client's ledger is its own. The stranger has each right on some other ledgers."""
    await trio.lowlevel.checkpoint()
    if name == GOOD_NAME.decode():
        return {ledger_id: Decision(Access.WRITE) for ledger_id in ledger_ids}
    kinds = [Decision(Access.WRITE), Decision(Access.READ), NO_SUCH_LEDGER, OUT_OF_REACH]
    return {
        ledger_id: Decision(Access.NONE) if ledger_id == LEDGER else kinds[ledger_id % len(kinds)]
        for ledger_id in ledger_ids
    }


def authentication(name: bytes) -> bytes:
    return v2.encode_request(AuthRequest(PLUGIN, name))


class GoodClient:
    """A client with a ledger of its own. It notices what hostile peers did."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream, self._frames, self._next = stream, FrameBuffer(), 0

    async def authenticate(self) -> None:
        reply = await self._ask(AuthRequest(PLUGIN, GOOD_NAME))
        assert reply == AuthReply(Code.OK, PLUGIN, b""), reply

    async def check(self) -> str | None:
        """Why the bookie does not serve as before; None if it does."""
        entry_id, self._next = self._next, self._next + 1
        body = GOOD.pack(LEDGER, entry_id, entry_id - 1, 5, PAYLOAD)
        reply = await self._ask(AddRequest(LEDGER, entry_id, KEY, body))
        if reply != AddReply(Code.OK, LEDGER, entry_id):
            return f"the good client's add of entry {entry_id} got {reply}"
        for read_id in {0, entry_id // 2}:
            reply = await self._ask(ReadRequest(LEDGER, read_id))
            if not isinstance(reply, ReadReply) or reply.code is not Code.OK or reply.body is None:
                return f"the good client's read of entry {read_id} got {reply}"
            if GOOD.unpack(reply.body, LEDGER, read_id).payload != PAYLOAD:
                return f"entry {read_id} has other bytes now"
        return None

    async def _ask(self, request: Request) -> object:
        await self._stream.send_all(v2.encode_request(request))
        while True:
            chunk = await self._stream.receive_some(65536)
            if not chunk:
                return "a closed connection"
            data, spans = self._frames.feed(bytes(chunk))
            for start, end in spans:
                return v2.decode_reply(data, start, end).reply


async def attack(stream: trio.SocketStream, data: bytes, *, is_guarded: bool = False) -> str | None:
    """Send the bytes, read all replies; why a reply is wrong, or None."""
    received = bytearray(await _introduce_stranger(stream)) if is_guarded else bytearray()

    async def receive() -> None:
        try:
            while chunk := await stream.receive_some(65536):
                received.extend(chunk)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the bookie has closed the connection, as it may

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        try:
            await stream.send_all(data)
            await stream.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
    try:
        block, spans = FrameBuffer().feed(bytes(received))
        replies = [_decoded(block, start, end) for start, end in spans]
    except WireError as exc:
        return f"a reply does not decode: {exc}"
    if is_guarded and PAYLOAD in received:
        return "a peer without the right to read a ledger got an entry of it"
    return None if len(replies) <= len(data) + 2 * is_guarded else "more replies than bytes sent"


async def _introduce_stranger(stream: trio.SocketStream) -> bytes:
    """Authenticate and read of the good client's ledger; both replies.

    They are awaited: the bookie drops what it has not answered when a peer ends its connection. The
    rights would still be looked up then, and nothing would be read.
    """
    received, frames, spans = bytearray(), FrameBuffer(), 0
    await stream.send_all(authentication(STRANGER_NAME) + v2.encode_request(ReadRequest(LEDGER, 0)))
    while spans < 2 and (chunk := await stream.receive_some(65536)):
        received += chunk
        spans += len(frames.feed(bytes(chunk))[1])
    return bytes(received)


def _decoded(block: bytes, start: int, end: int) -> IncomingReply:
    """A reply of either version. A refusal repeats an unknown version, so no byte decides."""
    try:
        return v2.decode_reply(block, start, end)
    except WireError:
        return v3.decode_reply(block, start, end)


@asynccontextmanager
async def open_target(*, is_guarded: bool) -> AsyncIterator[tuple[trio.SocketListener, GoodClient, _Errors]]:
    """A bookie with a port on loopback, and its good client."""
    errors = _Errors()
    logger = logging.getLogger("bookie")
    logger.addHandler(errors)
    propagate, logger.propagate = logger.propagate, False  # a line of log for each hostile connection
    try:
        with tempfile.TemporaryDirectory(prefix="dlog-fuzz-") as directory:
            config = StorageConfig(
                journal_directories=[Path(directory) / "journal"],
                ledger_directories=[Path(directory) / "ledgers"],
                journal=JournalConfig(file_bytes_max=1 << 20, preallocate_bytes=1 << 16),
            )
            server_config = ServerConfig(auth=Names()) if is_guarded else None
            permissions = Permissions(decide, lifetime_s=60, now_s=trio.current_time) if is_guarded else None
            async with (
                open_bookie(config, server_config=server_config, permissions=permissions) as bookie,
                trio.open_nursery() as nursery,
            ):
                listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
                await nursery.start(bookie.serve_listeners, listeners)
                async with await open_stream_to_socket_listener(listeners[0]) as stream:
                    good = GoodClient(stream)
                    if is_guarded:
                        await good.authenticate()
                    yield listeners[0], good, errors
                nursery.cancel_scope.cancel()
    finally:
        logger.removeHandler(errors)
        logger.propagate = propagate


async def run_connections(inputs: Sequence[bytes], is_guarded: bool = False) -> tuple[bytes, str] | None:
    """Attack with each input in turn; the first that breaks a promise, with the promise."""
    async with open_target(is_guarded=is_guarded) as (listener, good, errors):
        if (reason := await good.check()) is not None:
            return b"", reason
        for data in inputs:
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            with trio.move_on_after(HANG_S) as hang:
                stream = await open_stream_to_socket_listener(listener)
                async with stream:
                    reason = await attack(stream, data, is_guarded=is_guarded)
                reason = reason or await good.check()
            peak = tracemalloc.get_traced_memory()[1] - before
            if hang.cancelled_caught:
                reason = f"no answer for {HANG_S:g} s"
            elif peak > MEMORY_BYTES_MAX + 200 * len(data):
                reason = f"{peak} bytes of memory for {len(data)} bytes"
            elif errors.found:
                reason = f"the bookie logged: {errors.found[0]}"
            if reason is not None:
                return data, reason
    return None


def inputs_of(seed: int, cases: int) -> list[bytes]:
    """What so many hostile connections send."""
    rng = random.Random(f"{seed} {PORT}")
    mutator = Mutator(rng)
    found = seeds()
    inputs = [*overwrites(), *found[:: max(1, len(found) // max(cases // 4, 1))]]
    while len(inputs) < cases:
        data = mutator.mutate(found)
        inputs.append(reframed(rng, data) if rng.random() < 0.7 else data)
    return inputs[:cases]


def fuzz_port(seed: int, cases: int, name: str = PORT) -> list[Failure]:
    """Attack a new bookie with so many connections; the failure, if there is one."""
    with tracing_memory():
        found = trio.run(run_connections, inputs_of(seed, cases), name == GUARDED_PORT)
    return [] if found is None else [Failure(name, found[0], found[1], seed)]


def replay_port(data: bytes, name: str = PORT) -> str | None:
    """Attack a new bookie with one input; why it fails, or None."""
    with tracing_memory():
        found = trio.run(run_connections, [data], name == GUARDED_PORT)
    return None if found is None else found[1]
