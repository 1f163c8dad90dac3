"""Row 3: our recovery of ledgers of Java writers that were killed or only paused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal

import pytest
import trio

from ledger.metadata import LedgerState
from tests.interop.clients import (
    FENCED,
    TEST_TIMEOUT_S,
    RemoteClient,
    RemoteLedger,
    java_client,
    our_client,
    some_payloads,
)
from tests.interop.driver import Driver, DriverError
from tests.interop.killed_writers import (
    allowed_ends,
    end_by_java,
    end_by_us,
    flood_until_killed,
    holders,
    reopen,
    stored_metadata,
)
from tests.interop.originals import Cluster, Originals
from tests.interop.table import proves

PAYLOADS = some_payloads(12)
Leave = Callable[[RemoteLedger], Awaitable[Any]]


@pytest.fixture(params=["java", "ours"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """Bookies of either kind: the result of a recovery must not depend on it."""
    found: Cluster = request.getfixturevalue("java_cluster" if request.param == "java" else "our_cluster")
    return found


async def _nothing(ledger: RemoteLedger) -> None:
    assert ledger.lac == -1


async def _acknowledged_one_by_one(ledger: RemoteLedger) -> None:
    for payload in PAYLOADS:
        await ledger.add(payload)


async def _pipelined(ledger: RemoteLedger) -> None:
    await ledger.add_many(PAYLOADS)


async def _with_a_gap(ledger: RemoteLedger) -> None:
    # Entry 6 is missing. 7 and 8 were sent and stored, but the writer could not acknowledge them.
    for entry_id in range(6):
        await ledger.ask("add_at", entry_id=entry_id, payload=PAYLOADS[entry_id].hex())
    for entry_id in (7, 8):
        ledger.begin("add_at", entry_id=entry_id, payload=PAYLOADS[entry_id].hex())
        while (await ledger.state())["length"] < sum(map(len, PAYLOADS[:6] + PAYLOADS[7 : entry_id + 1])):
            pass  # the length in the next entry must include this one


async def _never_forced(ledger: RemoteLedger) -> None:
    # Bookies acknowledge without a sync, so the LAC stays at -1, but the entries are stored.
    await ledger.add_many(PAYLOADS)


@proves(3, "same last entry as Java's own recovery")
@pytest.mark.parametrize("sizes", [(3, 3, 2), (3, 2, 2)])
async def test_both_recoveries_find_the_same_end_of_equal_ledgers(
    originals: Originals, driver: Driver, cluster: Cluster, sizes: tuple[int, int, int]
) -> None:
    states: list[tuple[Leave, dict[str, Any], int]] = [
        (_nothing, {}, -1),
        (_acknowledged_one_by_one, {}, 11),
        (_pipelined, {}, 11),
        (_with_a_gap, {"adv": True}, 5),
        (_never_forced, {"deferred_sync": True}, 11),
    ]
    with trio.fail_after(TEST_TIMEOUT_S):
        doomed = await trio.to_thread.run_sync(originals.start_driver)
        writing = await java_client(doomed, cluster)
        java = await java_client(driver, cluster)
        twins: list[tuple[int, int, Leave, int]] = []
        for leave, how, last in states:
            pair = [await writing.create(sizes, **how) for _ in range(2)]
            for ledger in pair:
                await leave(ledger)
                if leave is _with_a_gap:
                    await _until_stored(java, ledger, 8, copies=sizes[1])
            twins.append((pair[0].ledger_id, pair[1].ledger_id, leave, last))
        doomed.process.kill()
        async with our_client(cluster) as client:
            for for_java, for_us, left, last in twins:
                theirs, ours = await end_by_java(java, for_java), await end_by_us(client, for_us)
                assert theirs.last_entry_id == ours.last_entry_id == last
                assert list(theirs.payloads) == list(ours.payloads) == PAYLOADS[: last + 1]
                assert ours.length_bytes == sum(map(len, ours.payloads))
                if left is _with_a_gap:
                    # Java takes the length from the entry with the newest LAC: here from 7 or 8.
                    beyond = len(PAYLOADS[7])
                    assert theirs.length_bytes - ours.length_bytes in (beyond, beyond + len(PAYLOADS[8]))
                else:
                    assert theirs == ours
                # Each client reads the ledger that the other has closed.
                assert await end_by_us(client, for_java) == theirs
                assert await end_by_java(java, for_us) == ours


@proves(3, "killed while writing")
@pytest.mark.parametrize("version", [2, 3])
async def test_no_acknowledged_entry_of_a_writer_killed_while_writing_is_lost(
    originals: Originals, driver: Driver, cluster: Cluster, version: Literal[2, 3]
) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        doomed = await trio.to_thread.run_sync(originals.start_driver)
        writer = await (await java_client(doomed, cluster, version)).create()
        java = await java_client(driver, cluster)
        acked = await flood_until_killed(doomed, writer.handle, prefix="entry ")
        open_metadata = await stored_metadata(cluster, writer.ledger_id)
        bookies = writer.opened["metadata"]["ensembles"][0]["bookies"]
        async with our_client(cluster) as client:
            ours = await end_by_us(client, writer.ledger_id)
            counts = await holders(java, bookies, writer.ledger_id, ours.last_entry_id + 200)
            assert acked <= ours.last_entry_id
            assert ours.payloads == tuple(b"entry %d" % index for index in range(len(ours.payloads)))
            # Every recovered entry is on an ack quorum at least, and no later entry is.
            assert ours.last_entry_id in allowed_ends(counts, 2)
            await reopen(cluster, writer.ledger_id, open_metadata)
            theirs = await end_by_java(java, writer.ledger_id)
            # Java may keep more entries, which a minority holds, but never fewer.
            assert theirs.last_entry_id in allowed_ends(counts, 2)
            assert theirs.payloads[: len(ours.payloads)] == ours.payloads


@proves(3, "the resumed Java writer is fenced")
@pytest.mark.parametrize("version", [2, 3])
async def test_a_resumed_java_writer_can_add_no_entry(
    originals: Originals, driver: Driver, cluster: Cluster, version: Literal[2, 3]
) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        paused = await trio.to_thread.run_sync(originals.start_driver)
        writing = await java_client(paused, cluster, version)
        writer = await writing.create()
        await writer.add_many([b"first", b"second"])
        paused.process.pause()
        late = writer.begin("add", payload=b"too late".hex())
        async with our_client(cluster) as client:
            end = await end_by_us(client, writer.ledger_id)
            assert end.payloads == (b"first", b"second")
            paused.process.resume()
            with pytest.raises(DriverError) as refused:
                await paused.wait("add", late)
            assert refused.value.code == FENCED
            metadata = await client.metadata(writer.ledger_id)
            assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 1)
            assert await end_by_us(client, writer.ledger_id) == end
            assert await end_by_java(await java_client(driver, cluster), writer.ledger_id) == end
        paused.process.kill()


async def _until_stored(java: RemoteClient, ledger: RemoteLedger, entry_id: int, *, copies: int) -> None:
    bookies = ledger.opened["metadata"]["ensembles"][0]["bookies"]
    while (await holders(java, bookies, ledger.ledger_id, entry_id))[entry_id] < copies:
        pass  # each request waits for its reply
