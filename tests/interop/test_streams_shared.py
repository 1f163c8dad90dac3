"""Row 8: Apache's reader gets what several programs wrote by a shared writer: in order, each once."""

from __future__ import annotations

from functools import partial

import pytest
import trio

from dlog import DLSN
from tests.crash.shared_crowd import open_crowd
from tests.interop.java_streams import AT_ONCE, JavaRecord
from tests.interop.streams import (
    SESSION_TIMEOUT_MS,
    TEST_TIMEOUT_S,
    StreamPlace,
    expected_records,
    payloads_of,
    read_by_us,
    same_for_both,
)
from tests.interop.table import proves
from tests.interop.test_streams_row_10 import read_by_both


@proves(8, "shared writers")
@pytest.mark.parametrize("keys", [False, True], ids=["plain", "with_keys"])
async def test_java_reads_what_several_programs_wrote_before_and_after_a_take_over(
    place: StreamPlace, keys: bool
) -> None:
    """The producers of the records, and keys, are in a control record after the user records of an entry."""
    log, payloads, dlsns = place.fresh_log(), payloads_of(60), list[DLSN]()
    key = b"key" if keys else None
    small = partial(place.namespace, segment_bytes_max=2000, keys_and_headers=keys)
    with trio.fail_after(TEST_TIMEOUT_S):
        async with (
            small(client_id="first") as namespace,
            small(client_id="second") as other,
            namespace.open_writer(log, create=True, shared=True, producer="first") as first,
            other.open_writer(log, shared=True, producer="second") as second,
        ):
            for start in range(0, 60, 20):
                writers = (first, second) if start < 40 else (second, second)
                for at, writer in zip((start, start + 10), writers, strict=True):
                    dlsns.append(await writer.append(payloads[at], txid=at + 1, key=key))
                    batch, txids = payloads[at + 1 : at + 10], range(at + 2, at + 11)
                    dlsns += await writer.append_many(batch, txids=txids, atomic=not at, keys=[key] * 9)
                if start == 20:
                    assert (first.is_owner, second.is_owner) == (True, False)
                    await first.aclose()
            assert second.is_owner
            await second.append(payloads[-1], txid=60, key=key, sequence=second.last_sequence)  # a repeat
        await same_for_both(place, log, expected_records(payloads, dlsns))
        async with place.java_log(log, AT_ONCE) as java, java.open_writer() as java_writer:
            dlsns += await java_writer.write(JavaRecord(61, b"java"))
        await same_for_both(place, log, expected_records([*payloads, b"java"], dlsns))
        async with place.namespace() as namespace:
            producers = [each.producer for each in await read_by_us(namespace, log)]
        assert [each and each[0] for each in producers[:40]] == (["first"] * 10 + ["second"] * 10) * 2
        assert producers[40:] == [*(("second", number) for number in range(20, 40)), None]


@proves(8, "shared writers, the owner killed")
async def test_java_reads_each_record_once_and_in_order_after_owners_were_killed(place: StreamPlace) -> None:
    log = place.fresh_log()
    with trio.fail_after(TEST_TIMEOUT_S):
        async with open_crowd(f"{place.uri}?session_timeout_ms={SESSION_TIMEOUT_MS}", log) as crowd:
            for _ in range(3):
                await crowd.start()
            for _ in range(2):
                await crowd.more_from(crowd.living, 20)
                await crowd.kill(crowd.owner)
                await crowd.more_from(crowd.living, 20)
                await crowd.start()
            await crowd.check()
        assert len(await read_by_both(place, log)) >= 100
