"""Bounded reads: where a range ends, and that it gives the same records although the log goes on."""

from __future__ import annotations

import datetime

import pytest
import trio

import dlog
from dlog.format.envelope import seal_envelope
from dlog.format.record import encode_records
from dlog.read.positioning import last_before, txid_at
from namespace.dlsn import INVALID_DLSN
from tests.fakes.log_by_hand import entries_of, open_log, payloads


def entries_with_txids(txids: list[int], *, base: int = 0) -> list[bytes]:
    """Entries of two records; the payload of a record is its transaction id."""
    return [
        seal_envelope(encode_records([b"%d" % txid for txid in pair], pair, base + at + 1))
        for at in range(0, len(txids), 2)
        for pair in [txids[at : at + 2]]
    ]


@pytest.mark.parametrize("follow", [True, False])
async def test_a_read_up_to_latest_ends_at_the_last_record_visible_when_it_was_opened(
    autojump_clock: object, follow: bool
) -> None:
    async with open_log() as log:
        segment = await log.begin(1, 10, entries_of(0, 6), lac=2)
        async with log.reader(end=dlog.LATEST, follow=follow) as reader:
            await log.complete(segment, 6)
            second = await log.begin(2, 20, entries_of(6, 8, base=6), lac=1)
            with trio.fail_after(5):
                assert await payloads(reader) == [0, 1, 2]
        await log.complete(second, 2, start=6)
        async with log.reader(end=dlog.LATEST, follow=follow) as reader:
            await log.begin(3, 30, entries_of(8, 9, base=8), lac=0)
            with trio.fail_after(5):
                assert await payloads(reader) == list(range(8))


@pytest.mark.parametrize("follow", [True, False])
async def test_records_up_to_latest_are_waited_for_from_a_bookie_that_shows_less(
    autojump_clock: object, follow: bool
) -> None:
    async with open_log() as log:
        await log.begin(1, 10, entries_of(0, 6), lac=4)
        async with log.reader(end=dlog.LATEST, follow=follow) as reader:
            log.ledgers[10].lac = 1

            async def show() -> None:
                await trio.sleep(3)
                log.ledgers[10].lac = 5

            async with trio.open_nursery() as nursery:
                nursery.start_soon(show)
                with trio.fail_after(60):
                    assert await payloads(reader) == list(range(5))


@pytest.mark.parametrize("start", [dlog.EARLIEST, dlog.LATEST])
async def test_a_read_of_an_empty_log_up_to_latest_ends_at_once(
    autojump_clock: object, start: dlog.Start
) -> None:
    async with open_log() as log:
        for lac in (None, -1):
            if lac is not None:
                await log.begin(1, 10, [], lac=lac)
            async with log.reader(start, end=dlog.LATEST) as reader:
                with trio.fail_after(5):
                    assert await payloads(reader) == []


@pytest.mark.parametrize("at_once", [1, 2, 9])
async def test_a_transaction_id_bounds_a_range_at_either_end_for_every_reader_alike(
    autojump_clock: object, at_once: int
) -> None:
    async with open_log() as log:
        first = await log.begin(1, 10, entries_with_txids([1, 1, 2, 4, 4, 4, 7, 8]), lac=3)
        log.ledgers[10].entries_at_once = at_once
        await log.complete(first, 8)
        await log.begin(2, 20, entries_with_txids([9, 9, 9, 12], base=8), lac=1)
        for start, end, wanted in [
            (0, 0, []),
            (1, 1, [1, 1]),
            (2, 4, [2, 4, 4, 4]),
            (3, 6, [4, 4, 4]),
            (5, 6, []),
            (4, 9, [4, 4, 4, 7, 8, 9, 9, 9]),
            (dlog.DLSN(1, 2, 1), 8, [4, 7, 8]),
            (4, dlog.DLSN(1, 3, 0), [4, 4, 4, 7]),
        ]:
            async with log.reader(start, end=end) as reader:
                with trio.fail_after(5):
                    assert await payloads(reader) == wanted
                assert await reader.read_batch(1) is None


async def test_an_end_that_is_not_written_yet_is_waited_for_unless_the_reader_does_not_follow(
    autojump_clock: object,
) -> None:
    async with open_log() as log:
        await log.begin(1, 10, entries_with_txids([1, 2, 3, 4, 5, 6]), lac=0)
        for end in (3, dlog.DLSN(1, 1, 0)):
            log.ledgers[10].lac = 0
            async with log.reader(end=end, follow=False) as reader:
                assert await payloads(reader) == [1, 2]
            async with log.reader(end=end) as reader:
                assert [int(each.payload) for each in await reader.read_batch(9) or ()] == [1, 2]
                assert await reader.read_batch(9, wait_s=5) == []
                log.ledgers[10].lac = 2
                with trio.fail_after(5):
                    assert await payloads(reader) == [3]


def test_a_moment_is_the_transaction_id_of_its_milliseconds_rounded_down() -> None:
    for microsecond, txid in [(0, 1_700_000_000_000), (1_000, 1_700_000_000_001), (1_999, 1_700_000_000_001)]:
        moment = datetime.datetime(2023, 11, 14, 22, 13, 20, microsecond, tzinfo=datetime.UTC)
        assert txid_at(moment) == txid
        assert txid_at(moment.astimezone(datetime.timezone(datetime.timedelta(hours=-5)))) == txid
    with pytest.raises(ValueError, match="has no time zone"):
        txid_at(datetime.datetime(2023, 11, 14))


def test_the_position_before_another_one_is_less_and_leaves_no_record_out() -> None:
    for position in (dlog.DLSN(3, 2, 5), dlog.DLSN(3, 2, 0), dlog.DLSN(3, 0, 0), dlog.DLSN(1, 0, 0)):
        assert last_before(position) < position
    assert last_before(dlog.DLSN(3, 2, 5)) == dlog.DLSN(3, 2, 4)
    assert last_before(dlog.DLSN(3, 2, 0)) > dlog.DLSN(3, 1, 2**31)
    assert last_before(dlog.DLSN(3, 0, 0)) > dlog.DLSN(2, 2**40, 0)
    assert last_before(None) == INVALID_DLSN
