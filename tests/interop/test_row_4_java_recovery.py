"""Row 4: Java's recovery of ledgers of Python writers that were killed or only paused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal

import pytest
import trio

from ledger.codes import Code
from ledger.digest import DigestType, EntryCodec
from ledger.metadata import LedgerState
from ledger.quorum import write_set
from ledger.transport.dial import Address, dial_tcp
from ledger.transport.transport import open_transport
from ledger.wire.messages import AddRequest
from tests.interop.clients import (
    PASSWORD,
    TEST_TIMEOUT_S,
    RemoteLedger,
    java_client,
    our_client,
    our_writing_client,
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


async def _confirmed_one_by_one(ledger: RemoteLedger) -> None:
    for payload in PAYLOADS:
        await ledger.add(payload)


async def _pipelined(ledger: RemoteLedger) -> None:
    await ledger.add_many(PAYLOADS)


async def _with_explicit_lac(ledger: RemoteLedger) -> None:
    await ledger.add_many(PAYLOADS)
    await ledger.ask("explicit_lac")


async def _with_a_gap(ledger: RemoteLedger) -> None:
    await ledger.add_many(PAYLOADS[:6])
    # The state after a writer's connections broke one after the other: 7 and 8 arrived, 6 did not.
    await _send_as_the_writer(ledger, [7, 8], lac=5)


@proves(4, "same last entry as our own recovery")
@pytest.mark.parametrize("sizes", [(3, 3, 2), (3, 2, 2)])
@pytest.mark.parametrize("version", [2, 3])
async def test_both_recoveries_find_the_same_end_of_equal_ledgers(
    originals: Originals,
    driver: Driver,
    cluster: Cluster,
    version: Literal[2, 3],
    sizes: tuple[int, int, int],
) -> None:
    states: list[tuple[Leave, int]] = [
        (_nothing, -1),
        (_confirmed_one_by_one, 11),
        (_pipelined, 11),
        (_with_explicit_lac, 11),
        (_with_a_gap, 5),
    ]
    with trio.fail_after(TEST_TIMEOUT_S):
        doomed = await trio.to_thread.run_sync(originals.start_our_driver)
        writing = await our_writing_client(doomed, cluster, version)
        java = await java_client(driver, cluster)
        twins: list[tuple[int, int, Leave, int]] = []
        for leave, last in states:
            pair = [await writing.create(sizes) for _ in range(2)]
            for ledger in pair:
                await leave(ledger)
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
                    lengths = [sum(map(len, PAYLOADS[: entry_id + 1])) for entry_id in (7, 8)]
                    assert theirs.length_bytes in lengths
                else:
                    assert theirs == ours
                # Each client reads the ledger that the other has closed.
                assert await end_by_us(client, for_java) == theirs
                assert await end_by_java(java, for_us) == ours


@proves(4, "killed while writing")
@pytest.mark.parametrize("version", [2, 3])
async def test_no_confirmed_entry_of_a_writer_killed_while_writing_is_lost(
    originals: Originals, driver: Driver, cluster: Cluster, version: Literal[2, 3]
) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        doomed = await trio.to_thread.run_sync(originals.start_our_driver)
        writer = await (await our_writing_client(doomed, cluster, version)).create()
        java = await java_client(driver, cluster)
        acked = await flood_until_killed(doomed, writer.handle, prefix="entry ")
        open_metadata = await stored_metadata(cluster, writer.ledger_id)
        async with our_client(cluster) as client:
            bookies = (await client.metadata(writer.ledger_id)).last_ensemble.bookies
            theirs = await end_by_java(java, writer.ledger_id)
            counts = await holders(java, bookies, writer.ledger_id, theirs.last_entry_id + 200)
            assert acked <= theirs.last_entry_id
            assert theirs.payloads == tuple(b"entry %d" % index for index in range(len(theirs.payloads)))
            assert theirs.last_entry_id in allowed_ends(counts, 2)
            await reopen(cluster, writer.ledger_id, open_metadata)
            ours = await end_by_us(client, writer.ledger_id)
            # Our recovery may keep more entries, which a minority holds, but never fewer.
            assert ours.last_entry_id in allowed_ends(counts, 2)
            assert ours.payloads[: len(theirs.payloads)] == theirs.payloads


@proves(4, "the resumed Python writer is fenced")
@pytest.mark.parametrize("version", [2, 3])
async def test_a_resumed_python_writer_can_add_no_entry(
    originals: Originals, driver: Driver, cluster: Cluster, version: Literal[2, 3]
) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        paused = await trio.to_thread.run_sync(originals.start_our_driver)
        writer = await (await our_writing_client(paused, cluster, version)).create()
        await writer.add_many([b"first", b"second"])
        paused.process.pause()
        late = writer.begin("add", payload=b"too late".hex())
        java = await java_client(driver, cluster)
        end = await end_by_java(java, writer.ledger_id)
        assert end.payloads == (b"first", b"second")
        paused.process.resume()
        with pytest.raises(DriverError, match="LedgerFencedError"):
            await paused.wait("add", late)
        with pytest.raises(DriverError, match="LedgerFencedError"):
            await writer.close()
        async with our_client(cluster) as client:
            metadata = await client.metadata(writer.ledger_id)
            assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 1)
            assert await end_by_us(client, writer.ledger_id) == end
        paused.process.kill()


async def _send_as_the_writer(ledger: RemoteLedger, entry_ids: list[int], *, lac: int) -> None:
    codec = EntryCodec(DigestType.CRC32C, PASSWORD)

    async def resolve(bookie: str) -> Address:
        host, _, port = bookie.rpartition(":")
        return Address(host, int(port))

    bookies: list[str] = ledger.opened["ensembles"][-1][1]
    async with open_transport(dial_tcp, resolve) as transport:
        for entry_id in entry_ids:
            body = codec.pack(
                ledger.ledger_id, entry_id, lac, sum(map(len, PAYLOADS[: entry_id + 1])), PAYLOADS[entry_id]
            )
            for index in write_set(entry_id, 3, ledger.opened["write_quorum"]):
                request = AddRequest(ledger.ledger_id, entry_id, codec.master_key, body)
                assert (await transport.call(bookies[index], request)).code is Code.OK
