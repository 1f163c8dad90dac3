"""Rows 8 and 9: batches of segments that we attached are read by both sides, and Java writes after them."""

from __future__ import annotations

import trio

from tests.interop.java_streams import AT_ONCE, JavaRecord, numbered
from tests.interop.streams import TEST_TIMEOUT_S, StreamPlace, same_for_both
from tests.interop.table import proves
from tests.interop.test_streams_row_9 import records_of


@proves(8, "attached in a batch")
async def test_a_batch_attached_between_records_of_java_is_read_by_both_sides(place: StreamPlace) -> None:
    log, early = place.fresh_log(), numbered(2)
    with trio.fail_after(TEST_TIMEOUT_S):
        async with place.java_log(log, AT_ONCE) as java, java.open_writer() as writer:
            dlsns = await writer.write(*early)
        async with place.namespace() as namespace:
            plan = await namespace.batches.begin([log], series="query", number=1)
            assert plan is not None
            txid, segments, ours = plan.logs[log].txid, [], []
            for payloads in ([b"a", b"b"], [b"c"]):
                async with namespace.batches.open_segment(plan, log) as segment:
                    await segment.append_many(payloads)
                assert segment.result is not None
                segments.append(segment.result)
                ours += [JavaRecord(txid, payload) for payload in payloads]
            (first, last), *_ = (await namespace.batches.attach(plan, segments)).positions.values()
        dlsns += [first, first.next_slot(), last]
        await same_for_both(place, log, records_of([*early, *ours], dlsns))
        late = numbered(2, first=txid + 1)
        async with place.java_log(log, AT_ONCE) as java, java.open_writer() as writer:
            dlsns += await writer.write(*late)
        await same_for_both(place, log, records_of([*early, *ours, *late], dlsns))
