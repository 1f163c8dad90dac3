"""Row 9: our reader reads streams of Apache DistributedLog: each kind of record and segment, also live."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest
import trio

import dlog
from dlog import DLSN, Record
from tests.interop.driver import DriverError
from tests.interop.java_streams import AT_ONCE, END_OF_STREAM, ROLLING, JavaRecord, numbered
from tests.interop.streams import (
    TEST_TIMEOUT_S,
    StreamPlace,
    payloads_of,
    read_by_us,
    same_for_both,
)
from tests.interop.table import proves

codecs = pytest.mark.parametrize("codec", ["none", pytest.param("lz4", marks=proves(9, "LZ4"))])
BATCHING = {"writerOutputBufferSize": "65536", "periodicFlushFrequencyMilliSeconds": "20"}
QUIET = {"writerOutputBufferSize": "65536"}  # the writer sends no entry by itself


def records_of(records: list[JavaRecord], dlsns: list[DLSN], *, first_sequence_id: int = 0) -> list[Record]:
    """The records that readers must return for plain records."""
    return [
        Record(dlsn, each.txid, each.payload, number)
        for number, (each, dlsn) in enumerate(zip(records, dlsns, strict=True), first_sequence_id)
    ]


def mixed(count: int, first: int = 1) -> list[JavaRecord]:
    """Records of various sizes, with transaction ids from ``first`` on."""
    return [
        JavaRecord(txid, payload) for txid, payload in enumerate(payloads_of(count, seed=first), start=first)
    ]


@proves(9, "completed")
@codecs
@pytest.mark.parametrize("settings", [AT_ONCE, BATCHING], ids=["single", "batched"])
async def test_we_read_a_completed_segment(
    place: StreamPlace, codec: str, settings: Mapping[str, str]
) -> None:
    log, records = place.fresh_log(), mixed(50)
    with trio.fail_after(TEST_TIMEOUT_S):
        async with (
            place.java_log(log, {**settings, "compressionType": codec}) as java,
            java.open_writer() as writer,
        ):
            dlsns = await writer.write(*records[:25])
            dlsns += await writer.write_bulk(*records[25:])
        await same_for_both(place, log, records_of(records, dlsns))


@proves(9, "completed")
@codecs
async def test_we_read_record_sets(place: StreamPlace, codec: str) -> None:
    log, sets = place.fresh_log(), [tuple(payloads_of(4, seed=seed)) for seed in range(3)]
    with trio.fail_after(TEST_TIMEOUT_S):
        async with place.java_log(log, BATCHING) as java, java.open_writer() as writer:
            await writer.write_bulk(
                JavaRecord(1, b"before"),
                *[JavaRecord(2 + i, record_set=each, codec=codec.upper()) for i, each in enumerate(sets)],
                JavaRecord(9, b"after"),
            )
        expected = [b"before", *itertools.chain(*sets), b"after"]
        async with place.namespace() as namespace, place.java_log(log) as java:
            got = await read_by_us(namespace, log)
            assert [each.payload for each in got] == expected
            assert [each.sequence_id for each in got] == list(range(len(expected)))
            assert got == await java.read(len(expected))
            # A reader can start at each record within a set.
            for index in range(len(got)):
                assert await read_by_us(namespace, log, got[index].dlsn) == got[index:]
            assert await read_by_us(namespace, log, 3) == got[5:]


@proves(9, "completed")
async def test_we_skip_control_records(place: StreamPlace) -> None:
    log = place.fresh_log()
    control = JavaRecord(2, b"an application's own", control=True)
    with trio.fail_after(TEST_TIMEOUT_S):
        async with place.java_log(log, QUIET) as java:
            # The synchronous writer counts the position of a control record, the asynchronous one does not.
            await java.sync_write(JavaRecord(1, b"a"), control, JavaRecord(3, b"b"), "flush", "commit")
        async with place.java_log(log, BATCHING) as java, java.open_writer() as writer:
            await writer.write(JavaRecord(4, b"c"), control, JavaRecord(5, b"d"))
        async with place.namespace() as namespace, place.java_log(log) as java:
            got = await read_by_us(namespace, log)
            assert [each.payload for each in got] == [b"a", b"b", b"c", b"d"]
            assert got == await java.read(4)


@proves(9, "rolled")
@codecs
async def test_we_read_over_many_segments_from_anywhere(place: StreamPlace, codec: str) -> None:
    log, records = place.fresh_log(), mixed(30)
    with trio.fail_after(TEST_TIMEOUT_S):
        async with (
            place.java_log(log, {**AT_ONCE, **ROLLING, "compressionType": codec}) as java,
            java.open_writer() as writer,
        ):
            dlsns = []
            for each in records:
                dlsns += await writer.write(each)
        assert dlsns[-1].segment_seqno > 3
        expected = records_of(records, dlsns)
        await same_for_both(place, log, expected)
        async with place.namespace() as namespace, place.java_log(log) as java:
            for index in (1, 15, 29):
                left = expected[index:]
                assert await read_by_us(namespace, log, dlsns[index]) == left
                assert await read_by_us(namespace, log, index + 1) == left
                assert await java.read(len(left), index + 1) == left


@proves(9, "in progress", "tailing")
@codecs
async def test_we_follow_a_segment_in_progress_over_rolls_to_its_end(place: StreamPlace, codec: str) -> None:
    log, records = place.fresh_log(), mixed(30)
    with trio.fail_after(TEST_TIMEOUT_S):
        async with (
            place.namespace() as namespace,
            place.java_log(log, {**AT_ONCE, **ROLLING, "compressionType": codec}) as java,
            namespace.open_reader(log) as reader,
        ):
            got: list[Record] = []
            writer = await java.start_writer()
            dlsns = []
            for number, each in enumerate(records, 1):
                dlsns += await writer.write(each)
                while len(got) < number:
                    got += await reader.read_batch(10) or []
            assert dlsns[-1].segment_seqno > 3
            expected = records_of(records, dlsns)
            assert got == expected
            await same_for_both(place, log, expected)
            await writer.close()
            await same_for_both(place, log, expected)
            assert await reader.read_batch(1, wait_s=0.2) == []


@proves(9, "tailing")
async def test_a_record_becomes_visible_with_the_next_one(place: StreamPlace) -> None:
    log = place.fresh_log()
    with trio.fail_after(TEST_TIMEOUT_S):
        async with (
            place.java_log(log, {"writerOutputBufferSize": "0"}) as java,
            place.namespace() as namespace,
            namespace.open_reader(log) as reader,
            java.open_writer() as writer,
        ):
            first, second, third = numbered(3)
            dlsns = await writer.write(first)
            # An entry becomes visible with the next one. By default Java writes no entry by itself.
            assert await reader.read_batch(10, wait_s=0.3) == []
            dlsns += await writer.write(second)
            assert await reader.read_batch(10) == records_of([first], dlsns[:1])
            dlsns += await writer.write(third)
            assert await reader.read_batch(10) == records_of([second], dlsns[1:2], first_sequence_id=1)


@proves(9, "tailing")
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"periodicKeepAliveMilliSeconds": "100"}, id="keep-alive"),
        pytest.param({"bkc.explicitLacInterval": "100"}, id="explicit LAC"),
        pytest.param(BATCHING, id="periodic flush"),
    ],
)
async def test_we_follow_records_that_become_visible_without_a_next_one(
    place: StreamPlace, settings: Mapping[str, str]
) -> None:
    log, records = place.fresh_log(), numbered(5)
    with trio.fail_after(TEST_TIMEOUT_S):
        async with (
            place.java_log(log, {"writerOutputBufferSize": "0", **settings}) as java,
            place.namespace() as namespace,
            namespace.open_reader(log) as reader,
            java.open_writer() as writer,
        ):
            dlsns, got = [], list[dlog.Record]()
            for each in records:
                dlsns += await writer.write(each)
                got += await reader.read_batch(10) or []
            assert got == records_of(records, dlsns)


@proves(9, "in progress")
async def test_we_read_the_segment_of_an_aborted_writer_and_continue_after_its_recovery(
    place: StreamPlace,
) -> None:
    log, records = place.fresh_log(), numbered(5)
    with trio.fail_after(TEST_TIMEOUT_S):
        async with place.java_log(log, {"writerOutputBufferSize": "0"}) as java:
            writer = await java.start_writer()
            dlsns = [dlsn for each in records for dlsn in await writer.write(each)]
            await writer.abort()
            async with place.namespace() as namespace, namespace.open_reader(log) as reader:
                got: list[Record] = []
                while len(got) < 5:
                    got += await reader.read_batch(10) or []
                assert [each.is_completed for each in await namespace.segments(log)] == [False]
                await java.recover()
                assert [each.is_completed for each in await namespace.segments(log)] == [True]
                async with java.open_writer() as writer:
                    dlsns += await writer.write(JavaRecord(6, b"java 6"))
                got += await reader.read_batch(10) or []
            expected = records_of([*records, JavaRecord(6, b"java 6")], dlsns)
            assert got == expected
        await same_for_both(place, log, expected)


@proves(9, "completed")
async def test_a_sealed_log_ends_for_our_reader_and_refuses_our_writer(place: StreamPlace) -> None:
    log, records = place.fresh_log(), numbered(3)
    with trio.fail_after(TEST_TIMEOUT_S):
        async with place.java_log(log, AT_ONCE) as java, place.namespace() as namespace:
            async with namespace.open_reader(log) as reader:
                async with java.open_writer() as writer:
                    dlsns = await writer.write(*records)
                    await writer.seal()
                assert [record async for record in reader] == records_of(records, dlsns)
                assert reader.is_sealed
            assert (await namespace.describe_log(log)).is_sealed
            with pytest.raises(dlog.EndOfStreamError):
                async with namespace.open_writer(log):
                    pass
        async with place.java_log(log) as java:
            expected = records_of(records, dlsns)
            assert await java.read_to_end(len(expected)) == expected


@proves(9, "in progress")
async def test_our_recovery_seals_the_sealed_log_of_a_dead_writer(place: StreamPlace) -> None:
    log, records = place.fresh_log(), numbered(3)
    with trio.fail_after(TEST_TIMEOUT_S):
        async with place.java_log(log, AT_ONCE) as java, place.namespace() as namespace:
            writer = await java.start_writer()
            dlsns = await writer.write(*records)
            await writer.seal()
            await writer.abort()
            assert await read_by_us(namespace, log) == records_of(records, dlsns)
            with pytest.raises(dlog.EndOfStreamError):
                async with namespace.open_writer(log):
                    pass
            assert (await namespace.segments(log))[-1].is_completed
        async with place.java_log(log) as java:
            assert (await java.ends())["sealed"]
            with pytest.raises(DriverError) as refused:
                async with java.open_writer() as writer:
                    await writer.write(JavaRecord(9))
            assert refused.value.code == END_OF_STREAM


@proves(9, "truncated")
async def test_we_start_at_java_s_truncation(place: StreamPlace) -> None:
    log, records = place.fresh_log(), mixed(24)
    with trio.fail_after(TEST_TIMEOUT_S):
        dlsns: list[DLSN] = []
        for first in range(0, 24, 6):
            dlsns += await _one_segment(place, log, records[first : first + 6])
        expected = records_of(records, dlsns)
        async with place.java_log(log, AT_ONCE) as java, place.namespace() as namespace:
            for cut in (6, 14, 16, 23):
                async with java.open_writer() as writer:
                    assert await writer.truncate(dlsns[cut])
                assert await read_by_us(namespace, log) == expected[cut:]
                assert await read_by_us(namespace, log, 0) == expected[cut:]
                assert await read_by_us(namespace, log, dlsns[cut]) == expected[cut:]
                with pytest.raises(dlog.LogTruncatedError):
                    await read_by_us(namespace, log, dlsns[cut - 1])
                # Our writer keeps Java's truncation marks and removes none.
                async with namespace.open_writer(log) as ours:
                    assert await ours.truncate(dlsns[cut - 1]) == dlsns[cut]


@proves(9, "completed")
@pytest.mark.parametrize("version", [2, 3, 4, 5])
async def test_we_read_segments_of_older_metadata_versions(place: StreamPlace, version: int) -> None:
    log, records = place.fresh_log(), numbered(4)
    older = {**AT_ONCE, "ledgerMetadataLayoutVersion": str(version)}
    with trio.fail_after(TEST_TIMEOUT_S):
        dlsns: list[DLSN] = []
        for first in (0, 2):
            async with place.java_log(log, older) as java, java.open_writer() as writer:
                dlsns += await writer.write(*records[first : first + 2])
        async with place.namespace() as namespace, place.java_log(log) as java:
            got = await read_by_us(namespace, log)
            assert [(each.dlsn, each.txid, each.payload) for each in got] == [
                (dlsn, each.txid, each.payload) for dlsn, each in zip(dlsns, records, strict=True)
            ]
            assert got == await java.read(4)


async def _one_segment(place: StreamPlace, log: str, records: list[JavaRecord]) -> list[DLSN]:
    async with place.java_log(log, BATCHING) as java, java.open_writer() as writer:
        half = len(records) // 2
        return await writer.write_bulk(*records[:half]) + await writer.write_bulk(*records[half:])
