"""What the owner of a shared log does with records: each is stored once, in its producer's order."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

import dlog
from dlog.errors import AccessDeniedError, ConfigError, LogWriteError, RecordOutcome, SequenceReusedError
from dlog.format.attributes import encode_attributes
from dlog.forwarding.frames import (
    Appended,
    Failed,
    ForwardedCall,
    Frame,
    FrameKind,
    Hello,
    Records,
    Refused,
    Request,
    Result,
    Welcome,
    decode,
    encode_bare,
    encode_hello,
    encode_records,
    encode_request,
)
from dlog.forwarding.owner import ForwarderConnection, Owner, OwnerGoneError, Taken, dlsns_of
from dlog.forwarding.window import ProducerWindow
from ledger.runtime.statistics.tracing import TRACE_HEADERS
from ledger.wire.frame import FrameBuffer
from namespace.dlsn import DLSN, INVALID_DLSN
from namespace.policy import Right

Row = tuple[bytes, bytes | None, dict[str, bytes]]  # payload, key and headers of a record

INSTANCE, OTHER = "01" * 16, "02" * 16


@attrs.frozen
class House:
    """An owner with its log."""

    namespace: dlog.Namespace
    writer: dlog.LogWriter
    owner: Owner

    async def stored(self) -> list[tuple[bytes, tuple[str, int] | None]]:
        await self.writer.flush()
        async with self.namespace.open_reader("log", follow=False) as reader:
            return [(record.payload, record.producer) async for record in reader]

    async def positions(self, taken: Taken) -> list[DLSN]:
        return dlsns_of(await self.owner.settled(taken))

    def take(self, first: int, *payloads: bytes, is_again: bool = False, floor: DLSN = INVALID_DLSN) -> Taken:
        return self.owner.take("p", floor, Records(first, payloads, is_again=is_again))


async def check(name: str, right: Right) -> None:
    """The rights of the names that forwarders prove."""
    if right.value not in {"reader": ("read",), "writer": ("read", "write")}.get(name, ("admin", "write")):
        raise AccessDeniedError(f"log 'log': the policy gives {name!r} no right to {right.value}")


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with (
        dlog.open_namespace(f"file://{tmp_path}") as namespace,
        namespace.open_writer("log", create=True) as writer,
    ):
        yield House(namespace, writer, Owner(writer, ProducerWindow(INVALID_DLSN), INVALID_DLSN, check))


async def test_a_repeated_record_gets_its_position_and_is_stored_once(house: House) -> None:
    first = await house.positions(house.take(0, b"a", b"b"))
    again = await house.positions(house.take(0, b"a", b"b", b"c", is_again=True))
    assert again[:2] == first
    assert await house.stored() == [(b"a", ("p", 0)), (b"b", ("p", 1)), (b"c", ("p", 2))]


async def test_a_repeat_waits_for_the_first_that_is_still_in_flight(house: House) -> None:
    first, second = house.take(0, b"a"), house.take(0, b"a", is_again=True)
    assert second.ranges == ()
    assert await house.positions(second) == await house.positions(first)
    assert len(await house.stored()) == 1


ONE = (b"a", b"key", {"colour": b"red"})
OTHERS = [
    (b"b", b"key", {"colour": b"red"}),
    (b"a", b"other", {"colour": b"red"}),
    (b"a", None, {"colour": b"red"}),
    (b"a", b"", {"colour": b"red"}),
    (b"a", b"key", {"colour": b"blue"}),
    (b"a", b"key", {"color": b"red"}),
    (b"a", b"key", {}),
    (b"a", None, {}),
    (b"", b"akey", {"colour": b"red"}),
]


def group(record: Row) -> Records:
    payload, key, headers = record
    return Records(0, [payload], None, [encode_attributes(key, headers)])


@pytest.mark.parametrize(("first", "second"), [*((ONE, each) for each in OTHERS), (OTHERS[7], ONE)])
async def test_a_repeat_with_another_payload_key_or_header_is_refused(
    house: House, first: Row, second: Row
) -> None:
    stored = await house.positions(house.owner.take("p", INVALID_DLSN, group(first)))
    with pytest.raises(SequenceReusedError, match="record 0 of producer 'p' has another payload"):
        house.owner.take("p", INVALID_DLSN, group(second))
    assert await house.positions(house.owner.take("p", INVALID_DLSN, group(first))) == stored
    assert len(await house.stored()) == 1


async def test_a_repeat_may_belong_to_another_trace(house: House) -> None:
    payload, key, headers = ONE
    traces = [{}, *(dict.fromkeys(TRACE_HEADERS, each) for each in (b"first", b"second"))]
    takes = [
        house.owner.take("p", INVALID_DLSN, group((payload, key, {**trace, **headers}))) for trace in traces
    ]
    assert len({tuple(await house.positions(each)) for each in takes}) == 1


async def test_a_number_that_was_left_out_cannot_be_used_after_a_later_one(house: House) -> None:
    await house.positions(house.take(3, b"d"))
    await house.positions(house.take(5, b"f"))
    with pytest.raises(LogWriteError, match="comes after record 5") as caught:
        house.take(4, b"e", is_again=True)
    assert caught.value.outcome is RecordOutcome.NOT_WRITTEN
    with pytest.raises(LogWriteError, match="comes after record 5") as caught:
        house.take(2, b"c", is_again=True)  # it may lie before what the window holds
    assert caught.value.outcome is RecordOutcome.UNKNOWN


async def test_a_repeat_from_before_the_window_is_unknown_unless_its_producer_is_known(house: House) -> None:
    house.owner.window.covers = DLSN(1, 9, 0)
    with pytest.raises(LogWriteError, match="was sent before 1:9:0") as caught:
        house.take(4, b"e", is_again=True, floor=DLSN(1, 8, 0))
    assert caught.value.outcome is RecordOutcome.UNKNOWN
    assert await house.stored() == []
    await house.positions(house.take(4, b"e", is_again=True, floor=DLSN(1, 9, 0)))
    await house.positions(house.take(5, b"f", is_again=True, floor=DLSN(1, 8, 0)))
    assert [payload for payload, _ in await house.stored()] == [b"e", b"f"]


async def test_an_owner_whose_writer_was_closed_answers_nothing(house: House) -> None:
    await house.writer.aclose()
    with pytest.raises(OwnerGoneError):
        house.take(0, b"a")


async def test_a_producers_name_belongs_to_one_program_at_a_time(house: House) -> None:
    house.owner.admit("p", INSTANCE, None)
    house.owner.admit("p", INSTANCE, None)
    house.owner.admit("q", OTHER, None)
    with pytest.raises(ConfigError, match="another program writes it as producer 'p'"):
        house.owner.admit("p", OTHER, None)


class Forwarder:
    """The other end of a connection, frame by frame."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream, self._buffer = stream, FrameBuffer()
        self._frames: list[Frame] = []

    async def send(self, *frames: bytes) -> None:
        await self.stream.send_all(b"".join(frames))

    async def next(self) -> Frame | None:
        while not self._frames:
            chunk = await self.stream.receive_some()
            if not chunk:
                return None
            data, payloads = self._buffer.feed(bytes(chunk))
            self._frames += [decode(data[start:stop]) for start, stop in payloads]
        return self._frames.pop(0)

    async def hello(self, instance: str = INSTANCE) -> Frame | None:
        await self.send(encode_hello(Hello("p", instance, INVALID_DLSN)))
        return await self.next()


async def test_a_connection_stores_records_in_order_and_answers_each(house: House) -> None:
    async with trio.open_nursery() as nursery:
        ours, theirs = memory_stream_pair()
        nursery.start_soon(house.owner.serve, theirs, None)
        forwarder = Forwarder(ours)
        assert await forwarder.hello() == Welcome(-1, -1, INVALID_DLSN)
        assert house.owner.forwarder_count == 1
        await forwarder.send(*(encode_records(Records(number, [b"%d" % number])) for number in range(20)))
        answers = [await forwarder.next() for _ in range(20)]
        assert [each.first for each in answers if isinstance(each, Appended)] == list(range(20))
        await forwarder.send(encode_bare(FrameKind.PING))
        assert await forwarder.next() is FrameKind.PONG
        await ours.aclose()
    assert [producer for _, producer in await house.stored()] == [("p", number) for number in range(20)]
    assert house.owner.forwarder_count == 0


async def test_a_second_program_with_a_name_in_use_is_told_and_may_come_when_the_first_is_gone(
    house: House,
) -> None:
    async with trio.open_nursery() as nursery:
        streams = [memory_stream_pair() for _ in range(3)]
        for _, theirs in streams:
            nursery.start_soon(house.owner.serve, theirs, None)
        first, second, third = (Forwarder(ours) for ours, _ in streams)
        assert isinstance(await first.hello(), Welcome)
        refused = await second.hello(OTHER)
        assert isinstance(refused, Refused)
        assert isinstance(refused.error, ConfigError)
        await first.stream.aclose()
        await wait_all_tasks_blocked()
        assert isinstance(await third.hello(OTHER), Welcome)
        for ours, _ in streams:
            await ours.aclose()


async def test_a_program_whose_proven_name_may_not_write_is_refused_and_stores_nothing(house: House) -> None:
    async with trio.open_nursery() as nursery:
        ours, theirs = memory_stream_pair()
        nursery.start_soon(house.owner.serve, theirs, "reader")
        forwarder = Forwarder(ours)
        refused = await forwarder.hello()
        assert isinstance(refused, Refused)
        assert isinstance(refused.error, AccessDeniedError)
        assert "'reader' no right to write" in str(refused.error)
        await forwarder.send(encode_records(Records(0, [b"a"])))
        assert await forwarder.next() is None
    assert await house.stored() == []


@pytest.mark.parametrize(
    "request_", [Request(0, ForwardedCall.TRUNCATE, position=DLSN(1, 0, 0)), Request(0, ForwardedCall.SEAL)]
)
async def test_a_program_whose_proven_name_may_only_write_neither_truncates_nor_seals(
    house: House, request_: Request
) -> None:
    async with trio.open_nursery() as nursery:
        streams = [memory_stream_pair() for _ in range(2)]
        nursery.start_soon(house.owner.serve, streams[0][1], "writer")
        nursery.start_soon(house.owner.serve, streams[1][1], "admin")
        writer, admin = Forwarder(streams[0][0]), Forwarder(streams[1][0])
        assert isinstance(await writer.hello(), Welcome)
        await writer.send(encode_records(Records(0, [b"a"])), encode_request(request_))
        answers = {type(each): each for each in (await writer.next(), await writer.next())}
        assert Appended in answers
        failed = answers[Failed]
        assert isinstance(failed, Failed)
        assert "'writer' no right to admin" in str(failed.error)
        await writer.stream.aclose()
        await admin.send(encode_hello(Hello("q", OTHER, INVALID_DLSN)), encode_request(request_))
        assert isinstance(await admin.next(), Welcome)
        assert isinstance(await admin.next(), Result)
        await admin.stream.aclose()


@pytest.mark.parametrize(
    "frame", [b"\0\0\0\x01\xff", encode_records(Records(0, [b"a"])), encode_bare(FrameKind.PONG), b"\xff" * 9]
)
async def test_a_connection_that_speaks_nonsense_ends_and_harms_no_other(house: House, frame: bytes) -> None:
    async with trio.open_nursery() as nursery:
        (bad, its), (good, other) = memory_stream_pair(), memory_stream_pair()
        nursery.start_soon(house.owner.serve, its, None)
        nursery.start_soon(house.owner.serve, other, None)
        forwarder = Forwarder(good)
        await forwarder.hello()
        await Forwarder(bad).send(frame)
        assert await Forwarder(bad).next() is None
        await forwarder.send(encode_records(Records(0, [b"a"])))
        assert isinstance(await forwarder.next(), Appended)
        await good.aclose()
    assert len(await house.stored()) == 1


@pytest.mark.parametrize("frame", [b"\0\0\0\x01\xff", encode_bare(FrameKind.PONG), b"\xff" * 9])
async def test_a_forwarder_whose_frame_is_refused_gets_the_reason_and_no_second_try(
    house: House, frame: bytes
) -> None:
    async with trio.open_nursery() as nursery:
        ours, theirs = memory_stream_pair()
        nursery.start_soon(house.owner.serve, theirs, None)
        forwarder = Forwarder(ours)
        await forwarder.hello()
        await forwarder.send(frame)
        refused = await forwarder.next()
        assert isinstance(refused, Refused)
        assert (refused.first, type(refused.error)) == (-1, ConfigError)
        assert await forwarder.next() is None


async def test_an_owner_that_leaves_answers_what_it_took_and_says_goodbye(house: House) -> None:
    async with trio.open_nursery() as nursery:
        ours, theirs = memory_stream_pair()
        nursery.start_soon(house.owner.serve, theirs, None)
        forwarder = Forwarder(ours)
        await forwarder.hello()
        await forwarder.send(encode_records(Records(0, [b"a"])))
        await wait_all_tasks_blocked()
        nursery.start_soon(house.owner.leave)
        assert isinstance(await forwarder.next(), Appended)
        assert await forwarder.next() is FrameKind.LEAVING
        assert await forwarder.next() is None


async def test_a_forwarder_that_reads_no_answer_is_not_read_either_and_holds_up_nobody(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlog.forwarding.owner.ANSWER_BYTES_MAX", 100)
    answer = ForwarderConnection._answer
    sizes_of, sizes = trio.open_memory_channel[int](math.inf)

    def counted(self: ForwarderConnection, frame: bytes) -> None:
        sizes_of.send_nowait(len(frame))
        answer(self, frame)

    monkeypatch.setattr(ForwarderConnection, "_answer", counted)
    async with trio.open_nursery() as nursery:
        (slow, its), (good, other) = memory_stream_pair(), memory_stream_pair()
        closed = trio.Event()
        its.send_stream.send_all_hook = closed.wait  # as a socket whose buffer is full
        nursery.start_soon(house.owner.serve, its, None)
        nursery.start_soon(house.owner.serve, other, None)
        await slow.send_all(encode_hello(Hello("slow", OTHER, INVALID_DLSN)))
        sent = 0
        with trio.fail_after(60):
            waiting_bytes = await sizes.receive()  # of the answer to the hello
            while waiting_bytes <= 100:  # one record after the other: the store may take its time
                await slow.send_all(encode_records(Records(sent, [b"s"])))
                sent += 1
                waiting_bytes += await sizes.receive()
        taken = house.owner.window.bounds("slow")[1]
        assert taken == sent - 1
        for number in range(sent, sent + 20):
            await slow.send_all(encode_records(Records(number, [b"s"])))
            await trio.testing.wait_all_tasks_blocked(0.01)
        assert house.owner.window.bounds("slow")[1] == taken
        forwarder = Forwarder(good)
        await forwarder.hello()
        await forwarder.send(encode_records(Records(0, [b"a"])))
        assert isinstance(await forwarder.next(), Appended)
        closed.set()
        nursery.cancel_scope.cancel()
