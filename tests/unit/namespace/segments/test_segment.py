from __future__ import annotations

from typing import Any

import attrs
import pytest

from dlog.errors import LogMetadataError
from namespace.dlsn import DLSN
from namespace.segments.segment import (
    INVALID_TXID,
    MAX_TXID,
    LogSegment,
    TruncationStatus,
    decode_segment,
    encode_segment,
    is_segment_name,
    segment_name,
    segment_seqno_of,
    sequence_id_base,
    start_sequence_id_after,
)

STARTED = LogSegment(segment_seqno=7, ledger_id=1234, first_txid=100)
DONE = STARTED.completed(
    last_txid=109,
    record_count=10,
    last_entry_id=12,
    last_slot_id=0,
    completed_ms=1500000000000,
    start_sequence_id=60,
)


def version(segment: LogSegment, number: int) -> LogSegment:
    """The segment in the form of an older release."""
    return attrs.evolve(
        segment,
        version=number,
        segment_seqno=segment.segment_seqno if number > 1 else 0,
        last_entry_id=segment.last_entry_id if number > 1 else -1,
        last_slot_id=segment.last_slot_id if number > 1 else -1,
        start_sequence_id=segment.start_sequence_id if number > 4 else -1,
    )


@pytest.mark.parametrize(
    ("text", "segment"),
    [
        ("1;1234;100", version(STARTED, 1)),
        ("42949672961;1234;100;109;1500000000000", version(DONE, 1)),
        ("2;1234;100;7", version(STARTED, 2)),
        ("42949672962;1234;100;109;1500000000000;7;12;0", version(DONE, 2)),
        ("3;1234;100;7;0;0", version(STARTED, 3)),
        ("42949672963;1234;100;109;1500000000000;7;12;0;0;0", version(DONE, 3)),
        ("4;1234;100;7;0;0", version(STARTED, 4)),
        ("42949672964;1234;100;109;1500000000000;7;12;0;0;0", version(DONE, 4)),
        ("5;1234;100;7;0;0;-1", STARTED),
        ("42949672965;1234;100;109;1500000000000;7;12;0;0;0;60", DONE),
        ("42949673477;1234;100;109;1500000000000;7;12;0;0;0;60", DONE.truncated()),
        (
            "42949673221;1234;100;109;1500000000000;7;12;0;3;0;60",
            DONE.partially_truncated(DLSN(7, 3, 0)),
        ),
        ("43486543877;1234;100;109;1500000000000;7;12;0;0;0;60", attrs.evolve(DONE, region_id=2)),
        (
            "42949672965;1234;100;9223372036854775807;1500000000000;7;12;0;0;0;60",
            attrs.evolve(DONE, last_txid=MAX_TXID),
        ),
    ],
)
def test_every_version_and_state_has_its_stored_text(text: str, segment: LogSegment) -> None:
    assert encode_segment(segment) == text.encode()
    assert decode_segment(text.encode()) == segment


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not a signed 64-bit decimal"),
        ("5", "1 fields, version 5 has 7 in progress and 11 completed"),
        ("0;1;2", "version 0"),
        ("6;1234;100;7;0;0;-1", "version 6"),
        ("-1;1234;100;7;0;0;-1", "version 255"),
        ("5;1234;100;7;0;0", "6 fields"),
        ("5;1234;100;7;0;0;-1;", "'' is not"),
        ("5;1234;100;7;0;0;+1", "'.1' is not"),
        ("5;1234;100;7;0;0; 1", "' 1' is not"),
        ("5;1234;100;7;0;0;9223372036854775808", "is not a signed 64-bit"),
        ("5;1234;100;7;0;0;0x1", "'0x1' is not"),
        ("5;1234;100;7;0;0;\u0661", "not ASCII"),
    ],
)
def test_an_invalid_segment_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(LogMetadataError, match=reason):
        decode_segment(text.encode())


@pytest.mark.parametrize("wrong", [{"first_txid": 1.9e18}, {"min_active_entry_id": 0.5}, {"ledger_id": "7"}])
def test_a_segment_that_could_not_be_read_again_is_not_stored(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="a value that is no integer"):
        encode_segment(attrs.evolve(DONE, **wrong))


def test_a_segment_in_progress_has_neither_end_nor_start_sequence_id() -> None:
    segment = decode_segment(b"5;1234;100;7;0;0;99")
    assert (segment.last_txid, segment.record_count, segment.start_sequence_id) == (INVALID_TXID, 0, -1)
    assert segment.last_dlsn == DLSN(7, -1, -1)


def test_completing_keeps_version_region_and_status_and_changes_the_name() -> None:
    old = attrs.evolve(version(STARTED, 4), region_id=3)
    done = old.completed(
        last_txid=1, record_count=1, last_entry_id=0, last_slot_id=0, completed_ms=5, start_sequence_id=60
    )
    assert (done.version, done.region_id, done.start_sequence_id) == (4, 3, -1)
    assert (old.name, done.name) == ("inprogress_000000000000000007", "logrecs_000000000000000007")
    assert old.enveloped
    assert not version(STARTED, 3).enveloped


def test_unused_bits_are_kept() -> None:
    head = (10 << 32) | 5 | 0x0FFF_0000 | 0x3F << 10 | 2 << 8
    text = f"{head};1234;100;109;1500000000000;7;12;0;0;0;60".encode()
    segment = decode_segment(text)
    assert segment.truncation is TruncationStatus.TRUNCATED
    assert encode_segment(segment) == text
    unknown = decode_segment(text.replace(str(head).encode(), str(5 | 3 << 8).encode()))
    assert unknown.truncation is TruncationStatus.UNKNOWN


def test_legacy_names_are_kept() -> None:
    segment = decode_segment(b"5;1234;100;7;0;0;-1", "inprogress_64")
    assert segment == STARTED
    assert segment.name == "inprogress_64"
    assert DONE.name == segment_name(7, in_progress=False)


def test_node_names_give_number_and_state() -> None:
    assert segment_seqno_of("logrecs_000000000000000007") == 7
    assert segment_seqno_of("inprogress_64") is None
    assert segment_seqno_of("logrecs_000000000000000001_000000000000000002") is None
    assert segment_seqno_of("other_000000000000000007") is None
    assert is_segment_name("logrecs_000000000000000001_000000000000000002")
    assert not is_segment_name("lock")


def test_sequence_ids_continue_from_segment_to_segment() -> None:
    assert start_sequence_id_after(None) == 0
    assert start_sequence_id_after(DONE) == 70
    assert start_sequence_id_after(version(DONE, 4)) == 0
    assert sequence_id_base(STARTED, DONE) == 70
    assert sequence_id_base(STARTED, None) == 0
    assert sequence_id_base(DONE, None) == 60


def test_sequence_ids_of_old_segments_are_negative_and_still_grow() -> None:
    old, next_old = version(DONE, 4), attrs.evolve(version(DONE, 4), segment_seqno=8)
    assert sequence_id_base(old, None) == -(2**63) + 7 * 2**32
    assert sequence_id_base(old, None) + 2**31 < sequence_id_base(next_old, old)
    assert sequence_id_base(attrs.evolve(DONE, start_sequence_id=-1), None) == -(2**63) + 7 * 2**32


@pytest.mark.parametrize(
    "change",
    [{"record_count": 2**31}, {"record_count": -1}, {"last_txid": 2**63}, {"start_sequence_id": 2**63}],
)
def test_numbers_that_no_reader_could_read_again_are_not_stored(change: dict[str, Any]) -> None:
    with pytest.raises(LogMetadataError, match=r"does not fit|it holds up to"):
        encode_segment(attrs.evolve(DONE, **change))
