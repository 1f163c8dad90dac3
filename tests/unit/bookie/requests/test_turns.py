"""The budget of one step of the loop, which all connections share. Work is counted, not timed."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from bookie.requests import session as session_module
from bookie.requests.session import SLOW_FRAMES_MAX, BookieService
from bookie.requests.turns import (
    READ_UNITS,
    SLOW_FRAME_UNITS,
    STEP_UNITS,
    Turns,
)
from bookie.server import gate
from bookie.server.config import ServerConfig
from bookie.server.server import Server
from ledger.auth.authentication import AuthStep, PeerCertificate, PeerIdentity
from ledger.codes import Code
from ledger.digest import DigestType, EntryCodec
from ledger.wire import v2, v3
from ledger.wire.frame import FrameBuffer
from ledger.wire.messages import AddRequest, ReadRequest, WriteLacRequest
from tests.fakes.service_by_hand import KEY, HandDisk, NamedBatch

ENTRIES = EntryCodec(DigestType.CRC32C, b"")
CONNECTIONS = 24
SLOW_FRAME = v3.encode_request(WriteLacRequest(9, 0, KEY, bytes(8)))  # refused: its body is too short
SLOW_IN_STEP_MAX = STEP_UNITS // SLOW_FRAME_UNITS + SLOW_FRAMES_MAX


class Work(trio.abc.Instrument):
    """Counts work of each kind in each step of the loop."""

    def __init__(self) -> None:
        self.in_step: Counter[str] = Counter()
        self.most_in_step: Counter[str] = Counter()
        self.total: Counter[str] = Counter()
        self.steps = 0

    def after_io_wait(self, timeout: float) -> None:
        self.steps += 1
        self.in_step.clear()

    def done(self, kind: str) -> None:
        self.in_step[kind] += 1
        self.total[kind] += 1
        self.most_in_step[kind] = max(self.most_in_step[kind], self.in_step[kind])


class QuickDisk(HandDisk):
    """A disk whose batches are durable at once, and which has no entry of ledger 5."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.work = work
        self.create_ledger_by_hand(5).last_entry_id = 1 << 40

    def stage_entry(self, *args: object) -> None:
        self.work.done("add")
        super().stage_entry(*args)  # type: ignore[arg-type]

    def submit(self, batch: NamedBatch, on_durable: object, *, sync: bool = True) -> None:
        super().submit(batch, on_durable, sync=sync)  # type: ignore[arg-type]
        self.sync()

    must_wait = True

    async def wait_capacity(self) -> None:
        return

    def read_cached(self, ledger_id: int, entry_id: int) -> bytes | None:
        return None

    async def read(self, ledger_id: int, entry_id: int) -> bytes:
        self.work.done("read")
        return ENTRIES.pack(ledger_id, entry_id, -1, 0, b"")

    async def read_batch(self, ledger_id: int, first: int, count: int, size_bytes: int) -> list[bytes]:
        return [await self.read(ledger_id, first)]


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    counter = Work()
    decode = session_module.decode_request

    def counted(data: bytes, start: int, end: int) -> object:
        counter.done("slow")
        return decode(data, start, end)

    monkeypatch.setattr(session_module, "decode_request", counted)
    return counter


@pytest.fixture
async def instrument(work: Work) -> AsyncIterator[None]:
    trio.lowlevel.add_instrument(work)
    yield
    trio.lowlevel.remove_instrument(work)


class Client:
    def __init__(self, server: Server, nursery: trio.Nursery) -> None:
        self.stream, theirs = memory_stream_pair()
        self.frames = FrameBuffer()
        nursery.start_soon(server.serve_stream, theirs)

    async def codes(self, count: int) -> list[Code]:
        found: list[Code] = []
        while len(found) < count:
            with trio.fail_after(60):
                data, spans = self.frames.feed(bytes(await self.stream.receive_some(1 << 20)))
            for start, end in spans:
                codec = v2 if data[start] <= 2 else v3
                found.append(codec.decode_reply(data, start, end).reply.code)
        return found

    async def add(self, entry_id: int, ledger_id: int = 5) -> None:
        body = ENTRIES.pack(ledger_id, entry_id, -1, 0, b"")
        await self.stream.send_all(v2.encode_request(AddRequest(ledger_id, entry_id, KEY, body)))
        assert await self.codes(1) == [Code.OK]


async def send_at_once(clients: list[Client], data: list[bytes]) -> None:
    """The server receives all of it in one step."""
    assert max(map(len, data)) < 131_072, "one chunk"
    async with trio.open_nursery() as nursery:
        for client, chunk in zip(clients, data, strict=True):
            nursery.start_soon(client.stream.send_all, chunk)


@pytest.fixture
def disk(work: Work) -> QuickDisk:
    return QuickDisk(work)


@pytest.fixture
def server(disk: QuickDisk) -> Server:
    return Server(BookieService(disk))  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.usefixtures("instrument")
async def test_many_connections_together_handle_few_expensive_frames_in_a_step(
    nursery: trio.Nursery, work: Work, server: Server
) -> None:
    clients = [Client(server, nursery) for _ in range(CONNECTIONS)]
    await wait_all_tasks_blocked()
    await send_at_once(clients, [SLOW_FRAME * 600] * CONNECTIONS)
    for client in clients:
        assert await client.codes(600) == [Code.BAD_REQUEST] * 600
    assert work.total["slow"] == CONNECTIONS * 600
    assert work.most_in_step["slow"] <= SLOW_IN_STEP_MAX
    nursery.cancel_scope.cancel()


@pytest.mark.slow
@pytest.mark.usefixtures("instrument")
async def test_many_connections_together_handle_a_bounded_number_of_plain_adds_in_a_step(
    nursery: trio.Nursery, work: Work, server: Server, disk: QuickDisk
) -> None:
    clients = [Client(server, nursery) for _ in range(CONNECTIONS)]
    await wait_all_tasks_blocked()
    chunks = [
        b"".join(
            v2.encode_request(AddRequest(ledger_id, at, KEY, ENTRIES.pack(ledger_id, at, -1, 0, b"")))
            for at in range(800)
        )
        for ledger_id in range(10, 10 + CONNECTIONS)
    ]
    for ledger_id in range(10, 10 + CONNECTIONS):
        disk.create_ledger_by_hand(ledger_id)
    await send_at_once(clients, chunks)
    for client in clients:
        assert await client.codes(800) == [Code.OK] * 800
    assert work.total["add"] == CONNECTIONS * 800
    assert work.most_in_step["add"] <= STEP_UNITS + 800
    nursery.cancel_scope.cancel()


@pytest.mark.slow
@pytest.mark.usefixtures("instrument")
async def test_many_connections_together_make_a_bounded_number_of_reads_that_do_not_wait(
    nursery: trio.Nursery, work: Work, server: Server
) -> None:
    clients = [Client(server, nursery) for _ in range(CONNECTIONS)]
    await wait_all_tasks_blocked()
    reads = [ReadRequest(5, 2 * at) for at in range(200)]
    data = b"".join([*map(v2.encode_request, reads), *map(v3.encode_request, reads)])
    await send_at_once(clients, [data] * CONNECTIONS)
    for client in clients:
        assert await client.codes(400) == [Code.OK] * 400
    assert work.total["read"] == CONNECTIONS * 400
    assert work.most_in_step["read"] <= STEP_UNITS // READ_UNITS + 1
    nursery.cancel_scope.cancel()


@pytest.mark.slow
@pytest.mark.usefixtures("instrument")
async def test_a_client_goes_on_beside_connections_that_always_have_expensive_frames(
    nursery: trio.Nursery, work: Work, server: Server
) -> None:
    strangers = [Client(server, nursery) for _ in range(CONNECTIONS)]
    client = Client(server, nursery)
    await client.add(1 << 41)
    for stranger in strangers:
        await stranger.stream.send_all(SLOW_FRAME * 6000)
    delays = []
    for number in range(1, 11):
        before = work.total["slow"]
        await client.add((1 << 41) + number)
        delays.append(work.total["slow"] - before)
    assert work.total["slow"] < CONNECTIONS * 6000, "the strangers are not done"
    # One turn of each stranger, and the steps in which the add and its reply pass the streams.
    assert max(delays) <= (CONNECTIONS + 20) * SLOW_FRAMES_MAX
    nursery.cancel_scope.cancel()


class _Exchange:
    def on_tls(self, certificate: PeerCertificate | None) -> PeerIdentity | None:
        return None

    def answer(self, token: bytes) -> AuthStep:
        raise AssertionError("no token is sent")


class _Provider:
    plugin = "test"
    needs_tls = False

    def open(self) -> _Exchange:
        return _Exchange()

    def reload(self) -> None:
        pass


@pytest.mark.slow
@pytest.mark.usefixtures("instrument")
async def test_peers_that_are_not_authenticated_get_few_refusals_in_a_step(
    nursery: trio.Nursery, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse = gate.Gate._refuse

    def counted(one: gate.Gate, incoming: object) -> None:
        work.done("refusal")
        refuse(one, incoming)  # type: ignore[arg-type]

    monkeypatch.setattr(gate.Gate, "_refuse", counted)
    server = Server(BookieService(QuickDisk(work)), ServerConfig(auth=_Provider()))  # type: ignore[arg-type]
    clients = [Client(server, nursery) for _ in range(CONNECTIONS)]
    await wait_all_tasks_blocked()
    await send_at_once(clients, [SLOW_FRAME * 600] * CONNECTIONS)
    for client in clients:
        assert await client.codes(600) == [Code.UNAUTHORIZED] * 600
    assert work.most_in_step["refusal"] <= SLOW_IN_STEP_MAX
    nursery.cancel_scope.cancel()


# The turns themselves


@pytest.mark.usefixtures("instrument")
async def test_turns_come_in_the_order_of_waiting_and_a_step_does_one_budget(work: Work) -> None:
    turns = Turns(10)
    order: list[int] = []
    steps: Counter[int] = Counter()

    async def take(number: int) -> None:
        await turns.wait(1)  # each uses more than it announces
        turns.charge(4)
        order.append(number)
        steps[work.steps] += 4

    async with trio.open_nursery() as nursery:
        for number in range(40):
            nursery.start_soon(take, number)
            await trio.lowlevel.checkpoint()
    assert sorted(order) == list(range(40))
    assert max(abs(number - at) for at, number in enumerate(order)) <= 10, (
        "at most those of one step change places"
    )
    assert max(steps.values()) <= 12
    assert not turns.is_spent


async def test_a_turn_comes_without_any_event_and_a_cancelled_task_leaves_its_place() -> None:
    turns = Turns(10)
    with trio.fail_after(30):  # a loop that waits for an event waits for this one
        for _ in range(100):  # the loop's own task for wake-ups runs before or after this one
            await turns.wait(100)
            with trio.move_on_after(0) as scope:
                await turns.wait(1)
            assert scope.cancelled_caught
        await trio.lowlevel.checkpoint()
    await wait_all_tasks_blocked()
    assert not turns.is_spent
    assert "0 waiting" in repr(turns)


async def test_a_turn_is_over_in_the_next_step_with_a_shortage() -> None:
    turns = Turns(10)
    turn = await turns.wait(1)
    has_turn = turns.has_turn(turn)
    await wait_all_tasks_blocked()
    turns.charge(10)
    assert (has_turn, turns.has_turn(turn), turns.is_spent) == (True, False, True)


async def test_work_is_counted_without_a_loop_event_until_a_task_waits() -> None:
    turns = Turns(10)
    for _ in range(9):
        turns.charge(1)
        await trio.lowlevel.checkpoint()
    before = turns.is_spent
    turns.charge(1)
    await trio.lowlevel.checkpoint()
    assert (before, turns.is_spent, turns._next_step) == (False, True, None), "nothing watches the steps"
    await turns.wait(1)
    assert (turns.is_spent, turns._next_step) == (False, None)
