"""Where reading starts in a log laid out by hand, beside a search through all there is, seen or not."""

from __future__ import annotations

import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from log_by_hand import open_log

from dlog.envelope import seal_envelope
from dlog.record import encode_records
from namespace.dlsn import DLSN


@given(
    # Segments of entries of the steps from one transaction id to the next.
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
def test_a_transaction_id_is_found_where_it_is_first_and_none_is_skipped(
    steps: list[list[list[int]]], open_count: int, hidden_count: int, is_older_closed: bool, wanted: int
) -> None:
    async def play() -> None:
        async with open_log() as log:
            txid, places = 0, []
            for seqno, segment_steps in enumerate(steps, 1):
                entries, position = [], 1
                for entry_id, entry_steps in enumerate(segment_steps):
                    txids = []
                    for slot_id, step in enumerate(entry_steps):
                        txid += step
                        txids.append(txid)
                        places.append((DLSN(seqno, entry_id, slot_id), txid))
                    entries.append(seal_envelope(encode_records([b""] * len(txids), txids, position)))
                    position += len(txids)
                shown = max(0, len(entries) - hidden_count)
                segment = await log.begin(seqno, seqno, entries, lac=shown - 1)
                if seqno <= len(steps) - open_count:
                    await log.complete(segment, position - 1, last_txid=txid)
                elif seqno < len(steps) and is_older_closed:
                    log.ledgers[seqno].lac, log.ledgers[seqno].is_closed = len(entries) - 1, True
            # What can be read now: up to where the first open ledger shows no more.
            open_at = min([seqno for seqno, each in log.ledgers.items() if not each.is_closed], default=None)
            end = None if open_at is None else DLSN(open_at, log.ledgers[open_at].lac + 1, 0)
            first = next((dlsn for dlsn, txid in places if txid >= wanted), None)
            found = await log.source.locate(await log.source.segments(), wanted)
            assert found is not None
            if first is not None and (end is None or first < end):
                assert found == first
            elif end is not None:
                assert found == end
            else:
                assert all(dlsn < found for dlsn, _ in places)

    trio.run(play, clock=trio.testing.MockClock(autojump_threshold=0))
