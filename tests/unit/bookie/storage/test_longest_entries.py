"""Entries up to the longest that the formats have are kept like others; of longer ones nothing is stored."""

# covers: bookie/limits.py
# covers: bookie/storage/dirty_marks.py

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import memory_stream_pair

from bookie.bookie import Bookie, open_bookie
from bookie.damage.consistency_check import check_directory
from bookie.disk.real_disk import RealDisk
from bookie.entrylog.writer import EntryLogWriter
from bookie.errors import StorageFailedError
from bookie.healing import integrity
from bookie.index.index_view import open_index_view
from bookie.journal.format import LAC_PACKET_BYTES_MAX
from bookie.ledger_record import LedgerRecord
from bookie.limits import RECORD_BYTES_MAX
from bookie.requests.session import BookieService
from bookie.server.config import ServerConfig
from bookie.storage.config import StorageConfig
from bookie.storage.opening import open_storage
from ledger.codes import Code
from ledger.wire import v2, v3
from ledger.wire.frame import FrameBuffer
from ledger.wire.messages import (
    AddReply,
    AddRequest,
    ReadReply,
    ReadRequest,
    Reply,
    Request,
    WriteLacReply,
    WriteLacRequest,
)
from tests.fakes.bookies_by_hand import open_bookies
from tests.fakes.logs_by_hand import COMPACTION, collect
from tests.fakes.service_by_hand import KEY, HandDisk, add
from tests.fakes.storage_by_hand import kill

FRAME_OF_PULSAR = 5_253_120  # nettyMaxFrameSizeBytes as Apache Pulsar ships it
ADD_OVERHEAD_BYTES = 28  # of a frame of version 2
LONG = (5_242_881, FRAME_OF_PULSAR - ADD_OVERHEAD_BYTES, RECORD_BYTES_MAX - ADD_OVERHEAD_BYTES)
LARGE_FRAMES = ServerConfig(frame_bytes_max=RECORD_BYTES_MAX)


def body_of(ledger_id: int, entry_id: int, size: int) -> bytes:
    return struct.pack(">qqq", ledger_id, entry_id, entry_id - 1).ljust(size, b"%d" % entry_id)


BODIES = [body_of(1, entry_id, size) for entry_id, size in enumerate(LONG)]


def config_for(directory: Path) -> StorageConfig:
    return StorageConfig(
        journal_directories=(directory / "j",),
        ledger_directories=(directory / "l",),
        compaction=attrs.evolve(COMPACTION, slice_bytes=256 << 10),
        flush_interval_s=3600,
    )


async def ask(bookie: Bookie, *requests: Request) -> list[Reply]:
    ours, theirs = memory_stream_pair()
    buffer = FrameBuffer(2 * RECORD_BYTES_MAX)
    replies: list[Reply] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bookie.serve_stream, theirs)
        nursery.start_soon(ours.send_all, b"".join(map(v2.encode_request, requests)))
        while len(replies) < len(requests):
            data, spans = buffer.feed(bytes(await ours.receive_some(1 << 20)))
            replies += [v2.decode_reply(data, *span).reply for span in spans]
        nursery.cancel_scope.cancel()
    return replies


async def add_long(bookie: Bookie) -> None:
    adds = [AddRequest(1, entry_id, KEY, body) for entry_id, body in enumerate(BODIES)]
    assert await ask(bookie, *adds) == [AddReply(Code.OK, 1, entry_id) for entry_id in range(len(BODIES))]


async def read_long(bookie: Bookie) -> list[bytes | None]:
    replies = await ask(bookie, *[ReadRequest(1, entry_id) for entry_id in range(len(BODIES))])
    bodies = {reply.entry_id: reply.body for reply in replies if isinstance(reply, ReadReply)}
    return [bodies[entry_id] for entry_id in sorted(bodies)]


@pytest.mark.slow
async def test_long_entries_survive_a_kill_and_are_read_under_a_lower_limit(tmp_path: Path) -> None:
    with contextlib.suppress(StorageFailedError):
        async with open_bookie(config_for(tmp_path), server_config=LARGE_FRAMES) as bookie:
            await add_long(bookie)
            assert await read_long(bookie) == BODIES, "out of memory"
            await kill(bookie.storage)
            await trio.sleep_forever()
    # Without this note a journal that cannot be read to its end would pass for a torn one.
    (tmp_path / "j/current/lastSynced").unlink()
    async with open_bookie(config_for(tmp_path)) as bookie:
        assert await read_long(bookie) == BODIES, "replayed"
        await bookie.storage.flush()
        assert bookie.storage.read_cached(1, 0) is None
        assert await read_long(bookie) == BODIES, "from the log"
        assert await bookie.storage.read_batch(1, 0, 2, 1 << 30) == BODIES[:2]
    async with open_bookie(config_for(tmp_path)) as bookie:
        assert await read_long(bookie) == BODIES, "after a restart"


@pytest.mark.slow
async def test_long_entries_are_compacted_scrubbed_checked_and_found_by_a_rebuild(tmp_path: Path) -> None:
    config, directory = config_for(tmp_path), tmp_path / "l/current"
    async with open_bookie(config, server_config=LARGE_FRAMES) as bookie:
        storage = bookie.storage
        await ask(bookie, *[AddRequest(2, n, KEY, body_of(2, n, 1 << 20)) for n in range(8)])
        await add_long(bookie)
        await storage.flush()
        writer = storage.stores[0].files.writer
        await storage.stores[0].in_thread(writer.close)
        await storage.delete_ledger(2)
        collector = await collect(storage)
        assert (collector.stats.compacted_logs, collector.stats.failures) == (1, 0)
        assert collector.stats.live_bytes == sum(LONG) + 4 * len(LONG)
        assert await read_long(bookie) == BODIES
        assert await storage.stores[0].scrubber.scrub(throttled=False) == []
    problems: list[str] = []
    view = open_index_view(RealDisk(), directory)
    checked = check_directory(
        RealDisk(), directory, view, on_problem=problems.append, on_progress=lambda count: None
    )
    view.close()
    assert (checked.entries, problems) == (len(BODIES), [])
    (directory / "index").rename(tmp_path / "lost")
    async with open_bookie(attrs.evolve(config, rebuild_index=True)) as bookie:
        assert await read_long(bookie) == BODIES


@pytest.mark.slow
async def test_the_longest_entry_and_lac_packet_of_all_are_read_back(tmp_path: Path) -> None:
    longest, packet = body_of(1, 0, RECORD_BYTES_MAX), body_of(1, 0, LAC_PACKET_BYTES_MAX)
    async with open_storage(RealDisk(), config_for(tmp_path)) as storage:
        batch = storage.new_batch()
        storage.stage_explicit_lac(batch, storage.create_ledger(batch, 1, KEY), packet)
        storage.stage_entry(batch, storage._ledgers[1], 0, -1, longest)
        await storage.submit_durably(batch)
        await kill(storage)
    async with open_storage(RealDisk(), config_for(tmp_path)) as storage:
        await storage.flush()
        assert await storage.read(1, 0) == longest
        record = storage.ledger(1)
        assert record is not None
        assert record.explicit_lac == packet


# What is too long


def handed(service: BookieService, *frames: bytes) -> list[Reply]:
    """A session's answers, whatever the limit of frames in front of it is."""
    data, out = b"".join(frames), bytearray()
    spans, at = [], 0
    for one in frames:
        spans.append((at + 4, at + len(one)))
        at += len(one)
    service.open_session(out.extend, lambda slow: None).handle(data, spans)
    service.storage.sync()  # type: ignore[attr-defined]
    answers, spans = FrameBuffer().feed(bytes(out))
    return [
        (v2 if answers[start] < v3.FIRST_BYTE_MIN else v3).decode_reply(answers, start, end).reply
        for start, end in spans
    ]


@pytest.mark.slow
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("recovery", [False, True])
@pytest.mark.parametrize("is_known", [False, True])
def test_of_an_entry_too_long_nothing_is_stored_whatever_the_frame_limit(
    service: BookieService, disk: HandDisk, version: int, recovery: bool, is_known: bool
) -> None:
    encode = v2.encode_request if version == 2 else v3.encode_request
    if is_known:
        disk.ledgers[1] = LedgerRecord(1, KEY)
    too_long = AddRequest(1, 7, KEY, body_of(1, 7, RECORD_BYTES_MAX + 1), recovery=recovery)
    assert handed(service, encode(too_long)) == [AddReply(Code.BAD_REQUEST, 1, 7)]
    assert (disk.entries, disk.staged, disk.ledgers) == ({}, [], {1: disk.ledgers[1]} if is_known else {})
    longest = AddRequest(1, 7, KEY, body_of(1, 7, RECORD_BYTES_MAX), recovery=recovery)
    assert handed(service, encode(longest)) == [AddReply(Code.OK, 1, 7)]
    assert disk.entries == {(1, 7): longest.body}


def test_an_entry_too_long_is_refused_alone_among_others_of_its_chunk(
    service: BookieService, disk: HandDisk
) -> None:
    disk.ledgers[1] = LedgerRecord(1, KEY)
    adds = [add(1, 0), AddRequest(1, 1, KEY, body_of(1, 1, RECORD_BYTES_MAX + 1)), add(1, 2)]
    replies = handed(service, *map(v2.encode_request, adds))
    assert sorted(replies, key=lambda reply: reply.entry_id) == [  # type: ignore[union-attr]
        AddReply(Code.OK, 1, 0),
        AddReply(Code.BAD_REQUEST, 1, 1),
        AddReply(Code.OK, 1, 2),
    ]
    assert list(disk.entries) == [(1, 0), (1, 2)]


@pytest.mark.slow
def test_of_an_explicit_lac_too_long_nothing_is_stored(service: BookieService, disk: HandDisk) -> None:
    for size, code in ((LAC_PACKET_BYTES_MAX + 1, Code.BAD_REQUEST), (LAC_PACKET_BYTES_MAX, Code.OK)):
        packet = body_of(1, 5, size)
        request = WriteLacRequest(1, 5, KEY, packet)
        assert handed(service, v3.encode_request(request)) == [WriteLacReply(code, 1)]
        assert list(disk.ledgers) == ([1] if code is Code.OK else [])
    assert disk.ledgers[1].explicit_lac == packet


@pytest.mark.slow
async def test_the_journal_takes_no_record_longer_than_a_replay_accepts(tmp_path: Path) -> None:
    one_journal, two = config_for(tmp_path / "1"), config_for(tmp_path / "2")
    two = attrs.evolve(two, journal_directories=(tmp_path / "2/a", tmp_path / "2/b"))
    for config in (one_journal, two):
        async with open_storage(RealDisk(), config) as storage:
            batch = storage.new_batch()
            storage.create_ledger(batch, 1, KEY)
            await storage.submit_durably(batch)
            journaled = storage.progress
            batch = storage.new_batch()
            batch.records[-1].append(bytes(RECORD_BYTES_MAX + 1))
            with pytest.raises(StorageFailedError, match="longer than a replay accepts"):
                storage.submit(batch, lambda error: None)
            with pytest.raises(StorageFailedError, match="longer than a replay accepts"):
                await storage.submit_durably(storage.new_batch())
            assert storage.progress == journaled, "nothing but what had been there"


def test_an_entry_log_takes_no_entry_longer_than_a_reader_accepts(tmp_path: Path) -> None:
    writer = EntryLogWriter(RealDisk(), tmp_path, log_bytes_max=1 << 30)
    with pytest.raises(AssertionError, match="longer than a reader accepts"):
        list(writer.append({1: {0: body_of(1, 0, RECORD_BYTES_MAX + 1)}}))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
async def test_a_repair_leaves_entries_out_that_are_longer_than_can_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_bookies(tmp_path, "b1:1", "b2:1", "b3:1") as bookies:
        async with bookies.open_client() as client:
            writer = await client.create(write_quorum=3, ack_quorum=3)
            await writer.append_many([b"0", b"1" * 500, b"2", b"3"])
            await writer.close()
        tried = trio.Event()
        monkeypatch.setattr(integrity.log, "warning", lambda *arguments: tried.set())
        monkeypatch.setattr(integrity, "RECORD_BYTES_MAX", 500)
        life = await bookies.replace("b1:1")
        with trio.fail_after(60):
            await tried.wait()
        assert await bookies.entry_ids("b1:1", writer.ledger_id) == [0, 2, 3]
        assert bookies.is_in_limbo("b1:1", writer.ledger_id)
        assert "entry 1 of 5" in str(life.repair.stats.last_failure)
        assert "longer than this bookie can store" in str(life.repair.stats.last_failure)
        monkeypatch.setattr(integrity, "RECORD_BYTES_MAX", 600)
        with trio.fail_after(60):
            await life.repaired.wait()
        assert await bookies.entry_ids("b1:1", writer.ledger_id) == [0, 1, 2, 3]


def test_no_server_takes_frames_that_hold_more_than_can_be_kept() -> None:
    with pytest.raises(ValueError, match="frame_bytes_max"):
        ServerConfig(frame_bytes_max=RECORD_BYTES_MAX + 1)
