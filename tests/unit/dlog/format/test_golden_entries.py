"""Every entry captured from Apache DistributedLog is read and written again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dlog.format.compression import Compression
from dlog.format.envelope import open_envelope, seal_envelope
from dlog.format.record import (
    CONTROL_PAYLOAD,
    FLAG_CONTROL,
    FLAG_END_OF_STREAM,
    FLAG_RECORD_SET,
    Record,
    decode_records,
    encode_record,
)
from dlog.format.record_set import SetBudget, decode_record_set
from dlog.read.segment_reader import SegmentReader, last_record_of
from dlog.write.batcher import Batch
from dlog.write.segment_writer import SegmentWriter
from namespace.dlsn import DLSN
from namespace.segments.segment import LogSegment, decode_segment
from tests.fakes.record_sets import encode_record_set
from tests.places import GOLDEN_FILES

SEGMENTS: list[dict[str, Any]] = json.loads((GOLDEN_FILES / "distributedlog" / "entries.json").read_text())
ENTRIES = [
    pytest.param(segment, entry, id=f"{index}-{segment['name']}-{entry['entry']}")
    for index, segment in enumerate(SEGMENTS)
    for entry in segment["ledger"]["entries"]
    if not entry.get("prefix_only")
]


def metadata_of(segment: dict[str, Any]) -> LogSegment:
    return decode_segment(segment["segment"]["data"].encode())


def records_in(segment: dict[str, Any], entry: dict[str, Any]) -> tuple[list[Record], SegmentReader]:
    start = DLSN(segment["segment"]["lssn"], entry["entry"], 0)
    reader = SegmentReader(
        start.segment_seqno,
        segment["segment"]["start_sequence_id"],
        start=start,
        enveloped=metadata_of(segment).enveloped,
    )
    reader.confirmed(entry["entry"], closed=False)
    return reader.decode_all([bytes.fromhex(entry["hex"])]), reader


@pytest.mark.parametrize(("segment", "entry"), ENTRIES)
def test_java_entries_are_read_as_java_reads_them(segment: dict[str, Any], entry: dict[str, Any]) -> None:
    records, reader = records_in(segment, entry)
    wanted = [
        Record(DLSN(*each["dlsn"]), each["txid"], bytes.fromhex(each["payload"]), each["sequence_id"])
        for each in entry["records"]
        if not each["flags"] & (FLAG_CONTROL | FLAG_END_OF_STREAM)
    ]
    assert records == wanted
    assert reader.is_sealed == any(each["flags"] & FLAG_END_OF_STREAM for each in entry["records"])
    assert reader.next_entry_id == entry["entry"] + 1


@pytest.mark.parametrize(("segment", "entry"), ENTRIES)
def test_every_field_of_every_record_is_decoded(segment: dict[str, Any], entry: dict[str, Any]) -> None:
    data = bytes.fromhex(entry["hex"])
    enveloped = metadata_of(segment).enveloped
    body, start, stop = open_envelope(data) if enveloped else (data, 0, len(data))
    expected = [
        (each["flags"], each["position"], each["txid"], bytes.fromhex(each["payload"]))
        for each in entry.get("records_raw_sets", entry["records"])
    ]
    assert decode_records(body, start, stop) == expected
    last = entry["records"][-1]
    flags = last["flags"] | (expected[-1][0] & FLAG_RECORD_SET)
    assert last_record_of(data, enveloped=enveloped) == (
        flags,
        last["position"],
        last["txid"],
        last["dlsn"][2],
    )


@pytest.mark.parametrize(("segment", "entry"), ENTRIES)
def test_uncompressed_entries_of_java_are_written_identically(
    segment: dict[str, Any], entry: dict[str, Any]
) -> None:
    data = bytes.fromhex(entry["hex"])
    enveloped = metadata_of(segment).enveloped
    body, start, stop = open_envelope(data) if enveloped else (data, 0, len(data))
    again = b"".join(
        encode_record(flags, position, txid, payload)
        for flags, position, txid, payload in decode_records(body, start, stop)
    )
    if not enveloped:
        assert again == data
    elif data[4] == Compression.NONE.value:
        assert seal_envelope(again) == data
    else:
        # Two LZ4 encoders may write different blocks with the same content.
        assert open_envelope(seal_envelope(again, Compression.LZ4))[0][-len(again) :] == again


@pytest.mark.parametrize(
    "segment", [each for each in SEGMENTS if each["name"] in ("single-none", "batch-none")]
)
def test_a_segment_writer_writes_the_same_entries_as_java(segment: dict[str, Any]) -> None:
    writer = SegmentWriter(
        segment["segment"]["lssn"],
        segment["ledger"]["ledger"],
        segment["segment"]["first_txid"],
        Compression.NONE,
    )
    for entry in segment["ledger"]["entries"]:
        batch = Batch()
        for each in entry["records"]:
            if each["control"]:
                assert bytes.fromhex(each["payload"]) == CONTROL_PAYLOAD
            else:
                batch.payloads.append(bytes.fromhex(each["payload"]))
                batch.txids.append(each["txid"])
        written = writer.encode(batch)
        assert written.hex() == entry["hex"]
        writer.sent(batch, entry["entry"], len(written))
    writer.confirmed(segment["ledger"]["lac"])
    assert writer.position == segment["segment"]["records"]
    assert writer.last_txid == segment["segment"]["last_txid"]
    assert writer.last_dlsn == DLSN(*segment["segment"]["last_dlsn"])


@pytest.mark.parametrize(
    "entry", [e for s in SEGMENTS for e in s["ledger"]["entries"] if "records_raw_sets" in e]
)
def test_java_record_sets_are_unpacked_and_packed(entry: dict[str, Any]) -> None:
    for each in entry["records_raw_sets"]:
        if each["flags"] & FLAG_RECORD_SET:
            payload = bytes.fromhex(each["payload"])
            parts = decode_record_set(payload, SetBudget())
            if payload[3] & 0x3 == Compression.NONE.value:
                assert encode_record_set(parts) == payload
            else:
                assert decode_record_set(encode_record_set(parts, Compression.LZ4), SetBudget()) == parts


def test_a_whole_log_is_read_as_java_reads_it() -> None:
    logs = [each for each in SEGMENTS if each.get("read_back_by_java_reader")]
    assert logs
    for last in logs:
        segments = [each for each in SEGMENTS if each["name"] == last["name"]]
        if any(entry.get("prefix_only") for each in segments for entry in each["ledger"]["entries"]):
            continue
        found: list[Record] = []
        for segment in segments:
            reader = SegmentReader(
                segment["segment"]["lssn"],
                segment["segment"]["start_sequence_id"],
                enveloped=metadata_of(segment).enveloped,
            )
            reader.confirmed(segment["ledger"]["lac"], closed=segment["ledger"]["closed"])
            entries = [bytes.fromhex(entry["hex"]) for entry in segment["ledger"]["entries"]]
            found += reader.decode_all(entries[: segment["ledger"]["lac"] + 1])
        wanted = [
            Record(DLSN(*each["dlsn"]), each["txid"], bytes.fromhex(each["payload"]), each["sequence_id"])
            for each in last["read_back_by_java_reader"]
            if "dlsn" in each
        ]
        assert found == wanted, last["name"]
