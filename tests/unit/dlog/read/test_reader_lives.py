"""A reader that missed watches, while its segment is purged or its log is deleted and created again."""

from __future__ import annotations

from typing import Any

import pytest
import trio

import dlog
from namespace.segments.segment import LogSegment
from tests.fakes.log_by_hand import Log, entries_of, open_log

RELIST_S = 10.0  # the default: a reader without watches sees a change after so long


def without_watches(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    list_segments = log.read_only.segments

    async def segments(**options: Any) -> tuple[LogSegment, ...]:
        return await list_segments(**{**options, "watch": trio.Event()})

    monkeypatch.setattr(log.read_only, "segments", segments)


@pytest.mark.parametrize("number", [1, 2], ids=["the same number", "a greater number than the new log has"])
async def test_a_reader_does_not_go_on_in_a_log_created_again(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Its segment was in progress when it was listed: no list shows that it was completed."""
    async with open_log() as log:
        old = await log.begin(number, 10, entries_of(0, 3), lac=2)
        without_watches(log, monkeypatch)
        async with log.reader() as reader:
            log.ledgers[10].is_closed = True
            assert [int((await anext(reader)).payload) for _ in range(3)] == [0, 1, 2]
            await log.remove(old)
            del log.ledgers[10]
            await log.complete(await log.begin(1, 20, entries_of(5, 8), lac=2), 3)
            if number == 1:
                await log.begin(2, 21, entries_of(8, 10), lac=1)
            with pytest.raises((dlog.LogMetadataError, dlog.LogNotFoundError), match="deleted"):
                await reader.read_batch(9, wait_s=3 * RELIST_S)


async def test_a_segment_purged_under_a_reader_at_its_end_is_reported_as_truncated(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger was closed and deleted between two questions of the reader for more."""
    async with open_log() as log:
        first = await log.begin(1, 10, entries_of(0, 3), lac=2)
        without_watches(log, monkeypatch)
        async with log.reader() as reader:
            assert [int((await anext(reader)).payload) for _ in range(3)] == [0, 1, 2]
            await log.remove(first)
            await log.complete(await log.begin(2, 11, entries_of(3, 5), lac=1), 2, start=3)
            with pytest.raises(dlog.LogTruncatedError, match=r"begins at 2:0:0"):
                await reader.read_batch(9, wait_s=3 * RELIST_S)


async def test_a_change_of_the_segments_before_the_wait_for_more_is_not_missed(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_log() as log:
        await log.begin(1, 10, entries_of(0, 3), lac=2)
        list_segments, listed_s = log.read_only.segments, []

        async def segments(**options: Any) -> tuple[LogSegment, ...]:
            found = await list_segments(**{**options, "watch": trio.Event()})
            listed_s.append(trio.current_time() - began_s)
            if len(listed_s) == 1:
                options["watch"].set()
            return found

        monkeypatch.setattr(log.read_only, "segments", segments)
        began_s = trio.current_time()
        async with log.reader() as reader:
            assert [int((await anext(reader)).payload) for _ in range(3)] == [0, 1, 2]
            await reader.read_batch(9, wait_s=0.5 * RELIST_S)
        assert len(listed_s) == 2
        assert listed_s[1] < 0.1


async def test_a_change_of_the_segments_ends_each_wait_for_more(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_log() as log:
        await log.begin(1, 10, entries_of(0, 3), lac=2)
        list_segments = log.read_only.segments
        watches: list[trio.Event] = []

        async def segments(**options: Any) -> tuple[LogSegment, ...]:
            watches.append(options["watch"])
            return await list_segments(**{**options, "watch": trio.Event()})

        monkeypatch.setattr(log.read_only, "segments", segments)
        async with log.reader() as reader:
            assert [int((await anext(reader)).payload) for _ in range(3)] == [0, 1, 2]
            for count in range(1, 6):
                await reader.read_batch(9, wait_s=0.1 * RELIST_S)
                assert len(watches) == count
                watches[-1].set()
