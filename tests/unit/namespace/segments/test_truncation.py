"""Which segments truncation marks, and where readers start afterwards."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
import trio

import dlog
from dlog import DLSN
from namespace.segments.segment import LogSegment, TruncationStatus
from namespace.segments.truncation import marked_before

ACTIVE, PARTIAL, GONE = (
    TruncationStatus.ACTIVE,
    TruncationStatus.PARTIALLY_TRUNCATED,
    TruncationStatus.TRUNCATED,
)


def segment(seqno: int, *, in_progress: bool = False, version: int = 5) -> LogSegment:
    """A completed segment with the entries 0 to 2 of two records each."""
    its = LogSegment(segment_seqno=seqno, ledger_id=seqno, first_txid=seqno, version=version)
    if in_progress:
        return its
    return its.completed(
        last_txid=seqno, record_count=6, last_entry_id=2, last_slot_id=1, completed_ms=1, start_sequence_id=0
    )


def marks(segments: list[LogSegment], first_kept: DLSN) -> list[tuple[int, TruncationStatus]]:
    return [(each.segment_seqno, each.truncation) for each in marked_before(segments, first_kept)]


@pytest.mark.parametrize(
    ("first_kept", "expected"),
    [
        (DLSN(0, -1, -1), []),
        (DLSN(1, 0, 0), []),
        (DLSN(1, 0, 1), [(1, PARTIAL)]),
        (DLSN(1, 2, 1), [(1, PARTIAL)]),
        (DLSN(1, 2, 2), [(1, GONE)]),
        (DLSN(2, 0, 0), [(1, GONE)]),
        (DLSN(2, 1, 0), [(1, GONE), (2, PARTIAL)]),
        (DLSN(9, 0, 0), [(1, GONE), (2, GONE)]),
    ],
)
def test_completed_segments_before_the_position_are_marked(
    first_kept: DLSN, expected: list[tuple[int, TruncationStatus]]
) -> None:
    assert marks([segment(1), segment(2), segment(3, in_progress=True)], first_kept) == expected


def test_the_mark_holds_the_first_record_kept() -> None:
    (marked,) = marked_before([segment(1)], DLSN(1, 1, 1))
    assert marked == segment(1).partially_truncated(DLSN(1, 1, 1))
    assert marked.min_active_dlsn == DLSN(1, 1, 1)


def test_marks_only_move_forward() -> None:
    partial, gone = segment(2).partially_truncated(DLSN(2, 1, 0)), segment(1).truncated()
    assert marked_before([gone, partial], DLSN(1, 1, 0)) == []
    assert marked_before([gone, partial], DLSN(2, 0, 1)) == []
    assert marked_before([gone, partial], DLSN(2, 1, 0)) == []
    assert marked_before([gone, partial], DLSN(2, 1, 1)) == [segment(2).partially_truncated(DLSN(2, 1, 1))]
    assert [each.truncation for each in marked_before([gone, partial], DLSN(3, 0, 0))] == [GONE]


def test_a_mark_of_a_newer_release_stays() -> None:
    unknown = attrs.evolve(segment(1), truncation=TruncationStatus.UNKNOWN)
    assert marked_before([unknown, segment(2)], DLSN(3, 0, 0)) == [segment(2).truncated()]


def test_metadata_too_old_for_a_mark_gets_none() -> None:
    assert marked_before([segment(1, version=1)], DLSN(2, 0, 0)) == []
    assert marked_before([segment(1, version=2)], DLSN(1, 1, 0)) == []
    assert marked_before([segment(1, version=2)], DLSN(2, 0, 0)) == [segment(1, version=2).truncated()]


ROLLED = dlog.NamespaceConfig(writer=dlog.WriterConfig(segment_bytes_max=1, segment_age_s_max=None))


async def read(namespace: dlog.Namespace, start: DLSN | int | dlog.Start = dlog.EARLIEST) -> list[bytes]:
    async with namespace.open_reader("log", start=start, follow=False) as reader:
        return [record.payload async for record in reader]


@pytest.mark.slow
async def test_readers_begin_at_the_first_record_kept(tmp_path: Path) -> None:
    async with dlog.open_namespace(f"file://{tmp_path}") as namespace:
        async with namespace.open_writer("log", create=True) as log:
            assert await log.truncate(DLSN(5, 0, 0)) is None
            dlsns = await log.append_many([b"a", b"b", b"c"], txids=[0, 0, 0])
        async with namespace.open_writer("log") as log:
            dlsns += await log.append_many([b"d", b"e"], txids=[1, 1])
            await log.flush()
            # The segment in use is never marked.
            assert await log.truncate(dlsns[4]) == dlsns[3]
            assert await read(namespace) == [b"d", b"e"]
            # A truncated record does not come back.
            assert await log.truncate(dlsns[1]) == dlsns[3]
        async with namespace.open_writer("log") as log:
            assert await log.truncate(dlsns[4]) == dlsns[4]
        assert await read(namespace) == [b"e"]
        assert await read(namespace, 0) == [b"e"]
        assert (await namespace.describe_log("log")).first_dlsn == dlsns[4]
        for gone in dlsns[:4]:
            with pytest.raises(dlog.LogTruncatedError):
                await read(namespace, gone)


@pytest.mark.slow
async def test_a_writer_continues_while_other_tasks_truncate(tmp_path: Path) -> None:
    async with dlog.open_namespace(f"file://{tmp_path}", config=ROLLED) as namespace:
        dlsns: list[DLSN] = []
        async with namespace.open_writer("log", create=True) as log:

            async def truncate() -> None:
                while len(dlsns) < 20:
                    await trio.lowlevel.checkpoint()
                    if dlsns:
                        await log.truncate(dlsns[-1])

            async with trio.open_nursery() as nursery:
                nursery.start_soon(truncate)
                for number in range(20):
                    dlsns.append(await log.append(b"%d" % number, txid=number))
        # How much was truncated so far depends on timing. Now every segment is completed.
        async with namespace.open_writer("log") as log:
            await log.truncate(dlsns[10])
        left = await read(namespace)
        assert left == [b"%d" % number for number in range(20 - len(left), 20)]
        assert 0 < len(left) <= 10


@pytest.mark.slow
async def test_a_closed_writer_truncates_nothing(tmp_path: Path) -> None:
    async with dlog.open_namespace(f"file://{tmp_path}") as namespace:
        async with namespace.open_writer("log", create=True) as log:
            await log.append(b"a")
        with pytest.raises(dlog.WriterClosedError):
            await log.truncate(DLSN(2, 0, 0))
        assert await read(namespace) == [b"a"]
