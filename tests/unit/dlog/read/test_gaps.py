"""Gaps: data that are gone for good are returned as a range, and data that are out of reach never are."""

# covers: dlog/read/gap_finder.py

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import trio

import dlog
from dlog.format.record import Record
from dlog.read.gaps import is_gone
from dlog.read.positioning import ID_MAX
from ledger.errors import (
    BookieTimeoutError,
    BookieUnavailableError,
    CorruptEntryError,
    IoErrorRefusal,
    LedgerError,
    LedgerReadError,
    NoEntryRefusal,
    NoLedgerRefusal,
    NoSuchEntryError,
    UnauthorizedRefusal,
    UnknownLedgerStateRefusal,
)
from namespace.cursor_nodes import Cursor
from namespace.segments.segment import LogSegment
from tests.fakes.log_by_hand import Log, entries_of, open_log


def gone(entry_id: int) -> LedgerReadError:
    return NoSuchEntryError(10, entry_id, {each: NoEntryRefusal(each, 10, entry_id) for each in ("b1", "b2")})


def damaged(entry_id: int) -> LedgerReadError:
    reasons: dict[str, Exception] = {
        "b1": CorruptEntryError(10, entry_id, "digest"),
        "b2": NoLedgerRefusal("b2", 10, entry_id),
    }
    return LedgerReadError(10, entry_id, reasons)


async def complete(log: Log, seqno: int, ledger_id: int, first: int, stop: int) -> LogSegment:
    segment = await log.begin(seqno, ledger_id, entries_of(first, stop, base=first), lac=-1)
    return await log.complete(segment, stop - first, start=first)


async def all_of(reader: dlog.LogReader) -> list[Any]:
    """The payloads as numbers, and the gaps as (cause, first, last)."""
    found: list[Any] = []
    with trio.fail_after(60):
        async for each in reader.batches(gaps=True):
            if isinstance(each, dlog.Gap):
                found.append((each.cause.name, each.first, each.last))
                assert reader.position == each.resume
                assert each.evidence
            else:
                found += [int(record.payload) for record in each]
    return found


async def test_entries_that_every_replica_denies_are_one_gap(autojump_clock: object) -> None:
    async with open_log() as log:
        await complete(log, 1, 10, 0, 8)
        for entry_id in (2, 3, 7):
            log.ledgers[10].entry_errors[entry_id] = gone(entry_id)
        log.ledgers[10].entry_errors[5] = damaged(5)
        await complete(log, 2, 20, 8, 10)
        missing = [
            ("ENTRY_MISSING", dlog.DLSN(1, first, 0), dlog.DLSN(1, last, ID_MAX))
            for first, last in [(2, 3), (5, 5), (7, 7)]
        ]
        async with log.reader(gaps=True, follow=False) as reader:
            assert await all_of(reader) == [0, 1, missing[0], 4, missing[1], 6, missing[2], 8, 9]
        async with log.reader(dlog.DLSN(1, 2, 0), gaps=True, end=dlog.DLSN(1, 4, 0)) as reader:
            assert await all_of(reader) == [missing[0], 4]


@pytest.mark.parametrize("missing", [gone, damaged])
async def test_without_gaps_missing_data_are_an_error_with_their_position_at_once(
    autojump_clock: object, missing: Callable[[int], LedgerReadError]
) -> None:
    async with open_log() as log:
        await complete(log, 1, 10, 0, 3)
        log.ledgers[10].entry_errors[1] = missing(1)
        async with log.reader(retry_timeout_s=1e6) as reader:
            assert int((await anext(reader)).payload) == 0
            with trio.fail_after(60), pytest.raises(dlog.CorruptLogError) as caught:
                await anext(reader)
            assert caught.value.position == dlog.DLSN(1, 1, 0)
            assert str(missing(1)) in caught.value.evidence
            with pytest.raises(ValueError, match="open it with gaps=True"):
                await reader.read_batch_or_gap(1)
        async with log.reader(gaps=True) as reader:
            assert int((await anext(reader)).payload) == 0
            for _ in range(2):
                with pytest.raises(dlog.CorruptLogError):
                    await anext(reader)
            with pytest.raises(dlog.CorruptLogError):
                [batch async for batch in reader.batches()]


async def test_without_gaps_a_look_that_denies_is_no_error_if_the_next_one_returns(
    autojump_clock: object,
) -> None:
    async with open_log() as log:
        await complete(log, 1, 10, 0, 3)
        log.ledgers[10].entry_errors[1] = gone(1)
        async with log.reader(follow=False) as reader:
            assert int((await anext(reader)).payload) == 0
            with trio.move_on_after(0.01):
                await anext(reader)  # the first look; the next one comes after a pause
            log.ledgers[10].entry_errors.clear()
            assert [int(each.payload) async for each in reader] == [1, 2]


async def test_without_gaps_a_completed_segment_without_its_ledger_is_an_error_at_once(
    autojump_clock: object,
) -> None:
    async with open_log() as log:
        await complete(log, 1, 10, 0, 3)
        await complete(log, 2, 20, 3, 6)
        del log.ledgers[20]
        async with log.reader(retry_timeout_s=1e6) as reader:
            assert [int((await anext(reader)).payload) for _ in range(3)] == [0, 1, 2]
            with trio.fail_after(60), pytest.raises(dlog.CorruptLogError) as caught:
                await anext(reader)
            assert caught.value.position == dlog.DLSN(2, 0, 0)


@pytest.mark.parametrize(
    "reason",
    [
        BookieUnavailableError("b2", "connection refused"),
        BookieTimeoutError("b2", "no reply"),
        IoErrorRefusal("b2", 10, 1),
        UnknownLedgerStateRefusal("b2", 10, 1),
        UnauthorizedRefusal("b2", 10, 1),
    ],
    ids=lambda reason: type(reason).__name__,
)
async def test_an_entry_that_one_replica_may_hold_is_no_gap(
    autojump_clock: object, reason: Exception
) -> None:
    async with open_log() as log:
        await complete(log, 1, 10, 0, 3)
        refused = LedgerReadError(10, 1, {"b1": NoEntryRefusal("b1", 10, 1), "b2": reason})
        assert not is_gone(refused)
        log.ledgers[10].entry_errors[1] = refused
        async with log.reader(gaps=True) as reader:
            assert await reader.read_batch_or_gap(1) == [await first_record(log)]
            with pytest.raises(dlog.LogReaderStalledError):
                await reader.read_batch_or_gap(1)


async def first_record(log: Log) -> Record:
    async with log.reader() as reader:
        return await anext(reader)


async def test_no_reply_at_all_is_no_gap() -> None:
    assert not is_gone(LedgerReadError(10, 1, {}))


@pytest.mark.parametrize("later", [None, BookieUnavailableError("b1", "gone away")])
async def test_a_second_look_that_finds_the_entry_or_no_bookie_makes_no_gap(
    autojump_clock: object, later: Exception | None
) -> None:
    """The first look had old metadata: the entry was copied to other bookies since."""
    async with open_log() as log:
        await complete(log, 1, 10, 0, 3)
        opened = 0
        open_ledger = log.open

        async def open_again(*given: Any, **options: Any) -> Any:
            nonlocal opened
            opened += 1
            if opened == 2:
                later_errors: dict[int, LedgerError] = {}
                if later is not None:
                    later_errors[1] = LedgerReadError(10, 1, {"b1": later})
                log.ledgers[10].entry_errors = later_errors
            return await open_ledger(*given, **options)

        log.ledgers[10].entry_errors[1] = gone(1)
        log.open = open_again  # type: ignore[method-assign]
        async with log.reader(gaps=True, follow=False) as reader:
            if later is None:
                assert await all_of(reader) == [0, 1, 2]
            else:
                assert [int(each.payload) for each in await reader.read_batch(9) or ()] == [0]
                with pytest.raises(dlog.LogReaderStalledError):
                    await reader.read_batch_or_gap(9)


async def test_a_reader_stops_at_an_entry_that_stays_in_doubt(autojump_clock: object) -> None:
    """Each read of the reader denies the entry, and each second look returns it."""
    async with open_log() as log:
        await complete(log, 1, 10, 0, 3)
        opened = 0
        open_ledger = log.open

        async def open_in_turn(*given: Any, **options: Any) -> Any:
            nonlocal opened
            opened += 1
            log.ledgers[10].entry_errors = {1: gone(1)} if opened % 2 else {}
            return await open_ledger(*given, **options)

        log.open = open_in_turn  # type: ignore[method-assign]
        async with log.reader(dlog.DLSN(1, 1, 0), gaps=True) as reader:
            with trio.fail_after(60), pytest.raises(dlog.CorruptLogError):
                await reader.read_batch_or_gap(9)


async def test_a_ledger_that_the_metadata_store_lost_is_a_gap_only_for_a_completed_segment(
    autojump_clock: object,
) -> None:
    async with open_log() as log:
        for number in range(3):
            await complete(log, number + 1, number + 10, number, number + 1)
        del log.ledgers[11]
        wanted = [0, ("LEDGER_MISSING", dlog.DLSN(2, 0, 0), dlog.DLSN(2, ID_MAX, ID_MAX)), 2]
        async with log.reader(gaps=True, follow=False) as reader:
            assert await all_of(reader) == wanted
        segment = await log.begin(4, 13, [], lac=-1)
        del log.ledgers[13]
        async with log.reader(gaps=True) as reader:
            with trio.fail_after(100), pytest.raises(dlog.LogReaderStalledError):
                async for _ in reader.batches(gaps=True):
                    pass
        await log.remove(segment)


async def test_an_entry_that_does_not_decode_and_positions_that_skip_records_are_gaps(
    autojump_clock: object,
) -> None:
    async with open_log() as log:
        entries = entries_of(0, 3) + entries_of(5, 7)
        entries[1] = b"\x02" + entries[1][1:]
        segment = await log.begin(1, 10, entries, lac=-1)
        await log.complete(segment, 7)
        async with log.reader(gaps=True, follow=False) as reader:
            assert await all_of(reader) == [
                0,
                ("ENTRY_DAMAGED", dlog.DLSN(1, 1, 0), dlog.DLSN(1, 1, ID_MAX)),
                2,
                ("RECORDS_MISSING", dlog.DLSN(1, 2, 1), dlog.DLSN(1, 2, ID_MAX)),
                5,
                6,
            ]


async def test_a_missing_segment_is_a_gap_and_an_error_otherwise(autojump_clock: object) -> None:
    async with open_log() as log:
        segments = [await complete(log, number, number + 10, number - 1, number) for number in (1, 2, 3, 4)]
        for segment in segments[1:3]:
            await log.remove(segment)
        with pytest.raises(dlog.LogMetadataError, match="a segment is missing"):
            async with log.reader():
                pass
        wanted = [("SEGMENT_MISSING", dlog.DLSN(2, 0, 0), dlog.DLSN(3, ID_MAX, ID_MAX)), 3]
        for start, found in [(dlog.EARLIEST, [0, *wanted]), (dlog.DLSN(2, 0, 0), wanted)]:
            async with log.reader(start, gaps=True, follow=False) as reader:
                assert await all_of(reader) == found


async def truncate(log: Log, segments: Sequence[LogSegment], position: dlog.DLSN) -> None:
    for segment in reversed(segments):
        await log.remove(segment)
        if segment.segment_seqno < position.segment_seqno:
            await log.put(segment.truncated())
        else:
            await log.put(segment.partially_truncated(position))


async def test_truncated_records_are_a_gap_at_the_start_and_beneath_a_reader(autojump_clock: object) -> None:
    async with open_log() as log:
        segments = [await complete(log, 1, 11, 0, 4), await complete(log, 2, 12, 4, 8)]
        away = LedgerReadError(11, 2, {"b1": BookieUnavailableError("b1", "away")})
        log.ledgers[11].entry_errors[2] = away
        async with log.reader(gaps=True, follow=False) as reader:
            assert isinstance(await reader.read_batch_or_gap(1), dlog.RecordBatch)
            await truncate(log, segments, dlog.DLSN(2, 1, 0))
            log.ledgers.pop(11).error = gone(2)  # the ledger was deleted
            found = await all_of(reader)
        assert found == [1, ("TRUNCATED", dlog.DLSN(1, 2, 0), dlog.DLSN(2, 0, ID_MAX)), 5, 6, 7]
        truncated = ("TRUNCATED", dlog.DLSN(1, 1, 0), dlog.DLSN(2, 0, ID_MAX))
        async with log.reader(dlog.DLSN(1, 1, 0), gaps=True, end=dlog.LATEST) as reader:
            assert await all_of(reader) == [truncated, 5, 6, 7]
        with pytest.raises(dlog.LogTruncatedError):
            async with log.reader(dlog.DLSN(1, 1, 0)):
                pass


async def test_tasks_that_share_a_reader_get_a_gap_once(autojump_clock: object) -> None:
    async with open_log() as log:
        await complete(log, 1, 10, 0, 3)
        log.ledgers[10].entry_errors[1] = gone(1)
        found: list[Any] = []

        async def take() -> None:
            while (each := await reader.read_batch_or_gap(1)) is not None:
                found.append("gap" if isinstance(each, dlog.Gap) else int(each[0].payload))

        async with log.reader(gaps=True, follow=False) as reader, trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(take)
        assert sorted(found, key=str) == [0, 2, "gap"]


class CursorByHand:
    """Stands in for ``ReaderCursor``."""

    seen: Cursor | None = None

    def __init__(self) -> None:
        self.position: dlog.DLSN | None = None

    async def commit(self, position: dlog.DLSN) -> Cursor | None:
        self.position = position
        return None


async def test_a_commit_of_the_last_missing_position_continues_behind_the_gap(
    autojump_clock: object,
) -> None:
    async with open_log() as log:
        await complete(log, 1, 10, 0, 4)
        for entry_id in (1, 2):
            log.ledgers[10].entry_errors[entry_id] = gone(entry_id)
        cursor: Any = CursorByHand()
        async with log.reader(gaps=True, cursor=cursor) as reader:
            assert not isinstance(await reader.read_batch_or_gap(9), dlog.Gap)
            gap = await reader.read_batch_or_gap(9)
            assert isinstance(gap, dlog.Gap)
            await reader.commit(gap.last)
            assert cursor.position == dlog.DLSN(1, 3, 0)
