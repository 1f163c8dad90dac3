"""A reader that begins between the parts of a large record looks back for the first of them."""

from __future__ import annotations

from typing import Any

import pytest

from dlog import DLSN
from dlog.format.envelope import PARTS_ENVELOPE_VERSION, seal_envelope
from dlog.format.large_record import PART_BYTES_MAX, head_of, parts_of
from dlog.format.record import FLAG_CONTROL, FLAG_PART, encode_record
from dlog.read.read_ahead import ReadAhead
from ledger.errors import NoSuchLedgerError
from ledger.handle import ReadHandle
from namespace.segments.segment import LogSegment
from tests.fakes.log_by_hand import entries_of, open_log

LARGE = bytes(2 * PART_BYTES_MAX + 10)


def entries_with_a_large_record() -> list[bytes]:
    """A record, two parts of a large one, its head, a record."""
    parts = [encode_record(FLAG_PART | FLAG_CONTROL, 1, 5, part) for part in parts_of(LARGE)]
    head = encode_record(FLAG_PART, 2, 5, head_of(LARGE))
    return [
        *entries_of(0, 1),
        *(seal_envelope(each, version=PARTS_ENVELOPE_VERSION) for each in (*parts, head)),
        *entries_of(2, 3),
    ]


@pytest.mark.parametrize(
    ("start", "moves_at", "resumed"),
    [
        (DLSN(1, 0, 0), 2, DLSN(1, 2, 0)),
        (DLSN(1, 0, 0), 4, DLSN(1, 4, 0)),
        # The reader looks back to entry 1. No record between that one and its start may be read.
        (DLSN(1, 2, 0), 2, DLSN(1, 2, 0)),
        (DLSN(1, 3, 0), 2, DLSN(1, 3, 0)),
    ],
)
async def test_a_segment_that_moves_while_it_is_read_is_read_on_where_the_reader_is(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch, start: DLSN, moves_at: int, resumed: DLSN
) -> None:
    """The log was promoted and purged: the rest of the segment is in another ledger."""
    begun: list[DLSN] = []
    fetch_segment = ReadAhead._fetch_segment

    async def fetch_noted(self: ReadAhead, segment: LogSegment, start: DLSN) -> Any:
        begun.append(start)
        return await fetch_segment(self, segment, start)

    monkeypatch.setattr(ReadAhead, "_fetch_segment", fetch_noted)
    async with open_log() as log:
        entries = entries_with_a_large_record()
        await log.complete(await log.begin(1, 10, entries, lac=-1), 3)
        log.ledgers[10].entries_at_once = 1
        log.ledgers[10].entry_errors = {moves_at: NoSuchLedgerError(10)}

        async def has_moved(_: ReadHandle) -> bool:
            log.ledgers[10].entry_errors = {}  # the ledger there has the same number
            return True

        monkeypatch.setattr(log.read_only, "has_moved", has_moved)
        async with log.reader(start=start, follow=False) as reader:
            records = [record async for record in reader]
    stored = [(DLSN(1, 0, 0), b"0"), (DLSN(1, 3, 0), LARGE), (DLSN(1, 4, 0), b"2")]
    assert [(record.dlsn, record.payload) for record in records] == [one for one in stored if one[0] >= start]
    assert begun == [start, resumed]
