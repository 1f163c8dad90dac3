"""Hostile bookies against the client: each kind of request is answered with each kind of bad reply.

A client's calls end with an error of ours, or with right data from the honest replicas; then an honest client
recovers and reads the ledger. One of three bookies is hostile, or all of them.
"""

from __future__ import annotations

import contextlib
import random
import re
import struct
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from ledger.client import LedgerClient
from ledger.codes import Code
from ledger.config import ClientConfig
from ledger.digest import DigestType, EntryCodec
from ledger.errors import LedgerError, LedgerWriteError
from ledger.runtime.tasks.failure_domain import contained_failures
from ledger.transport.config import TransportConfig
from ledger.transport.pipe import PipeStream
from ledger.wire import v2, v3
from ledger.wire.messages import (
    AddReply,
    BatchReadReply,
    ForceLedgerReply,
    IncomingRequest,
    ReadLacReply,
    ReadReply,
    Reply,
)
from tests.fakes.dict_bookies import DictBookie, DictCluster, open_cluster

PAYLOADS = [b"honest%d" % number for number in range(8)]
MAX = 2**63 - 1
CODEC = EntryCodec(DigestType.CRC32C, b"pw")
FOREIGN = CODEC.pack(99, 98, 97, 5, b"other")

Frame = Callable[[IncomingRequest, Reply], list[bytes]]
"""The frames that a hostile bookie sends for a request, given the honest reply. ``CLOSE`` ends them."""
CLOSE = b""


def encoded(incoming: IncomingRequest, reply: Reply) -> bytes:
    encode = v2.encode_reply if incoming.version < 3 else v3.encode_reply
    return encode(
        reply,
        version=incoming.version,
        operation=incoming.operation,
        transaction_id=incoming.transaction_id,
    )


def changed(**fields: object) -> Frame:
    """The honest reply with other values in the fields that it has."""

    def frames(incoming: IncomingRequest, reply: Reply) -> list[bytes]:
        mine: dict[str, Any] = {name: value for name, value in fields.items() if hasattr(reply, name)}
        return [encoded(incoming, attrs.evolve(reply, **mine))]

    return frames


def with_header(lac: int, length: int = 5, *, shift: int = 0) -> Frame:
    """Entries with a valid digest, an absurd header and other bytes."""

    def body_of(ledger_id: int, entry_id: int) -> bytes:
        return CODEC.pack(ledger_id, min(MAX, max(0, entry_id) + shift), lac, length, b"evil")

    def frames(incoming: IncomingRequest, reply: Reply) -> list[bytes]:
        match reply:
            case ReadReply():
                body = body_of(reply.ledger_id, reply.entry_id)
                reply = attrs.evolve(reply, code=Code.OK, body=body, max_lac=max(lac, -1))
            case BatchReadReply():
                bodies = tuple(body_of(reply.ledger_id, reply.entry_id + number) for number in range(3))
                reply = attrs.evolve(reply, code=Code.OK, bodies=bodies)
            case ReadLacReply():
                last = body_of(reply.ledger_id, 5)
                packet = CODEC.pack_lac(reply.ledger_id, lac)
                reply = attrs.evolve(reply, code=Code.OK, lac_body=packet, last_entry_body=last)
        return [encoded(incoming, reply)]

    return frames


def patched(change: Callable[[bytes], bytes]) -> Frame:
    return lambda incoming, reply: [change(encoded(incoming, reply))]


def reframed(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


ANSWERS: dict[str, Frame] = {
    "another ledger": changed(ledger_id=99),
    "another entry": changed(entry_id=98),
    "ids of 2^63-1": changed(ledger_id=MAX, entry_id=MAX),
    "ids of -2^63": changed(ledger_id=-MAX - 1, entry_id=-MAX - 1),
    "another request": changed(request_id=MAX),
    "an entry of another ledger": changed(body=FOREIGN, bodies=(FOREIGN,), last_entry_body=FOREIGN),
    "an entry of one byte": changed(body=b"x", bodies=(b"x", b""), last_entry_body=b"x", lac_body=b"y"),
    "no body": changed(body=None, bodies=(), last_entry_body=None, lac_body=None, availability=None),
    "a list that is none": changed(availability=b"\x00" * 63),
    "a list of everything": changed(
        availability=struct.pack(">ii56xqqii", 0, 1, 0, MAX - 2**31, 2**31 - 1, 2**31 - 1)
    ),
    "an LAC of 2^63-1": with_header(MAX),
    "an LAC of -2^63": with_header(-MAX - 1, -MAX - 1),
    "an entry near 2^63": with_header(MAX - 1, MAX, shift=MAX),
    "well-formed far entries": with_header(10**12 - 1, -1, shift=10**12),
    "max_lac of 2^63-1": changed(max_lac=MAX),
    "OK instead of a refusal": changed(code=Code.OK),
    "disk sizes below 0": changed(total_disk_bytes=-MAX - 1, free_disk_bytes=-MAX - 1),
    "a frame cut off": patched(lambda frame: reframed(frame[4 : 4 + len(frame[4:]) // 2] or b"\0")),
    "an unknown code": patched(lambda frame: frame[:8] + b"\x7f\xff\xff\xff" + frame[12:]),
    "flipped bits": patched(lambda frame: frame[:4] + bytes(byte ^ 0x55 for byte in frame[4:])),
    "a wrong digest": patched(lambda frame: frame[:-1] + bytes([frame[-1] ^ 1])),
    "too large a frame": patched(lambda _frame: b"\x7f\xff\xff\xff" + bytes(64)),
    "an empty frame": patched(lambda _frame: bytes(4)),
    "noise": patched(lambda _frame: reframed(bytes(range(256)))),
    "HTTP": patched(lambda _frame: b"HTTP/1.1 200 OK\r\n\r\n"),
    "nothing": lambda _incoming, _reply: [],
    "the reply twice": lambda incoming, reply: [encoded(incoming, reply)] * 2,
    "the reply many times": lambda incoming, reply: [encoded(incoming, reply)] * 50,
    "the reply, then the end": lambda incoming, reply: [encoded(incoming, reply), CLOSE],
    "a reply that nobody asked for": lambda incoming, reply: [
        v2.encode_reply(AddReply(Code.OK, 1, 77), version=2, operation=incoming.operation)
        if incoming.version < 3
        else v3.encode_reply(
            ForceLedgerReply(Code.OK, 1), version=3, operation=incoming.operation, transaction_id=9999
        ),
        encoded(incoming, reply),
    ],
} | {f"refusal {code.name}": changed(code=code) for code in Code if code is not Code.OK}


class HostileBookie(DictBookie):
    """Replies honestly until ``answer`` is set."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.answer: Frame | None = None

    async def _send(
        self, stream: PipeStream, lock: trio.Lock, incoming: IncomingRequest, reply: Reply
    ) -> None:
        answer = self.answer
        if answer is None:
            await super()._send(stream, lock, incoming, reply)
            return
        async with lock:
            with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                for frame in answer(incoming, reply):
                    await (stream.send_all(frame) if frame else stream.aclose())


@contextlib.asynccontextmanager
async def hostile_cluster() -> AsyncIterator[DictCluster]:
    async with open_cluster(3) as cluster:
        for name in cluster.bookies:
            cluster.bookies[name] = HostileBookie(name)
        yield cluster


CONFIG = ClientConfig(
    transport=TransportConfig(request_timeout_s=2, add_timeout_s=2, connect_timeout_s=2),
    unavailable_timeout_s=4,
    overload_timeout_s=4,
    long_poll_max_s=1,
    explicit_lac_interval_s=1,
    recovery_entries_max=100,
    add_quorum_timeout_s=10,  # without it a writer waits for replies to its adds without a limit
)


async def tried(call: Callable[[], object], within_s: float = 120) -> object:
    """The result, or None after an error of ours; a hang or another error fails the test."""
    with trio.fail_after(within_s):
        try:
            return await call()  # type: ignore[misc]
        except LedgerError:
            return None


async def use(client: LedgerClient, ledger_id: int, *, all_hostile: bool) -> None:
    """Everything that a client may ask of bookies."""
    async with await client.open(ledger_id, password=b"pw", recover=False) as reader:
        await tried(reader.read_last_confirmed)
        await tried(lambda: reader.wait_last_confirmed_beyond(len(PAYLOADS), timeout_s=3))
        for read in (reader.read, reader.read_payloads):
            found = await tried(lambda read=read: read(0, min(3, max(0, reader.last_confirmed))))  # type: ignore[misc]
            if found is not None and not all_hostile:
                assert [getattr(one, "payload", one) for one in found][:1] in ([PAYLOADS[0]], [b"evil"])  # type: ignore[attr-defined]
    check = await tried(lambda: client.replica_check(ledger_id, password=b"pw"))
    if check is not None:
        await tried(lambda: check.entry(0))  # type: ignore[attr-defined]
    await tried(lambda: client.bookie_space("b1:1"))
    writer = await tried(lambda: client.create(digest_type=CODEC.digest_type, password=b"pw"))
    if writer is not None:
        await tried(lambda: writer.append(b"new"))  # type: ignore[attr-defined]
        await tried(lambda: writer.write_explicit_lac())  # type: ignore[attr-defined]
        await tried(writer.close)  # type: ignore[attr-defined]


async def use_and_go_on(answer: Frame, count: int) -> None:
    """Use a client against so many hostile bookies of three; afterwards the same client and others work."""
    before = contained_failures.total()
    async with hostile_cluster() as cluster:
        async with cluster.client() as honest:
            writer = await honest.create(digest_type=CODEC.digest_type, password=b"pw")
            await writer.append_many(PAYLOADS)
            writer.abandon()
            hostile = [cluster.bookies[name] for name in sorted(cluster.bookies)[:count]]
            async with cluster.client(CONFIG) as client:
                for bookie in hostile:
                    bookie.answer = answer  # type: ignore[attr-defined]
                with contextlib.suppress(LedgerError):  # without an honest bookie there may be no LAC
                    await use(client, writer.ledger_id, all_hostile=count == 3)
                if count < 3:
                    other = await honest.create(digest_type=CODEC.digest_type, password=b"pw")
                    await tried(lambda: other.append_many(PAYLOADS))
                    other.abandon()
                    await tried(lambda: client.recover(other.ledger_id))
                for bookie in hostile:
                    bookie.answer = None  # type: ignore[attr-defined]
                # The same client works, as soon as the bookies are honest.
                again = await client.create(digest_type=CODEC.digest_type, password=b"pw")
                assert await again.append(b"one") == 0
                await again.close()
        async with (
            cluster.client() as honest,
            await honest.open(writer.ledger_id, password=b"pw") as reader,
        ):
            entries = await reader.read(0, len(PAYLOADS) - 1)
            assert [one.payload for one in entries] == PAYLOADS
            assert reader.last_confirmed == len(PAYLOADS) - 1
    assert contained_failures.total() == before  # each reply has its own answer


@pytest.mark.slow
@pytest.mark.parametrize("what", ANSWERS)
@pytest.mark.parametrize("count", [1, 3])
async def test_hostile_replies_raise_no_other_error_and_an_honest_client_goes_on(
    what: str, count: int, autojump_clock: MockClock
) -> None:
    await use_and_go_on(ANSWERS[what], count)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["the reply twice", "the reply many times", "the reply, then the end"])
async def test_a_writer_to_bookies_that_acknowledge_and_break_off_pauses_or_ends(
    what: str, autojump_clock: MockClock
) -> None:
    config = attrs.evolve(CONFIG, add_quorum_timeout_s=None)
    async with hostile_cluster() as cluster, cluster.client(config) as client:
        writer = await client.create(digest_type=CODEC.digest_type, password=b"pw")
        for bookie in cluster.bookies.values():
            bookie.answer = ANSWERS[what]  # type: ignore[attr-defined]
        began_s, error = trio.current_time(), None
        while (
            error is None and writer.last_pushed < 50
        ):  # some may be confirmed before the first loss is seen
            try:
                await writer.append(b"new")
            except LedgerWriteError as exc:
                error = exc
        if what != "the reply, then the end":
            assert re.search(r"no ack quorum for entry \d+ in 4 s.*lost twice after", str(error))
        took_s = trio.current_time() - began_s
        work = sum(len(bookie.requests) for bookie in cluster.bookies.values())
        assert work < 60 * (1 + took_s + writer.last_pushed)
        assert client.context.transport.connections_started < 60 * (1 + took_s + writer.last_pushed)


def mixed(rng: random.Random, names: Sequence[str]) -> Frame:
    """Another one of these answers to each request; half of the replies are honest."""

    def frames(incoming: IncomingRequest, reply: Reply) -> list[bytes]:
        if rng.random() < 0.5:
            return [encoded(incoming, reply)]
        return ANSWERS[rng.choice(names)](incoming, reply)

    return frames


def run_case(case: Callable[[], Awaitable[None]]) -> str | None:
    """Run a case of a sweep under a clock that jumps; the report if it failed."""
    try:
        trio.run(case, clock=MockClock(autojump_threshold=0))
    except Exception:  # one case must not end the others
        return traceback.format_exc()
    return None


def again(module: str, seed: int, count: int, report: str) -> str:
    """A report with the command that runs its sweep again."""
    return f"{report}python -m tests.fuzz.soak --part {module} --seed {seed} --count {count} --turns 1"


_FRAMES = 200  # of a sweep's count, for one case


def sweep(seed: int, count: int) -> list[str]:
    """Mixtures of bad replies against a client; the reports of what failed."""
    reports = []
    for number in range(max(1, count // _FRAMES)):
        rng = random.Random(f"{seed} {number}")
        names = rng.sample(sorted(ANSWERS), rng.randint(1, 5))
        report = run_case(lambda: use_and_go_on(mixed(rng, names), rng.choice((1, 3))))  # noqa: B023
        if report is not None:
            reports.append(again(__name__, seed, count, f"case {number}, {names}: {report}"))
    return reports
