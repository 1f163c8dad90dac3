"""The floor of the loop keeps DLog's rule: the consumer gets what a majority has synced, in order, once."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from tests.bench.loop.replica import FRAME, REPLY, Backlog, Frames, RingFile, serve
from tests.bench.loop.tail import Quorum

LIMIT_S = 30


def frame(confirmed: int, records: bytes) -> bytes:
    return FRAME.pack(confirmed, len(records)) + records


class Recorder(RingFile):
    """Notes the order of writes and of what the peers got."""

    def __init__(self, seen: list[str]) -> None:
        self._seen = seen

    def write(self, data: bytes) -> None:
        self._seen.append(f"synced {data.decode()}")


def test_frames_that_arrive_in_pieces_or_together_are_cut() -> None:
    frames = Frames()
    sent = frame(0, b"one") + frame(3, b"two") + frame(6, b"")
    pieces = [frames.feed(sent[at : at + 1]) for at in range(len(sent))]
    assert b"".join(records for _, records in pieces) == b"onetwo"
    assert [confirmed for confirmed, _ in pieces if confirmed >= 0] == [0, 3, 6]
    assert frames.feed(sent) == (6, b"onetwo")
    assert frames.feed(b"") == (-1, b"")


def test_a_backlog_gives_each_confirmed_byte_once() -> None:
    backlog = Backlog()
    assert backlog.take(3) == b""  # the other replicas were faster
    backlog.add(b"onetwo")
    assert backlog.take(-1) == b"one"
    assert backlog.take(3) == b""
    assert backlog.take(6) == b"two"


async def test_a_reply_leaves_after_the_sync_and_records_leave_when_they_are_confirmed() -> None:
    seen: list[str] = []
    producer, at_replica = trio.testing.memory_stream_pair()
    to_consumer, consumer = trio.testing.memory_stream_pair()
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, at_replica, to_consumer, Recorder(seen))
            await producer.send_all(frame(0, b"one"))
            assert await producer.receive_some() == REPLY.pack(3)
            assert seen == ["synced one"]
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(trio.WouldBlock):
                to_consumer.send_stream.get_data_nowait()
            await producer.send_all(frame(3, b"two"))
            assert await consumer.receive_some() == b"one"
            assert await producer.receive_some() == REPLY.pack(6)
            await producer.send_all(frame(6, b""))
            assert await consumer.receive_some() == b"two"
            await producer.aclose()


async def test_records_gather_until_a_majority_has_synced_the_entry_before() -> None:
    pairs = [trio.testing.memory_stream_pair() for _ in range(3)]
    replicas = [theirs for _, theirs in pairs]
    quorum = Quorum([ours for ours, _ in pairs])

    async def received(number: int) -> bytes:
        return bytes(await replicas[number].receive_some())

    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(quorum.take_replies, number)
            await quorum.append([b"one"])
            await quorum.append([b"two"])
            await quorum.append([b"three"])
            assert [await received(number) for number in range(3)] == [frame(0, b"one")] * 3
            await replicas[2].send_all(REPLY.pack(3))
            await trio.testing.wait_all_tasks_blocked()
            assert quorum.confirmed == 0  # one of three
            await replicas[0].send_all(REPLY.pack(3))
            assert [await received(number) for number in range(3)] == [frame(3, b"twothree")] * 3
            await replicas[1].send_all(REPLY.pack(3)[:5])
            await replicas[1].send_all(REPLY.pack(3)[5:] + REPLY.pack(11))
            nursery.start_soon(quorum.flush)
            await trio.testing.wait_all_tasks_blocked()
            await replicas[0].send_all(REPLY.pack(11))
            assert await received(0) == frame(11, b"")
            for replica in replicas:
                await replica.aclose()


def test_a_ring_is_overwritten_and_its_size_stays(tmp_path: Path) -> None:
    ring = RingFile(tmp_path / "data", 8)
    for records in (b"abc", b"def", b"ghi"):
        ring.write(records)
    ring.close()
    assert (tmp_path / "data").read_bytes() == b"ghidef\0\0"
