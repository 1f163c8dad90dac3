"""Peers that ask and do not listen, a disk that does not keep up: the bookie's memory stays bounded."""

# covers: bookie/server/server_parts.py

from __future__ import annotations

import logging
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import trio
import trio.testing
from trio.testing import MockClock, memory_stream_pair, wait_all_tasks_blocked

from bookie.journal.group_commit import OnDurable, WriteBatch
from bookie.ledger_record import LedgerRecord
from bookie.requests.session import BookieService
from bookie.server.config import ServerConfig
from bookie.server.server import Server
from ledger.codes import Code
from ledger.digest import DigestType, EntryCodec, master_key
from ledger.wire import v2
from ledger.wire.messages import AddRequest, BatchReadRequest, ReadRequest

ENTRIES = EntryCodec(DigestType.CRC32C, b"pass")
KEY = master_key(b"pass")
ENTRY = ENTRIES.pack(1, 0, -1, 10_000, bytes(10_000))
MIB = 1 << 20


class SlowDisk:
    """A storage with one ledger, of which some entries are in memory. The test gives capacity and syncs."""

    def __init__(self) -> None:
        self.record = LedgerRecord(1, KEY)
        self.record.last_entry_id = 1_000_000
        self.staged = 0
        self.staged_bytes = 0
        self.bytes_max = 1 << 62
        self.runs: list[OnDurable] = []
        self.room = trio.Event()
        self.reading = 0
        self.reading_most = 0

    def ledger(self, ledger_id: int) -> LedgerRecord:
        return self.record

    def new_batch(self) -> WriteBatch:
        return WriteBatch()

    def stage_entry(
        self, batch: WriteBatch, ledger: LedgerRecord, entry_id: int, lac: int, body: bytes
    ) -> None:
        batch.records[0].append(body)
        self.staged += 1
        self.staged_bytes += len(body)

    def find_entry(self, ledger: LedgerRecord, entry_id: int) -> bool:
        return False

    def submit(self, batch: WriteBatch, on_durable: OnDurable, *, sync: bool = True) -> None:
        self.runs.append(on_durable)

    must_wait = True

    async def wait_capacity(self) -> None:
        while self.staged_bytes >= self.bytes_max:
            await self.room.wait()

    def drain(self) -> None:
        """The disk has written everything."""
        self.staged_bytes = 0
        runs, self.runs = self.runs, []
        for on_durable in runs:
            on_durable(None)
        self.room.set()
        self.room = trio.Event()

    def read_cached(self, ledger_id: int, entry_id: int) -> bytes | None:
        return ENTRY if entry_id % 2 else None

    async def read(self, ledger_id: int, entry_id: int) -> bytes:
        self.reading += 1
        self.reading_most = max(self.reading_most, self.reading)
        await trio.lowlevel.checkpoint()
        self.reading -= 1
        return ENTRY

    async def read_batch(
        self, ledger_id: int, first: int, count_max: int, size_bytes_max: int
    ) -> list[bytes]:
        await trio.lowlevel.checkpoint()
        return [ENTRY] * max(1, min(count_max, size_bytes_max // (len(ENTRY) + 4)))


class DeafPeer(trio.abc.Stream):
    """It asks for ever and takes so many bytes of its answers, then none."""

    def __init__(self, requests: bytes, *, takes_bytes: int = 0, asks_bytes: int = 1 << 62) -> None:
        self.requests = requests
        self.takes_bytes = takes_bytes
        self.asks_bytes = asks_bytes
        self.asked_bytes = 0
        self.is_closed = False

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        left = min(max_bytes or 65536, self.asks_bytes - self.asked_bytes)
        if left <= 0:
            await trio.sleep_forever()
        start = self.asked_bytes % len(self.requests)
        chunk = self.requests[start : start + left]
        self.asked_bytes += len(chunk)
        return chunk

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        if len(data) > self.takes_bytes:
            await trio.sleep_forever()
        self.takes_bytes -= len(data)

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        self.is_closed = True


def reads(seed: int = 0) -> bytes:
    rng = random.Random(seed)
    return b"".join(v2.encode_request(ReadRequest(1, rng.randrange(1000))) for _ in range(5000))


def server_over(disk: SlowDisk, **config: object) -> Server:
    return Server(BookieService(disk), ServerConfig(**config))  # type: ignore[arg-type]


@pytest.mark.slow
async def test_a_thousand_peers_that_never_read_their_answers_hold_bounded_memory_and_go(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    disk = SlowDisk()
    server = server_over(disk, total_bytes_max=16 * MIB, share_bytes_min=32 << 10)
    requests = reads()
    peers = [DeafPeer(requests) for _ in range(1000)]
    for peer in peers:
        nursery.start_soon(server.serve_stream, peer)
    await wait_all_tasks_blocked()
    each = (32 << 10) + 2 * len(ENTRY) + 8192
    assert server.memory.used_bytes > 8 * MIB
    assert server.memory.used_bytes_peak <= 16 * MIB + 1000 * each
    assert max(peer.asked_bytes for peer in peers[100:]) < 256 << 10
    # A peer that reads its replies is served meanwhile.
    ours, theirs = memory_stream_pair()
    nursery.start_soon(server.serve_stream, theirs)
    answered = 0
    for entry_id in range(100):
        await ours.send_all(v2.encode_request(ReadRequest(1, entry_id)))
        data = b""
        while len(data) < 4 + 24 + len(ENTRY):
            data += await ours.receive_some(1 << 20)
        answered += v2.decode_reply(data, 4, len(data)).reply.code is Code.OK
    assert answered == 100
    await ours.aclose()
    # The peers that hold everything and read nothing are closed, so that all memory is given back.
    await trio.sleep(25)
    assert sum(peer.is_closed for peer in peers) > 400
    assert not server.memory.is_tight
    nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_batches_for_a_peer_that_does_not_read_become_short(nursery: trio.Nursery) -> None:
    disk = SlowDisk()
    server = server_over(disk, total_bytes_max=8 * MIB)
    batches = v2.encode_request(BatchReadRequest(1, 0, 7, count_max=0, size_bytes_max=5 * MIB)) * 1000
    for _ in range(60):
        nursery.start_soon(server.serve_stream, DeafPeer(batches))
    await wait_all_tasks_blocked()
    assert server.memory.used_bytes_peak <= 8 * MIB + 60 * (3 * 65_536 + len(ENTRY))
    nursery.cancel_scope.cancel()


async def test_frames_that_never_end_are_not_kept_for_ever(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    server = server_over(SlowDisk(), total_bytes_max=8 * MIB)
    half = (5 * MIB - 4).to_bytes(4, "big") + bytes(4 * MIB)
    peers = [DeafPeer(half, asks_bytes=4 * MIB) for _ in range(50)]
    for peer in peers:
        nursery.start_soon(server.serve_stream, peer)
    await wait_all_tasks_blocked()
    assert server.memory.used_bytes_peak <= 8 * MIB + 50 * (65_536 + 131_072)
    await trio.sleep(11)
    assert sum(peer.is_closed for peer in peers) > 40
    assert not server.memory.is_exhausted
    nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_slow_disk_slows_its_writers_and_not_the_readers(nursery: trio.Nursery) -> None:
    disk = SlowDisk()
    disk.bytes_max = MIB
    server = server_over(disk)
    add = v2.encode_request(AddRequest(1, 0, KEY, ENTRY))
    writers = [DeafPeer(add * 100, takes_bytes=1 << 40) for _ in range(100)]
    for writer in writers:
        nursery.start_soon(server.serve_stream, writer)
    await wait_all_tasks_blocked()
    first = disk.staged_bytes
    # Each may bring one chunk before the bookie knows that it writes.
    assert first <= MIB + 100 * 131_072
    for _ in range(5):
        disk.drain()
        await wait_all_tasks_blocked()
        assert disk.staged_bytes <= MIB + 131_072, (
            "one connection takes the capacity, and the others check again"
        )
        assert disk.staged_bytes >= MIB
    ours, theirs = memory_stream_pair()
    nursery.start_soon(server.serve_stream, theirs)
    await ours.send_all(v2.encode_request(ReadRequest(1, 1)))
    with trio.fail_after(30):
        assert await ours.receive_some(1 << 20), "the disk has no room, and a read needs none"
    nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_limits_of_adds_and_reads_in_progress_hold_the_sender_back(nursery: trio.Nursery) -> None:
    disk = SlowDisk()
    server = server_over(disk, adds_in_progress_max=20, reads_in_progress_max=20, receive_bytes=12_000)
    add = v2.encode_request(AddRequest(1, 0, KEY, ENTRY))
    for _ in range(5):
        nursery.start_soon(server.serve_stream, DeafPeer(add * 10, takes_bytes=1 << 40))
    await wait_all_tasks_blocked()
    in_progress = server.service.in_progress
    assert 20 <= in_progress.adds <= 25
    for _ in range(10):
        disk.drain()
        await wait_all_tasks_blocked()
        assert 20 <= in_progress.adds <= 25
    assert disk.staged > 200
    miss = v2.encode_request(ReadRequest(1, 2))
    for _ in range(5):
        nursery.start_soon(server.serve_stream, DeafPeer(miss * 10))
    await wait_all_tasks_blocked()
    assert in_progress.reads < 20 + 5 * 500
    assert disk.reading_most <= 40
    nursery.cancel_scope.cancel()
    await wait_all_tasks_blocked()


async def test_whoever_waits_for_adds_of_others_to_end_gets_his_turn(nursery: trio.Nursery) -> None:
    disk = SlowDisk()
    add = v2.encode_request(AddRequest(1, 0, KEY, ENTRY))
    server = server_over(disk, adds_in_progress_max=1, receive_bytes=len(add))
    for _ in range(3):
        nursery.start_soon(server.serve_stream, DeafPeer(add, takes_bytes=1 << 40, asks_bytes=2 * len(add)))
    await wait_all_tasks_blocked()
    assert disk.staged == 3, "the bookie did not know that they write"
    for staged in (4, 5, 6):
        disk.drain()
        await wait_all_tasks_blocked()
        assert disk.staged == staged
    nursery.cancel_scope.cancel()


async def test_a_peer_with_many_slow_reads_is_read_on_when_they_are_fewer(nursery: trio.Nursery) -> None:
    miss = v2.encode_request(ReadRequest(1, 2))
    server = server_over(SlowDisk(), deferred_queue_max=4, receive_bytes=10 * len(miss))
    peer = DeafPeer(miss * 10, takes_bytes=1 << 40, asks_bytes=100 * len(miss))
    nursery.start_soon(server.serve_stream, peer)
    await wait_all_tasks_blocked()
    answered_bytes = (1 << 40) - peer.takes_bytes
    assert answered_bytes == 100 * (4 + 24 + len(ENTRY))
    assert server.memory.used_bytes == 0
    nursery.cancel_scope.cancel()


async def test_one_worker_stays_for_a_peer_that_reads_from_disk_and_no_more(nursery: trio.Nursery) -> None:
    server = server_over(SlowDisk())
    ours, theirs = memory_stream_pair()
    nursery.start_soon(server.serve_stream, theirs)
    await wait_all_tasks_blocked()
    before = trio.lowlevel.current_statistics().tasks_living
    miss = v2.encode_request(ReadRequest(1, 2))
    for count in (1, 5, 1, 20, 1):
        for _ in range(count):
            await ours.send_all(miss)
        left = count * (4 + 24 + len(ENTRY))
        while left:
            left -= len(await ours.receive_some(left))
        await wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().tasks_living == before + 1
    assert server.service.in_progress.reads == 0
    await ours.aclose()
    await wait_all_tasks_blocked()
    assert trio.lowlevel.current_statistics().tasks_living == before - 2
    nursery.cancel_scope.cancel()


async def test_slow_reads_are_done_by_a_few_hands_at_once(nursery: trio.Nursery) -> None:
    disk = SlowDisk()
    server = server_over(disk, deferred_workers_max=3, receive_bytes=24)
    miss = v2.encode_request(ReadRequest(1, 2))
    for _ in range(2):  # none of them idle, then one
        ours, theirs = memory_stream_pair()
        nursery.start_soon(server.serve_stream, theirs)
        for count in (100, 100):
            disk.reading_most = 0
            await ours.send_all(miss * count)
            await wait_all_tasks_blocked()
            assert 1 <= disk.reading_most <= 3
            assert len(await ours.receive_some(1 << 30)) == count * (4 + 24 + len(ENTRY))
    nursery.cancel_scope.cancel()


async def test_a_response_timeout_closes_who_takes_nothing_and_nobody_else(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    server = server_over(SlowDisk(), response_timeout_s=2)
    deaf = DeafPeer(reads(), asks_bytes=1000)
    quiet = DeafPeer(b"x", asks_bytes=0)
    listening = DeafPeer(reads(), asks_bytes=1000, takes_bytes=1 << 40)
    for peer in (deaf, quiet, listening):
        nursery.start_soon(server.serve_stream, peer)
    await trio.sleep(10)
    assert (deaf.is_closed, quiet.is_closed, listening.is_closed) == (True, False, False)
    assert server.service.in_progress.reads == 0
    nursery.cancel_scope.cancel()


class DeafReads:
    """Peers of a server whose memory ten of them fill; each asks for 2 MB and takes nothing."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.server = server_over(SlowDisk(), total_bytes_max=16 * MIB, share_bytes_min=2 * MIB)
        self._nursery = nursery
        self._requests = reads()

    def connect(self, *, takes_bytes: int = 0, asks_bytes: int = 4800) -> DeafPeer:
        peer = DeafPeer(self._requests, takes_bytes=takes_bytes, asks_bytes=asks_bytes)
        self._nursery.start_soon(self.server.serve_stream, peer)
        return peer


async def test_who_stood_still_long_before_memory_became_tight_has_a_whole_period_from_then(
    nursery: trio.Nursery, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="bookie.server")
    deaf = DeafReads(nursery)
    first, quiet = deaf.connect(), deaf.connect(asks_bytes=0)
    await trio.sleep(1000)
    assert deaf.server.memory.used_bytes > MIB
    assert not first.is_closed, "no other connection needs the memory"
    others = [deaf.connect() for _ in range(9)]
    await trio.sleep(1)
    was_tight = deaf.server.memory.is_tight
    late = deaf.connect()
    await trio.sleep(8)
    assert not first.is_closed
    await trio.sleep(3)
    assert all(peer.is_closed for peer in (first, *others))
    assert (was_tight, deaf.server.memory.is_tight) == (True, False)
    assert (late.is_closed, quiet.is_closed) == (False, False)
    stalled = [record for record in caplog.records if "took none of the" in record.getMessage()]
    details = [record for record in stalled if record.levelno == logging.DEBUG]
    assert len(details) == 10, "each ends for its own reason, and says so"
    assert all("connection closed" in record.getMessage() for record in details)
    assert len(stalled) == 11, "an operator's log gets one line for all"
    nursery.cancel_scope.cancel()


async def test_memory_that_becomes_tight_again_has_its_peers_watched_again(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    deaf = DeafReads(nursery)
    early = deaf.connect(asks_bytes=24)
    for _ in range(3):
        deaf.server.memory.take(15 * MIB)
        await trio.sleep(5)
        deaf.server.memory.give_back(15 * MIB)
        await trio.sleep(15)
    assert not early.is_closed, "it was not tight for a whole period"
    deaf.server.memory.take(15 * MIB)
    during = deaf.connect(asks_bytes=24)
    await trio.sleep(21)
    assert (early.is_closed, during.is_closed) == (True, True)
    deaf.server.memory.give_back(15 * MIB)
    assert deaf.server.memory.used_bytes == 0
    nursery.cancel_scope.cancel()


async def test_a_connection_is_one_sending_and_one_receiving_task_while_memory_is_plenty(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    deaf = DeafReads(nursery)
    memory = deaf.server.memory
    before = trio.lowlevel.current_statistics().tasks_living
    for _ in range(50):
        deaf.connect(asks_bytes=0)
    await wait_all_tasks_blocked()
    assert trio.lowlevel.current_statistics().tasks_living == before + 100
    memory.take(16 * MIB)
    memory.give_back(16 * MIB)
    memory.take(16 * MIB)
    await wait_all_tasks_blocked()
    assert trio.lowlevel.current_statistics().tasks_living == before + 150
    memory.give_back(16 * MIB)
    await trio.sleep(11)
    assert trio.lowlevel.current_statistics().tasks_living == before + 100
    nursery.cancel_scope.cancel()
    with trio.CancelScope(shield=True):
        await wait_all_tasks_blocked()
    assert deaf.server.connections_count == 0
    assert not deaf.server._unwatched, "nothing remembers a connection that has ended"


_BOOKIE = """
import sys, trio
from pathlib import Path
from bookie.bookie import open_bookie
from bookie.server.config import ServerConfig
from bookie.storage.config import StorageConfig

async def main(directory):
    config = StorageConfig(journal_directories=[directory / "j"], ledger_directories=[directory / "l"])
    async with open_bookie(config, server_config=ServerConfig(total_bytes_max=32 << 20)) as bookie:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        print(listeners[0].socket.getsockname()[1], flush=True)
        await bookie.serve_listeners(listeners)

trio.run(main, Path(sys.argv[1]))
"""


@pytest.mark.slow
async def test_the_memory_of_a_real_process_stays_bounded_under_a_thousand_deaf_peers(tmp_path: Path) -> None:
    """Without the bounds it would hold a thousand times 5 MB."""
    process = await trio.lowlevel.open_process(
        [sys.executable, "-c", _BOOKIE, str(tmp_path)], stdout=subprocess.PIPE
    )
    streams: list[trio.SocketStream] = []

    def resident_bytes() -> int:
        fields = Path(f"/proc/{process.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")

    try:
        assert process.stdout is not None
        port = int(await process.stdout.receive_some(100))
        writer = await trio.open_tcp_stream("127.0.0.1", port)
        body = ENTRIES.pack(1, 0, -1, 50_000, bytes(50_000))
        await writer.send_all(v2.encode_request(AddRequest(1, 0, KEY, body)))
        assert await writer.receive_some(100)
        before = resident_bytes()
        asks = v2.encode_request(ReadRequest(1, 0)) * 100
        for _ in range(1000):
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            streams.append(stream)
            await stream.send_all(asks)
        most = 0
        for entry_id in range(1, 60):  # it serves meanwhile
            await writer.send_all(
                v2.encode_request(AddRequest(1, entry_id, KEY, ENTRIES.pack(1, entry_id, 0, 1, b"x")))
            )
            assert await writer.receive_some(100)
            most = max(most, resident_bytes())
        assert most - before < (32 + 128 + 80) << 20, f"{before >> 20} MiB became {most >> 20} MiB"
        await writer.aclose()
    finally:
        for stream in streams:
            await trio.aclose_forcefully(stream)
        process.kill()
        await process.wait()
