"""A log reader over segments and ledgers that the test writes: waiting, errors, and no skipped record."""

# covers: dlog/read/read_ahead.py

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
import trio.testing

import dlog
from dlog.format.envelope import seal_envelope
from dlog.format.record import (
    CONTROL_PAYLOAD,
    END_OF_STREAM_PAYLOAD,
    FLAG_CONTROL,
    FLAG_END_OF_STREAM,
    TXID_MAX,
    encode_record,
    encode_records,
)
from ledger.causes import cause_of
from ledger.errors import BookieUnavailableError, LedgerReadError
from ledger.metadata_store.store import Create, Delete
from namespace.segments.segment import LogSegment, encode_segment
from tests.fakes.log_by_hand import LOG, NS, Ledger, entries_of, open_log, payloads
from tests.fakes.log_paths import paths_of


@pytest.mark.parametrize("follow", [True, False])
async def test_a_segment_is_not_left_before_its_end_is_decided(autojump_clock: object, follow: bool) -> None:
    """Two segments are in progress: entries that the older one does not show yet must not be skipped."""
    async with open_log() as log:
        first = await log.begin(1, 10, entries_of(0, 5), lac=2)
        second = await log.begin(2, 20, entries_of(5, 8, base=5), lac=2)
        async with log.reader(follow=follow) as reader:
            assert [int(r.payload) for r in await reader.read_batch(99) or ()] == [0, 1]
            assert [int(r.payload) for r in await reader.read_batch(99) or ()] == [2]
            assert await reader.read_batch(99, wait_s=100) == ([] if follow else None)
            if follow:
                await log.complete(first, 5)
                with trio.fail_after(5):
                    got = [await anext(reader) for _ in range(5)]
                assert [int(r.payload) for r in got] == [3, 4, 5, 6, 7]
                assert [r.sequence_id for r in got] == [3, 4, 5, 6, 7]
        await log.complete(second, 3, start=5)


async def test_a_segment_number_used_again_is_read_from_its_second_ledger(autojump_clock: object) -> None:
    """A writer died before its first entry. Its segment was deleted, and the number was used again."""
    async with open_log() as log:
        first = await log.begin(1, 10, [], lac=-1)
        async with log.reader() as reader:
            assert await reader.read_batch(1, wait_s=1) == []
            log.ledgers[10].is_closed = True
            assert await reader.read_batch(1, wait_s=1) == []
            await log.remove(first)
            del log.ledgers[10]
            await log.begin(1, 11, entries_of(0, 3), lac=1)
            with trio.fail_after(30):
                assert [int((await anext(reader)).payload) for _ in range(2)] == [0, 1]


async def test_a_lost_watch_is_replaced_by_listing_again(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_log() as log:
        list_segments = log.read_only.segments

        async def without_watch(**options: Any) -> tuple[LogSegment, ...]:
            return await list_segments(**{**options, "watch": trio.Event()})

        monkeypatch.setattr(log.read_only, "segments", without_watch)
        async with log.reader() as reader:
            assert await reader.read_batch(1, wait_s=1) == []
            segment = await log.begin(1, 10, entries_of(0, 2), lac=1)
            with trio.fail_after(20):
                assert [int((await anext(reader)).payload) for _ in range(2)] == [0, 1]
            await log.complete(segment, 2)
            await log.begin(2, 20, entries_of(2, 4, base=2), lac=1)
            with trio.fail_after(20):
                assert [int((await anext(reader)).payload) for _ in range(2)] == [2, 3]


async def test_reads_that_keep_failing_end_with_the_reason(autojump_clock: object) -> None:
    async with open_log() as log:
        await log.begin(1, 10, entries_of(0, 4), lac=3)
        refused = LedgerReadError(10, 2, {"b1": BookieUnavailableError("b1", "connection refused")})
        async with log.reader(ahead=1) as reader:
            assert int((await anext(reader)).payload) == 0
            log.ledgers[10].error = refused
            assert int((await anext(reader)).payload) == 1
            began_s = trio.current_time()
            with pytest.raises(dlog.LogReaderStalledError, match="b1: connection refused") as caught:
                await anext(reader)
            assert trio.current_time() - began_s == pytest.approx(30, abs=3)
            assert caught.value.position == dlog.DLSN(1, 1, 1)
            assert isinstance(cause_of(caught.value), dlog.LogUnavailableError)
        async with log.reader(retry_timeout_s=1000) as reader:

            async def heal() -> None:
                await trio.sleep(500)
                log.ledgers[10].error = None

            async with trio.open_nursery() as nursery:
                nursery.start_soon(heal)
                assert [int((await anext(reader)).payload) for _ in range(4)] == [0, 1, 2, 3]


@pytest.mark.parametrize("start", [dlog.LATEST, 5])
async def test_finding_the_start_has_the_retry_timeout_of_reading(autojump_clock: object, start: Any) -> None:
    async with open_log() as log:
        segment = await log.begin(1, 10, [], lac=-1)
        del log.ledgers[10]  # a recovery found it empty and has deleted it; the segment's node is left
        with pytest.raises(dlog.LogReaderStalledError, match="ledger 10"):
            async with log.reader(start):
                pass

        async def replace() -> None:
            await trio.sleep(20)
            await log.remove(segment)
            await log.begin(1, 11, entries_of(0, 2), lac=0)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(replace)
            async with log.reader(start) as reader:
                log.ledgers[11].lac = 1
                with trio.fail_after(30):
                    assert (await anext(reader)).payload == (b"1" if start is dlog.LATEST else b"0")


async def test_records_before_damage_are_returned_and_the_error_has_its_position(
    autojump_clock: object,
) -> None:
    async with open_log() as log:
        entries = entries_of(0, 4)
        entries[2] = b"\x02" + entries[2][1:]
        await log.begin(1, 10, entries, lac=3)
        async with log.reader() as reader:
            assert [int((await anext(reader)).payload) for _ in range(2)] == [0, 1]
            for _ in range(2):
                with pytest.raises(dlog.CorruptLogError, match=r"1:2:0: envelope version 2"):
                    await anext(reader)
        log.ledgers[10].entries[2] = entries_of(7, 8)[0]
        async with log.reader() as reader:
            with pytest.raises(
                dlog.CorruptLogError, match="has position 8 in the segment, but the record before it has 2"
            ):
                await payloads(reader)


@pytest.mark.parametrize("check_positions", [True, False])
@pytest.mark.parametrize("entries_at_once", [1, 4, 9])
async def test_records_fetched_together_with_a_damaged_entry_are_returned(
    autojump_clock: object, entries_at_once: int, check_positions: bool
) -> None:
    async with open_log() as log:
        entries = entries_of(0, 6)
        entries[3] = b"\x02" + entries[3][1:]
        await log.begin(1, 10, entries, lac=5)
        log.ledgers[10].entries_at_once = entries_at_once
        async with log.reader(check_positions=check_positions) as reader:
            assert [int((await anext(reader)).payload) for _ in range(3)] == [0, 1, 2]
            for _ in range(3):
                with pytest.raises(dlog.CorruptLogError, match="envelope version 2") as caught:
                    await reader.read_batch(9)
                assert caught.value.position == dlog.DLSN(1, 3, 0)
                assert reader.position == dlog.DLSN(1, 2, 1)
        async with log.reader(end=dlog.DLSN(1, 2, 0), check_positions=check_positions) as reader:
            assert await payloads(reader) == [0, 1, 2], "an entry after the end is not decoded"
        if check_positions:
            entries[3] = entries_of(4, 5)[0]
            log.ledgers[10].entries[3] = entries[3]
            async with log.reader() as reader:
                assert [int((await anext(reader)).payload) for _ in range(3)] == [0, 1, 2]
                for _ in range(2):
                    with pytest.raises(
                        dlog.CorruptLogError, match=r"has position 5 .* before it has 3"
                    ) as caught:
                        await anext(reader)
                    assert caught.value.position == dlog.DLSN(1, 3, 0)


async def test_a_sealed_log_ends(autojump_clock: object) -> None:
    async with open_log() as log:
        seal = seal_envelope(encode_record(FLAG_END_OF_STREAM, 2, TXID_MAX, END_OF_STREAM_PAYLOAD))
        await log.begin(1, 10, [*entries_of(0, 2), seal, *entries_of(2, 3)], lac=3)
        async with log.reader() as reader:
            assert await payloads(reader) == [0, 1]
            assert reader.is_sealed
            assert await reader.read_batch(1) is None


async def test_control_records_are_skipped(autojump_clock: object) -> None:
    async with open_log() as log:
        control = seal_envelope(encode_record(FLAG_CONTROL, 2, 5, CONTROL_PAYLOAD))
        segment = await log.begin(1, 10, [*entries_of(0, 2), control, control, *entries_of(2, 3)], lac=4)
        await log.complete(segment, 3)
        async with log.reader(follow=False) as reader:
            assert await payloads(reader) == [0, 1, 2]
            assert reader.position == dlog.DLSN(1, 4, 1)


async def test_a_truncated_start_raises_and_the_records_left_are_read(autojump_clock: object) -> None:
    async with open_log() as log:
        for seqno, first in ((1, 0), (2, 3)):
            segment = await log.begin(seqno, seqno, entries_of(first, first + 3, base=first), lac=2)
            done = await log.complete(segment, 3, start=first)
            if seqno == 1:
                await log.remove(done)
                await log.put(done.truncated())
        async with log.reader(follow=False) as reader:
            assert await payloads(reader) == [3, 4, 5]
        async with log.reader(0, follow=False) as reader:
            assert await payloads(reader) == [3, 4, 5], "a transaction id starts at the records left"
        with pytest.raises(dlog.LogTruncatedError, match=r"begins at 2:0:0"):
            async with log.reader(dlog.DLSN(1, 1, 0)):
                pass
        async with log.reader(dlog.DLSN(1, 2, 1), follow=False) as reader:
            assert await payloads(reader) == [3, 4, 5], (
                "a reader that has read all truncated records continues"
            )
        await log.remove(done)
        await log.put(done.partially_truncated(dlog.DLSN(2, 1, 0)))
        async with log.reader(follow=False) as reader:
            assert await payloads(reader) == [4, 5]


@pytest.mark.parametrize("lost", ["the ledger", "the entries", "the node as well"])
async def test_a_segment_purged_under_a_reader_is_reported_as_truncated(
    autojump_clock: object, lost: str
) -> None:
    async with open_log() as log:
        done = []
        for seqno in range(1, 7):  # the reader may have opened the second and the third
            segment = await log.begin(seqno, seqno, entries_of(3 * seqno, 3 * seqno + 3), lac=2)
            done.append(await log.complete(segment, 3, start=3 * seqno))
        async with log.reader(ahead=1) as reader:
            assert int((await anext(reader)).payload) == 3
            for segment in done[:-1]:
                await log.remove(segment)
                if lost != "the node as well":
                    await log.put(segment.truncated())
            if lost == "the entries":
                for ledger_id in range(1, 6):
                    log.ledgers[ledger_id].error = LedgerReadError(ledger_id, 2, {})
            else:
                for ledger_id in range(2, 6):
                    del log.ledgers[ledger_id]
            with pytest.raises(dlog.LogTruncatedError, match=r"begins at 6:0:0"):
                await payloads(reader)


async def test_deleting_a_log_ends_its_reader(autojump_clock: object) -> None:
    async with open_log() as log:
        segment = await log.begin(1, 10, entries_of(0, 1), lac=0)
        async with log.reader() as reader:
            await anext(reader)
            await log.remove(segment)
            for node in await log.store.children(paths_of(NS, LOG).root_path), None:
                for name in node.names if node else ():
                    await log.store.delete(f"{paths_of(NS, LOG).root_path}/{name}")
            with pytest.raises(dlog.LogNotFoundError):
                await anext(reader)


async def test_a_log_deleted_and_created_again_ends_its_reader(autojump_clock: object) -> None:
    """It happens between two listings. The reader must not continue at its position in the new log."""
    async with open_log() as log:
        first = await log.complete(await log.begin(1, 10, entries_of(0, 3), lac=2), 3)
        async with log.reader() as reader:
            assert [int((await anext(reader)).payload) for _ in range(3)] == [0, 1, 2]
            await trio.testing.wait_all_tasks_blocked()
            # In one transaction, so that the reader does not list the segments in between.
            log.ledgers[20] = Ledger(entries_of(100, 103, base=100), 2, True)
            log.ledgers[21] = Ledger(entries_of(103, 106, base=103), 2, True)
            again = [attrs.evolve(first, segment_seqno=n, ledger_id=19 + n) for n in (1, 2)]
            await log.store.commit(
                [Delete(paths_of(NS, LOG).segment_path(first.name))]
                + [Create(paths_of(NS, LOG).segment_path(each.name), encode_segment(each)) for each in again]
            )
            with pytest.raises(dlog.LogMetadataError, match="deleted and created again"):
                await anext(reader)


async def test_reading_ahead_is_bounded(autojump_clock: object) -> None:
    async with open_log() as log:
        await log.begin(1, 10, entries_of(0, 100), lac=99)
        async with log.reader(ahead=200) as reader:
            await trio.sleep(1)
            assert reader._ahead.size_bytes < 300
            assert [int((await anext(reader)).payload) for _ in range(100)] == list(range(100))


@pytest.mark.parametrize("start", [dlog.EARLIEST, dlog.LATEST, 0, dlog.DLSN(1, 0, 0)])
async def test_a_reader_waits_for_the_first_segment_of_a_log(autojump_clock: object, start: Any) -> None:
    async with open_log() as log:
        async with log.reader(start, follow=False) as reader:
            assert await payloads(reader) == []
        async with log.reader(start) as reader:
            await log.begin(1, 10, entries_of(0, 1), lac=0)
            with trio.fail_after(5):
                assert int((await anext(reader)).payload) == 0


async def test_a_reader_waits_for_a_future_transaction_id(autojump_clock: object) -> None:
    async with open_log() as log:
        entries = [seal_envelope(encode_records([b"%d" % n], [n], n + 1)) for n in range(6)]
        await log.begin(1, 10, entries, lac=2)
        async with log.reader(5) as reader:
            assert await reader.read_batch(9, wait_s=1) == []
            log.ledgers[10].lac = 5
            with trio.fail_after(5):
                assert (await anext(reader)).txid == 5


async def test_a_transaction_id_may_be_in_an_entry_that_an_open_ledger_does_not_show(
    autojump_clock: object,
) -> None:
    """A writer rolled, and the old ledger is not closed: its last entries are durable but not visible yet."""
    async with open_log() as log:
        entries = [seal_envelope(encode_records([b"%d" % n], [n], n + 1)) for n in range(5)]
        first = await log.begin(1, 10, entries, lac=2)
        entries = [seal_envelope(encode_records([b"%d" % n], [n], n - 4)) for n in range(5, 8)]
        await log.begin(2, 20, entries, lac=2)
        async with log.reader(4) as reader, log.reader(6) as later, log.reader(2) as sooner:
            assert (await anext(sooner)).txid == 2
            assert await reader.read_batch(9, wait_s=1) == []
            assert await later.read_batch(9, wait_s=1) == []
            await log.complete(first, 5)
            with trio.fail_after(30):
                assert [(await anext(reader)).txid for _ in range(4)] == [4, 5, 6, 7]
                assert [(await anext(later)).txid for _ in range(2)] == [6, 7]
                assert [(await anext(sooner)).txid for _ in range(5)] == [3, 4, 5, 6, 7]
        async with log.reader(6) as reader:
            assert reader.position == dlog.DLSN(2, 1, 0), "a closed ledger shows all of its entries"


async def test_the_latest_position_follows_the_last_visible_entry_beside_a_newer_segment(
    autojump_clock: object,
) -> None:
    async with open_log() as log:
        first = await log.begin(1, 10, entries_of(0, 5), lac=2)
        second = await log.begin(2, 20, entries_of(5, 6, base=5), lac=-1)
        async with log.reader(dlog.LATEST) as reader:
            await log.complete(first, 5)
            log.ledgers[20].lac = 0
            with trio.fail_after(30):
                assert [int((await anext(reader)).payload) for _ in range(3)] == [3, 4, 5]
        async with log.reader(dlog.LATEST) as reader:
            assert reader.position == dlog.DLSN(2, 1, 0)
        log.ledgers[20].lac = -1
        async with log.reader(dlog.LATEST) as reader:
            assert reader.position == dlog.DLSN(2, 0, 0)
        await log.complete(second, 1, start=5)
        async with log.reader(dlog.LATEST) as reader:
            assert reader.position == dlog.DLSN(3, 0, 0)


async def test_the_position_at_a_transaction_id_follows_the_records_dropped(
    autojump_clock: object,
) -> None:
    async with open_log() as log:
        entries = [
            seal_envelope(encode_records([b"", b""], [txid, txid + 1], txid + 1)) for txid in range(0, 8, 2)
        ]
        await log.begin(1, 10, entries, lac=-1)
        log.ledgers[10].entries_at_once = 9
        async with log.reader(5) as reader:
            for lac, position in [(0, dlog.DLSN(1, 0, 2)), (1, dlog.DLSN(1, 1, 2))]:
                log.ledgers[10].lac = lac
                assert await reader.read_batch(9, wait_s=1) == []
                assert reader.position == position
            log.ledgers[10].lac = 3
            assert (await reader.read_batch(1) or [])[0].txid == 5
            assert reader.position == dlog.DLSN(1, 2, 2)
        async with log.reader(dlog.DLSN(1, 1, 2), follow=False) as reader:
            assert [record.txid async for record in reader] == [4, 5, 6, 7]


async def test_the_end_is_inclusive_and_needs_no_later_record(autojump_clock: object) -> None:
    async with open_log() as log:
        await log.begin(1, 10, entries_of(0, 6), lac=5)
        for end, count in [
            (dlog.DLSN(1, 3, 0), 4),
            (dlog.DLSN(1, 3, 9), 4),
            (dlog.DLSN(0, 0, 0), 0),
            (dlog.DLSN(1, 4, -1), 4),
        ]:
            async with log.reader(end=end) as reader:
                assert await payloads(reader) == list(range(count))
        async with log.reader(end=dlog.DLSN(1, 5, 0)) as reader:
            with trio.fail_after(5):
                assert await payloads(reader) == list(range(6))


async def test_a_batch_holds_the_records_that_are_decoded(autojump_clock: object) -> None:
    async with open_log() as log:
        await log.begin(1, 10, entries_of(0, 4), lac=3)
        async with log.reader() as reader:
            assert len(await reader.read_batch(1) or ()) == 1
            assert reader.position == dlog.DLSN(1, 0, 1)
            await trio.sleep(1)
            assert len(await reader.read_batch(10, wait_s=0) or ()) == 1
            assert len(await reader.read_batch(10, wait_s=0) or ()) == 2
            assert await reader.read_batch(10, wait_s=0) == []
            with pytest.raises(ValueError, match="at least 1"):
                await reader.read_batch(0)
            assert "at 1:3:1, following" in repr(reader)


async def test_tasks_that_share_a_reader_wake_and_take_each_record_once(
    autojump_clock: object,
) -> None:
    async with open_log() as log:
        entries = [
            seal_envelope(encode_records([b"%d" % n for n in range(i, i + 4)], [5] * 4, i + 1))
            for i in range(0, 40, 4)
        ]
        segment = await log.begin(1, 10, entries, lac=-1)
        got: list[list[int]] = [[], [], [], []]

        async def take_batches(into: list[int], records_max: int) -> None:
            while records := await reader.read_batch(records_max):
                into += [int(record.payload) for record in records]
                await trio.sleep(1)

        async def take_each(into: list[int]) -> None:
            async for record in reader:
                into.append(int(record.payload))
                await trio.sleep(1)

        async def take_one(into: list[int]) -> None:
            into.append(int((await anext(reader)).payload))

        async with log.reader(follow=True, end=dlog.DLSN(1, 9, 3)) as reader:
            with trio.fail_after(300):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(take_batches, got[0], 1)
                    nursery.start_soon(take_batches, got[1], 3)
                    nursery.start_soon(take_each, got[2])
                    nursery.start_soon(take_one, got[3])
                    await trio.testing.wait_all_tasks_blocked()
                    for lac in range(10):
                        log.ledgers[10].lac = lac
                        await trio.sleep(2 if lac % 3 else 0.01)
                    await log.complete(segment, 40)
        assert all(got)
        assert all(each == sorted(each) for each in got)
        assert sorted(each for taken in got for each in taken) == list(range(40))


async def test_a_task_whose_records_another_task_took_waits_for_more(autojump_clock: object) -> None:
    async with open_log() as log:
        await log.begin(1, 10, entries_of(0, 2), lac=0)
        got = []

        async def take() -> None:
            got.append([int(record.payload) for record in await reader.read_batch(9) or ()])

        async with log.reader() as reader:
            await trio.testing.wait_all_tasks_blocked()  # the first record is fetched
            with trio.fail_after(30):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(take)
                    nursery.start_soon(take)
                    await trio.sleep(1)
                    assert got == [[0]]
                    log.ledgers[10].lac = 1
        assert got == [[0], [1]]


async def test_a_closed_reader_keeps_its_position(autojump_clock: object) -> None:
    async with open_log() as log:
        await log.begin(1, 10, entries_of(0, 4), lac=3)
        for entries_at_once in (1, 4):
            log.ledgers[10].entries_at_once = entries_at_once
            async with log.reader() as reader:
                assert [int((await anext(reader)).payload) for _ in range(3)] == [0, 1, 2]
                for _ in range(2):
                    await reader.aclose()
                    assert reader.position == dlog.DLSN(1, 2, 1)
            assert reader.position == dlog.DLSN(1, 2, 1)
            async with log.reader(reader.position, follow=False) as reader:
                assert await payloads(reader) == [3]
