"""Row 9: a stream of both sides that we renamed is read and written by both under its new name."""

from __future__ import annotations

import pytest
import trio

import dlog
from tests.interop.java_streams import AT_ONCE, numbered
from tests.interop.streams import TEST_TIMEOUT_S, StreamPlace, same_for_both
from tests.interop.table import proves
from tests.interop.test_streams_row_9 import records_of


@proves(9, "renamed")
async def test_a_log_that_we_renamed_is_read_and_written_by_both_sides(place: StreamPlace) -> None:
    old, records = place.fresh_log(), numbered(6)
    new = f"{old}-renamed"
    with trio.fail_after(TEST_TIMEOUT_S):
        async with place.java_log(old, AT_ONCE) as java, java.open_writer() as writer:
            dlsns = await writer.write(*records[:2])
            async with place.namespace() as namespace:
                with pytest.raises(dlog.LogLockedError):
                    await namespace.rename_log(old, new)
        async with place.namespace() as namespace:
            await namespace.rename_log(old, new)
            assert not await namespace.log_exists(old)
            async with namespace.open_writer(new) as ours:
                dlsns += [await ours.append(each.payload, txid=each.txid) for each in records[2:4]]
        await same_for_both(place, new, records_of(records[:4], dlsns))
        async with place.java_log(new, AT_ONCE) as java, java.open_writer() as writer:
            dlsns += await writer.write(*records[4:])
        await same_for_both(place, new, records_of(records, dlsns))
