from __future__ import annotations

import attrs
import pytest

from dlog.errors import LogMetadataError
from namespace.log_metadata import LogMetadata, next_segment_seqno
from namespace.segments.segment import LogSegment
from tests.fakes.log_paths import paths_of

METADATA = LogMetadata(
    log=paths_of("/ns", "log"),
    max_txid=0,
    max_txid_version=0,
    max_segment_seqno=0,
    max_segment_seqno_version=0,
    allocated_ledger_id=None,
    marks_version=0,
    allocation_version=0,
)
SEGMENT = LogSegment(segment_seqno=7, ledger_id=1, first_txid=0)


@pytest.mark.parametrize(
    ("stored", "newest", "first", "expected"),
    [
        (0, None, 1, 1),  # a new log
        (0, None, 5, 5),  # a new log of a namespace that counts from 5
        (1, None, 1, 1),  # its first segment was empty and is deleted
        (4, None, 5, 5),
        (7, 7, 1, 8),
        (8, 7, 1, 8),  # segment 8 was empty and is deleted
    ],
)
def test_the_next_number_follows_the_newest_segment(
    stored: int, newest: int | None, first: int, expected: int
) -> None:
    segments = [] if newest is None else [attrs.evolve(SEGMENT, segment_seqno=newest)]
    metadata = attrs.evolve(METADATA, max_segment_seqno=stored)
    assert next_segment_seqno(metadata, segments, first_seqno=first) == expected


@pytest.mark.parametrize(("stored", "newest"), [(9, 7), (6, 7), (0, 7), (5, None)])
def test_numbers_that_contradict_each_other_are_an_error(stored: int, newest: int | None) -> None:
    segments = [] if newest is None else [attrs.evolve(SEGMENT, segment_seqno=newest)]
    with pytest.raises(LogMetadataError, match=f"stored is {stored}"):
        next_segment_seqno(attrs.evolve(METADATA, max_segment_seqno=stored), segments)
