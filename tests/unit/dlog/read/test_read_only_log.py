"""Where reading starts, compared with a search through all records of a log that the test writes."""

from __future__ import annotations

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

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
from namespace.dlsn import DLSN
from namespace.segments.truncation import first_left, marked_before
from tests.fakes.log_by_hand import entries_of, open_log

DLSNS = st.builds(DLSN, st.integers(1, 4), st.integers(0, 4), st.integers(-1, 3))


@given(
    # For each segment, for each entry: the differences between the transaction ids of its records.
    steps=st.lists(
        st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=3), min_size=1, max_size=4),
        min_size=1,
        max_size=4,
    ),
    open_count=st.integers(0, 2),
    hidden_count=st.integers(0, 3),
    is_older_closed=st.booleans(),
    wanted=st.integers(0, 20),
)
def test_a_transaction_id_is_found_at_its_first_record(
    steps: list[list[list[int]]], open_count: int, hidden_count: int, is_older_closed: bool, wanted: int
) -> None:
    async def main() -> None:
        async with open_log() as log:
            txid, positions = 0, []
            for seqno, segment_steps in enumerate(steps, 1):
                entries, position = [], 1
                for entry_id, entry_steps in enumerate(segment_steps):
                    txids = []
                    for slot_id, step in enumerate(entry_steps):
                        txid += step
                        txids.append(txid)
                        positions.append((DLSN(seqno, entry_id, slot_id), txid))
                    entries.append(seal_envelope(encode_records([b""] * len(txids), txids, position)))
                    position += len(txids)
                shown = max(0, len(entries) - hidden_count)
                segment = await log.begin(seqno, seqno, entries, lac=shown - 1)
                if seqno <= len(steps) - open_count:
                    await log.complete(segment, position - 1, last_txid=txid)
                elif seqno < len(steps) and is_older_closed:
                    log.ledgers[seqno].lac, log.ledgers[seqno].is_closed = len(entries) - 1, True
            # A reader sees the records up to the last entry that the first open ledger shows.
            open_at = min([seqno for seqno, each in log.ledgers.items() if not each.is_closed], default=None)
            end = None if open_at is None else DLSN(open_at, log.ledgers[open_at].lac + 1, 0)
            first = next((dlsn for dlsn, txid in positions if txid >= wanted), None)
            found = await log.read_only.locate(await log.read_only.segments(), wanted)
            assert found is not None
            if first is not None and (end is None or first < end):
                assert found == first
            elif end is not None:
                assert found == end
            else:
                assert all(dlsn < found for dlsn, _ in positions)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@given(
    # For each segment, for each entry: its number of records; 0 for one control record.
    counts=st.lists(st.lists(st.integers(0, 2), max_size=4), min_size=1, max_size=3),
    is_recovered=st.booleans(),
    first_kept=DLSNS,
    start=DLSNS,
)
def test_a_position_is_truncated_exactly_if_a_record_at_or_after_it_is(
    counts: list[list[int]], is_recovered: bool, first_kept: DLSN, start: DLSN
) -> None:
    async def main() -> None:
        async with open_log() as log:
            segments, records = [], []
            for seqno, entry_counts in enumerate(counts, 1):
                entries, end, position = [], DLSN(seqno, -1, -1), 0
                for entry_id, count in enumerate(entry_counts):
                    body = encode_records([b""] * count, [5] * count, position + 1)
                    entries.append(
                        seal_envelope(body or encode_record(FLAG_CONTROL, position, 5, CONTROL_PAYLOAD))
                    )
                    dlsns = [DLSN(seqno, entry_id, slot_id) for slot_id in range(count)]
                    records += dlsns
                    position += count
                    if dlsns or is_recovered:  # a recovery ends a segment at its last record of any kind
                        end = DLSN(seqno, entry_id, max(0, count - 1))
                done = await log.complete(await log.begin(seqno, seqno, entries, lac=-1), position)
                segments.append(attrs.evolve(done, last_entry_id=end.entry_id, last_slot_id=end.slot_id))
            marked = {each.ledger_id: each for each in marked_before(segments, first_kept)}
            segments = [marked.get(each.ledger_id, each) for each in segments]
            left = first_left(segments)
            assert left is not None
            if any(start <= dlsn < left for dlsn in records):
                with pytest.raises(dlog.LogTruncatedError):
                    await log.read_only.locate(segments, start)
            else:
                assert await log.read_only.locate(segments, start) == max(start, left)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("fault", ["ledger gone", "entry damaged", "end of stream"])
async def test_a_range_that_cannot_be_read_counts_as_truncated(fault: str) -> None:
    async with open_log() as log:
        entries = [*entries_of(0, 1), seal_envelope(encode_record(FLAG_CONTROL, 1, 5, CONTROL_PAYLOAD))]
        done = await log.complete(await log.begin(1, 10, entries, lac=-1), 1)
        segments = [done.truncated()]
        assert await log.read_only.locate(segments, DLSN(1, 0, 1)) == DLSN(2, 0, 0)
        if fault == "ledger gone":
            del log.ledgers[10]
        elif fault == "entry damaged":
            log.ledgers[10].entries[1] = b"\x02" + entries[1][1:]
        else:
            seal = encode_record(FLAG_END_OF_STREAM, 2, TXID_MAX, END_OF_STREAM_PAYLOAD)
            log.ledgers[10].entries[1] = seal_envelope(seal)
        with pytest.raises(dlog.LogTruncatedError, match=r"begins at 2:0:0"):
            await log.read_only.locate(segments, DLSN(1, 0, 1))
        assert await log.read_only.locate(segments, DLSN(1, 1, 1)) == DLSN(2, 0, 0)
