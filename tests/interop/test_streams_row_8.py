"""Row 8: Apache DistributedLog reads our streams with the same records, positions, ids and counts."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
import trio

import dlog
from dlog import DLSN, Compression, Record
from ledger.replication_asked import AskedReplication
from tests.interop.driver import DriverError
from tests.interop.java_streams import AT_ONCE, END_OF_STREAM, FIRST, JavaRecord
from tests.interop.streams import (
    TEST_TIMEOUT_S,
    StreamPlace,
    expected_records,
    is_followed_by_java,
    payloads_of,
    read_by_us,
    same_for_both,
    write_rolling,
)
from tests.interop.table import proves

codecs = pytest.mark.parametrize(
    "compression", [Compression.NONE, pytest.param(Compression.LZ4, marks=proves(8, "LZ4"))]
)


@proves(8, "completed")
@codecs
async def test_java_reads_a_completed_segment(place: StreamPlace, compression: Compression) -> None:
    log, payloads = place.fresh_log(), [*payloads_of(60), bytes(dlog.PAYLOAD_BYTES_MAX), b"end"]
    with trio.fail_after(TEST_TIMEOUT_S):
        async with (
            place.namespace(compression=compression) as namespace,
            namespace.open_writer(log, create=True) as writer,
        ):
            dlsns = [await writer.append(payload, txid=txid) for txid, payload in enumerate(payloads[:20], 1)]
            dlsns += await writer.append_many(payloads[20:40], txids=range(21, 41), atomic=True)
            dlsns += await writer.append_many(payloads[40:], txids=range(41, len(payloads) + 1))
        await same_for_both(place, log, expected_records(payloads, dlsns))
        async with place.namespace(compression=compression) as namespace:
            await namespace.seal_log(log)
        await _check_end(place, log, expected_records(payloads, dlsns))


async def _check_end(place: StreamPlace, log: str, expected: list[Record]) -> None:
    """Java's readers end behind these records, and its writers are refused."""
    async with place.java_log(log) as java:
        ends = await java.ends()
        assert (ends["sealed"], ends["record_count"]) == (True, len(expected))
        assert await java.read_to_end(len(expected)) == expected
        with pytest.raises(DriverError) as refused:
            async with java.open_writer() as writer:
                await writer.write(JavaRecord(2**60))
        assert refused.value.code == END_OF_STREAM


@proves(8, "completed")
async def test_java_refuses_a_record_in_parts_and_takes_no_part_for_a_record(place: StreamPlace) -> None:
    """Only a namespace that says no Java reads it can have one. This one says so against the truth."""
    log = place.fresh_log()
    config = dlog.NamespaceConfig(
        shared_with_java=False,
        digest_type=dlog.DigestType.CRC32,
        password=b"",
        writer=dlog.WriterConfig(record_bytes_max=4 * dlog.PAYLOAD_BYTES_MAX),
    )
    payloads = [b"before", bytes(3 * dlog.PAYLOAD_BYTES_MAX), b"after"]
    with trio.fail_after(TEST_TIMEOUT_S):
        async with dlog.open_namespace(place.uri, config=config) as namespace:
            async with namespace.open_writer(log, create=True) as writer:
                dlsns = await writer.append_many(payloads, txids=[1, 2, 3])
            expected = expected_records(payloads, dlsns)
            assert await read_by_us(namespace, log) == expected
        async with place.java_log(log) as java, java.open_reader() as reader:
            seen = await reader.read_some(3, timeout_s=60)
            assert seen.records == expected[:1]
            assert seen.ended is not None


@proves(8, "rolled")
async def test_java_reads_a_log_that_was_promoted(place: StreamPlace, tmp_path: Path) -> None:
    log = place.fresh_log()
    small = dlog.WriterConfig(segment_bytes_max=1000)
    with trio.fail_after(TEST_TIMEOUT_S):
        async with (
            dlog.open_namespace(tmp_path.as_uri()) as namespace,
            namespace.open_writer(log, create=True, config=small) as writer,
        ):
            payloads, dlsns = await write_rolling(writer, segments=3)
            await namespace.promotion.promote(log, place.uri)
            more = payloads_of(15, seed=99)
            first = len(payloads) + 1
            dlsns += await writer.append_many(more, txids=range(first, first + len(more)))
            payloads += more
        await same_for_both(place, log, expected_records(payloads, dlsns))


@proves(8, "rolled")
@codecs
async def test_java_reads_a_log_with_a_hash_chain(place: StreamPlace, compression: Compression) -> None:
    """Each entry ends with a control record of ours, and entries that only make records visible hold one."""
    log = place.fresh_log()
    with trio.fail_after(TEST_TIMEOUT_S):
        chained = place.namespace(compression=compression, segment_bytes_max=1000, hash_chain=True)
        async with chained as namespace:
            async with namespace.open_writer(log, create=True) as writer:
                payloads, dlsns = await write_rolling(writer, segments=3)
            async with namespace.open_writer(log) as writer:  # it continues the chain
                more = payloads_of(15, seed=99)
                first = len(payloads) + 1
                dlsns += await writer.append_many(more, txids=range(first, first + len(more)))
                payloads += more
        await same_for_both(place, log, expected_records(payloads, dlsns))
        async with place.namespace() as namespace:
            found = await namespace.repair.verify(log)
        assert found.problem is None
        assert found.chained_records == len(payloads)


@proves(8, "rolled", "keys and headers")
@codecs
async def test_java_reads_records_with_keys_and_headers_without_them(
    place: StreamPlace, compression: Compression
) -> None:
    """The keys and headers are in a control record after the user records of an entry."""
    log, payloads = place.fresh_log(), [*payloads_of(40), bytes(dlog.PAYLOAD_BYTES_MAX - 100), b"end"]
    attributes = [(b"k%d" % each, {"name": b"v%d" % each}) for each in range(len(payloads))]
    keys, headers = [key for key, _ in attributes], [each for _, each in attributes]
    with trio.fail_after(TEST_TIMEOUT_S):
        chosen = place.namespace(compression=compression, segment_bytes_max=1000, keys_and_headers=True)
        async with chosen as namespace, namespace.open_writer(log, create=True) as writer:
            dlsns = [
                await writer.append(payloads[at], txid=at + 1, key=keys[at], headers=headers[at])
                for at in range(20)
            ]
            dlsns += await writer.append_many(
                payloads[20:], txids=range(21, len(payloads) + 1), keys=keys[20:], headers=headers[20:]
            )
            await writer.flush()
        await same_for_both(place, log, expected_records(payloads, dlsns))
        async with place.java_log(log, AT_ONCE) as java, java.open_writer() as java_writer:
            dlsns += await java_writer.write(JavaRecord(len(payloads) + 1, b"java"))
        await same_for_both(place, log, expected_records([*payloads, b"java"], dlsns))
        async with place.namespace() as namespace:
            records = await read_by_us(namespace, log)
        assert [(each.key, each.headers) for each in records] == [*attributes, (None, {})]


@proves(8, "rolled")
async def test_java_follows_a_log_over_a_segment_that_begins_with_keep_alive_records(
    place: StreamPlace,
) -> None:
    """Apache's writer sends none in a segment without an entry; ours does after a roll by age."""
    log = place.fresh_log()
    config = dlog.WriterConfig(keep_alive_s=0.02, segment_age_s_max=0.1)
    with trio.fail_after(TEST_TIMEOUT_S):
        async with (
            place.namespace() as namespace,
            namespace.open_writer(log, create=True, config=config) as writer,
            place.java_log(log) as java,
            java.open_reader() as follower,
        ):
            dlsns = [await writer.append(b"first", txid=1)]
            assert len(await follower.read(1)) == 1
            end: DLSN | None = None
            while end is None or end < DLSN(2, 2, 0):  # control records are visible in the second segment
                await trio.sleep(0.02)
                async with namespace.open_reader(log, start=dlog.LATEST) as reader:
                    end = reader.position
            dlsns.append(await writer.append(b"second", txid=2))
            records = expected_records([b"first", b"second"], dlsns)
            assert is_followed_by_java(await follower.read(1), records[1:])
        await same_for_both(place, log, records)


@proves(8, "rolled")
@codecs
async def test_java_reads_over_many_segments_from_anywhere(
    place: StreamPlace, compression: Compression
) -> None:
    log = place.fresh_log()
    with trio.fail_after(TEST_TIMEOUT_S):
        async with (
            place.namespace(compression=compression, segment_bytes_max=1000) as namespace,
            namespace.open_writer(log, create=True) as writer,
        ):
            payloads, dlsns = await write_rolling(writer, segments=4)
        records = expected_records(payloads, dlsns)
        await same_for_both(place, log, records)
        async with place.namespace() as namespace, place.java_log(log) as java:
            for index in (1, len(dlsns) // 2, len(dlsns) - 1):
                left = records[index:]
                assert await java.read(len(left), dlsns[index]) == left
                assert await java.read(len(left), index + 1) == left
                assert await java.find_txid(index + 1) == dlsns[index]
                assert await java.count(dlsns[index]) == len(left)
                assert await read_by_us(namespace, log, dlsns[index]) == left
                assert await read_by_us(namespace, log, index + 1) == left


@proves(8, "in progress")
@codecs
async def test_java_reads_a_segment_in_progress_and_follows_it_over_rolls_to_its_end(
    place: StreamPlace, compression: Compression
) -> None:
    log, payloads = place.fresh_log(), payloads_of(2_000)
    with trio.fail_after(TEST_TIMEOUT_S):
        async with (
            place.namespace(compression=compression, segment_bytes_max=3000) as namespace,
            namespace.open_writer(log, create=True) as writer,
        ):
            dlsns = await writer.append_many(payloads[:5], txids=range(1, 6))
            await writer.flush()
            records = expected_records(payloads[:5], dlsns)
            await same_for_both(place, log, records)
            async with place.java_log(log) as java, java.open_reader() as follower:
                assert await follower.read(5) == records
                for first in range(5, len(payloads), 5):
                    if first >= 40 and dlsns[-1].segment_seqno > 1:
                        break  # the next segment is made beside the appends, so its first record is not known
                    # Only the writer's own control record makes these visible.
                    batch = payloads[first : first + 5]
                    dlsns += await writer.append_many(batch, txids=range(first + 1, first + 6))
                    records = expected_records(payloads[: first + 5], dlsns)
                    assert is_followed_by_java(await follower.read(5), records[first:])
                assert dlsns[-1].segment_seqno > 1
                await writer.aclose()
                assert (await follower.read_some(1, timeout_s=0.2)).records == []
        await same_for_both(place, log, records)


@proves(8, "completed")
async def test_java_reads_a_healed_log_and_continues_through_a_heal(
    place: StreamPlace,
) -> None:
    """A reader that listed the segments before the heal reads their old ledgers, which are kept."""
    log, payloads = place.fresh_log(), payloads_of(60)
    with trio.fail_after(TEST_TIMEOUT_S):
        async with place.namespace() as namespace:
            dlsns: list[DLSN] = []
            for first in range(0, 60, 20):
                async with namespace.open_writer(log, create=True) as writer:
                    txids = range(first + 1, first + 21)
                    dlsns += await writer.append_many(payloads[first : first + 20], txids=txids)
            records = expected_records(payloads, dlsns)
            async with place.java_log(log) as java, java.open_reader() as follower:
                assert await follower.read(5) == records[:5]
                await _fall_short(namespace, log)
                assert len(await namespace.repair.heal(log)) == 3
                assert await follower.read(55) == records[5:]
        await same_for_both(place, log, records)


async def _fall_short(namespace: dlog.Namespace, log: str) -> None:
    """Mark the log's ledgers as those of segments that began on fewer bookies."""
    catalog = namespace.context.client.context.catalog
    for segment in await namespace.segments(log):
        current = await catalog.get_newest(segment.ledger_id)
        metadata = current.metadata
        asked = AskedReplication(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
        changed = attrs.evolve(metadata, custom={**metadata.custom, **asked.custom})
        await catalog.put(segment.ledger_id, changed, expected=current.version)


@proves(8, "truncated")
async def test_java_starts_at_our_truncation(place: StreamPlace) -> None:
    log = place.fresh_log()
    with trio.fail_after(TEST_TIMEOUT_S):
        async with place.namespace(segment_bytes_max=5000) as namespace:
            async with namespace.open_writer(log, create=True) as writer:
                payloads, dlsns = await write_rolling(writer, segments=4)
            records = expected_records(payloads, dlsns)
            # The first record of an entry (not the first entry of its segment), and a record within it.
            index = next(i for i, each in enumerate(dlsns) if each.segment_seqno > 2 and each.entry_id > 0)
            assert dlsns[index].slot_id == 0
            for cut in (index, index + 2):
                async with namespace.open_writer(log) as writer:
                    assert await writer.truncate(dlsns[cut]) == dlsns[cut]
                assert await read_by_us(namespace, log) == records[cut:]
                async with place.java_log(log) as java:
                    await _check_marks(await java.segments(), dlsns[cut])
                    # Java truncates by entries: it returns all records of the first entry that is kept.
                    assert await java.read(len(records) - index, FIRST) == records[index:]
            async with namespace.open_writer(log) as writer:
                newest = (await namespace.segments(log))[-1].segment_seqno
                assert await writer.truncate(DLSN(99, 0, 0)) == DLSN(newest + 1, 0, 0)
                assert await read_by_us(namespace, log) == []
                last = await writer.append(b"after", txid=1000)
            assert [each.dlsn for each in await read_by_us(namespace, log)] == [last]
            async with place.java_log(log) as java:
                (record,) = await java.read(1, FIRST)
                assert record == dlog.Record(last, 1000, b"after", len(payloads))


async def _check_marks(segments: list[dict[str, object]], first_kept: DLSN) -> None:
    for each in segments:
        seqno = each["segment_seqno"]
        assert isinstance(seqno, int)
        if seqno < first_kept.segment_seqno:
            assert each["truncation"] == "TRUNCATED"
        elif seqno == first_kept.segment_seqno:
            assert each["truncation"] == "PARTIALLY_TRUNCATED"
            assert each["min_active_dlsn"] == first_kept
        else:
            assert each["truncation"] == "ACTIVE"
