"""Row 2: Apache's client, in both of its modes, on our bookies. Our client also reads its ledgers."""

from __future__ import annotations

from typing import Any, Literal

import attrs
import pytest
import trio

from ledger.catalog.catalog import open_catalog
from ledger.digest import DigestType
from ledger.metadata_store.store import MetadataStore
from tests.interop.clients import (
    DUPLICATE_ENTRY,
    NO_SUCH_LEDGER,
    PASSWORD,
    READ_ERROR,
    TEST_TIMEOUT_S,
    UNAUTHORIZED,
    UNAVAILABLE,
    java_client,
    our_client,
    payloads_of,
    some_payloads,
)
from tests.interop.driver import Driver, DriverError
from tests.interop.originals import Cluster
from tests.interop.table import proves

Version = Literal[2, 3]
both_versions = pytest.mark.parametrize("version", [2, 3])


@pytest.mark.parametrize(
    "version",
    [
        pytest.param(2, marks=proves(2, "create, append, read, close: v2")),
        pytest.param(3, marks=proves(2, "create, append, read, close: v3")),
    ],
)
async def test_both_clients_read_a_ledger_of_java(
    our_cluster: Cluster, driver: Driver, version: Version
) -> None:
    payloads = some_payloads(40)
    custom = {"application": b"interop", "empty": b""}
    with trio.fail_after(TEST_TIMEOUT_S):
        java = await java_client(driver, our_cluster, version)
        writer = await java.create(custom={key: value.hex() for key, value in custom.items()})
        assert await writer.add(payloads[0]) == 0
        assert await writer.add_many(payloads[1:]) == list(range(1, 40))
        closed = await writer.close()
        assert closed["metadata"]["state"] == "CLOSED"
        assert (closed["lac"], closed["length"]) == (39, sum(map(len, payloads)))
        seen = await java.open(writer.ledger_id)
        assert await seen.read(0, 39) == payloads
        with pytest.raises(DriverError) as refused:
            await seen.read(40, 40)
        assert refused.value.code == READ_ERROR
        async with our_client(our_cluster) as client:
            reader = await client.open(writer.ledger_id, password=PASSWORD)
            assert reader.metadata.custom == custom
            assert reader.length_bytes == sum(map(len, payloads))
            assert [entry.payload for entry in await reader.read(0, 39)] == payloads


@proves(2, "each digest type")
@both_versions
@pytest.mark.parametrize("digest", list(DigestType))
async def test_both_clients_verify_each_digest_type(
    our_cluster: Cluster, driver: Driver, version: Version, digest: DigestType
) -> None:
    payloads = some_payloads(6, salt=digest.name)
    with trio.fail_after(TEST_TIMEOUT_S):
        java = await java_client(driver, our_cluster, version)
        writer = await java.create(digest=digest)
        await writer.add_many(payloads)
        await writer.close()
        seen = await java.open(writer.ledger_id, digest=digest)
        assert await seen.read(0, 5) == payloads
        async with our_client(our_cluster) as client:
            reader = await client.open(writer.ledger_id, password=PASSWORD)
            assert reader.metadata.digest_type is digest
            assert [entry.payload for entry in await reader.read(0, 5)] == payloads


@proves(2, "E > Qw striping")
@both_versions
@pytest.mark.parametrize("sizes", [(3, 2, 2), (3, 2, 1), (3, 1, 1)])
async def test_both_clients_find_striped_entries(
    our_cluster: Cluster, driver: Driver, version: Version, sizes: tuple[int, int, int]
) -> None:
    payloads = some_payloads(13)
    with trio.fail_after(TEST_TIMEOUT_S):
        java = await java_client(driver, our_cluster, version)
        writer = await java.create(sizes)
        await writer.add_many(payloads)
        await writer.close()
        seen = await java.open(writer.ledger_id)
        assert await seen.read(0, 12) == payloads
        async with our_client(our_cluster) as client:
            reader = await client.open(writer.ledger_id, password=PASSWORD)
            assert [entry.payload for entry in await reader.read(0, 12)] == payloads


@proves(2, "long poll")
@pytest.mark.parametrize("parallel", [False, True])
async def test_a_long_poll_is_woken_by_the_next_entry(
    our_cluster: Cluster, driver: Driver, parallel: bool
) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        java = await java_client(driver, our_cluster, 3)
        writer = await java.create()
        reader = await java.open(writer.ledger_id, recover=False)
        assert await writer.add(b"first") == 0
        nothing = await reader.ask("poll", entry_id=0, timeout_ms=200, parallel=parallel)
        assert nothing == {"lac": -1, "entry": None}
        polling = reader.begin("poll", entry_id=0, timeout_ms=4000, parallel=parallel)
        # The test shows a wake-up only if a bookie holds the poll when the next entry arrives.
        assert await writer.add(b"second") == 1
        polled = await driver.wait("poll", polling)
        assert polled["lac"] == 0
        assert payloads_of([polled["entry"]], 0) == [b"first"]
        await writer.close()


@proves(2, "long poll")
async def test_in_its_v2_mode_java_cannot_poll_and_our_bookies_reply_as_its_own(
    our_cluster: Cluster, java_cluster: Cluster, driver: Driver
) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        replies = []
        for cluster in (our_cluster, java_cluster):
            java = await java_client(driver, cluster, 2)
            writer = await java.create()
            reader = await java.open(writer.ledger_id, recover=False)
            await writer.add(b"first")
            await writer.add(b"second")
            replies.append(await reader.ask("poll", entry_id=0, timeout_ms=200))
            assert await reader.ask("try_lac") == 0  # the request that it can send instead
            await writer.close()
        assert replies[0] == replies[1]


@proves(2, "long poll")
async def test_our_long_poll_follows_a_java_writer_on_our_bookies(
    our_cluster: Cluster, driver: Driver
) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        java = await java_client(driver, our_cluster)
        async with our_client(our_cluster) as client:
            writer = await java.create()
            reader = await client.open(writer.ledger_id, password=PASSWORD, recover=False)
            await writer.add(b"first")
            await writer.add(b"second")
            assert await reader.wait_last_confirmed_beyond(-1, timeout_s=30) == 0
            await writer.close()
            assert await reader.wait_last_confirmed_beyond(0, timeout_s=30) == 1


@proves(2, "explicit LAC")
@both_versions
async def test_both_clients_see_an_explicit_lac_of_java(
    our_cluster: Cluster, driver: Driver, version: Version
) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        java = await java_client(driver, our_cluster, version, explicitLacInterval=50)
        writer = await java.create()
        await writer.add_many([b"a", b"b", b"c"])
        reader = await java.open(writer.ledger_id, recover=False)
        # No entry follows: the bookies learn only from the explicit LAC that entry 2 is confirmed.
        while await reader.ask("explicit_lac") < 2:
            pass  # each request waits for its reply
        assert await reader.read(0, 2) == [b"a", b"b", b"c"]
        async with our_client(our_cluster) as client:
            ours = await client.open(writer.ledger_id, password=PASSWORD, recover=False)
            assert ours.last_confirmed == 2
        await writer.close()


@proves(2, "delete")
@both_versions
async def test_a_ledger_that_java_deletes_is_gone(
    our_cluster: Cluster, driver: Driver, version: Version
) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        java = await java_client(driver, our_cluster, version)
        writer = await java.create()
        await writer.add(b"soon gone")
        await writer.close()
        await java.delete(writer.ledger_id)
        with pytest.raises(DriverError) as refused:
            await java.open(writer.ledger_id)
        assert refused.value.code == NO_SUCH_LEDGER


@proves(2, "wrong password refused")
@both_versions
async def test_a_wrong_password_is_refused_and_harms_nothing(
    our_cluster: Cluster, driver: Driver, version: Version
) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        java = await java_client(driver, our_cluster, version)
        writer = await java.create()
        await writer.add(b"first")
        with pytest.raises(DriverError) as refused:
            await java.open(writer.ledger_id, password=b"guess")
        assert refused.value.code == UNAUTHORIZED

        # With the guessed password in the metadata, Apache's client sends the wrong key to our bookies.
        async def forget_password(store: MetadataStore) -> None:
            catalog = await open_catalog(store, our_cluster.root, None)
            current = await catalog.get(writer.ledger_id)
            await catalog.put(
                writer.ledger_id, attrs.evolve(current.metadata, password=b"guess"), expected=current.version
            )

        await trio.to_thread.run_sync(our_cluster.originals.with_store, forget_password)
        with pytest.raises(DriverError) as refused:
            await java.open(writer.ledger_id, password=b"guess")
        assert refused.value.code == UNAUTHORIZED
        # The ledger is neither fenced nor changed: its writer continues.
        assert await writer.add(b"second") == 1


@proves(2, "LedgerHandleAdv")
@both_versions
async def test_entries_get_ids_of_the_caller_in_any_order(
    our_cluster: Cluster, driver: Driver, version: Version
) -> None:
    payloads = some_payloads(12)
    with trio.fail_after(TEST_TIMEOUT_S):
        java = await java_client(driver, our_cluster, version)
        chosen = 7_000_000_000 + version
        writer = await java.create(adv=True, ledger_id=chosen)
        assert writer.ledger_id == chosen
        begun = [
            writer.begin("add_at", entry_id=entry_id, payload=payloads[entry_id].hex())
            for entry_id in (3, 1, 2, 7, 5, 11, 4, 6, 10, 8, 9)
        ]
        assert not any(future.done() for future in begun)  # entry 0 is missing
        assert await writer.ask("add_at", entry_id=0, payload=payloads[0].hex()) == 0
        for future in begun:
            await driver.wait("add_at", future)
        with pytest.raises(DriverError) as refused:
            await writer.ask("add_at", entry_id=4, payload="00")
        assert refused.value.code == DUPLICATE_ENTRY
        assert (await writer.close())["lac"] == 11
        seen = await java.open(chosen)
        read: list[dict[str, Any]] = await seen.ask("read", first=0, last=11)
        assert [bytes.fromhex(entry["payload"]) for entry in read] == payloads
        async with our_client(our_cluster) as client:
            reader = await client.open(chosen, password=PASSWORD)
            assert [entry.payload for entry in await reader.read(0, 11)] == payloads


@proves(2, "batch read")
async def test_batch_reads_respect_count_and_size(our_cluster: Cluster, driver: Driver) -> None:
    payloads = [b"%d" % index * 100 for index in range(30)]
    with trio.fail_after(TEST_TIMEOUT_S):
        java = await java_client(driver, our_cluster, 2)
        writer = await java.create()
        await writer.add_many(payloads)
        await writer.close()
        seen = await java.open(writer.ledger_id)
        all_of_them = await seen.ask("batch_read", first=0, count_max=30, size_max=0)
        assert payloads_of(all_of_them, 0) == payloads
        five = await seen.ask("batch_read", first=20, count_max=5, size_max=1_000_000)
        assert payloads_of(five, 20) == payloads[20:25]
        # A frame has 24 + 8 + 4 bytes; each entry adds 4 for its length and 36 before its payload.
        size = 36 + 3 * (4 + 36 + 200)
        assert len(payloads[10]) == 200
        three = await seen.ask("batch_read", first=10, count_max=30, size_max=size)
        assert payloads_of(three, 10) == payloads[10:13]
        one = await seen.ask("batch_read", first=10, count_max=30, size_max=1)
        assert payloads_of(one, 10) == payloads[10:11]
        to_the_end = await seen.ask("batch_read", first=28, count_max=30, size_max=0)
        assert payloads_of(to_the_end, 28) == payloads[28:]


@proves(2, "deferred sync and force")
async def test_deferred_sync_confirms_no_entry_before_a_force(our_cluster: Cluster, driver: Driver) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        java = await java_client(driver, our_cluster, 3)
        writer = await java.create(deferred_sync=True)
        assert await writer.add_many([b"a", b"b", b"c"]) == [0, 1, 2]
        assert (await writer.state())["lac"] == -1
        assert await writer.ask("force") == 2
        assert await writer.add(b"d") == 3
        assert (await writer.state())["lac"] == 2
        await writer.ask("force")
        assert (await writer.close())["lac"] == 3
        seen = await java.open(writer.ledger_id)
        assert await seen.read(0, 3) == [b"a", b"b", b"c", b"d"]


@proves(2, "deferred sync and force")
async def test_a_ledger_closed_by_its_writer_ends_before_entries_that_were_not_forced(
    our_cluster: Cluster, driver: Driver
) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        java = await java_client(driver, our_cluster, 3)
        writer = await java.create(deferred_sync=True)
        await writer.add_many([b"a", b"b"])
        await writer.ask("force")
        await writer.add(b"never forced")
        assert (await writer.close())["lac"] == 1
        async with our_client(our_cluster) as client:
            reader = await client.open(writer.ledger_id, password=PASSWORD)
            assert reader.last_confirmed == 1
            assert [entry.payload for entry in await reader.read(0, 1)] == [b"a", b"b"]


@proves(2, "bookie info")
@both_versions
async def test_bookie_info_has_the_disk_space_of_each_bookie(
    our_cluster: Cluster, driver: Driver, version: Version
) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        java = await java_client(driver, our_cluster, version)
        infos = await java.ask("bookie_info")
        assert set(infos) == {bookie.id for bookie in our_cluster.running()}
        for info in infos.values():
            assert 0 < info["free"] < info["total"]


@proves(2, "list of entries")
async def test_each_bookie_lists_the_entries_it_holds(our_cluster: Cluster, driver: Driver) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        java = await java_client(driver, our_cluster, 3)
        writer = await java.create((3, 2, 2))
        await writer.add_many([b"%d" % index for index in range(31)])
        await writer.close()
        bookies = writer.opened["metadata"]["ensembles"][0]["bookies"]
        for index, bookie in enumerate(bookies):
            held = await java.ask("list_entries", bookie=bookie, ledger_id=writer.ledger_id, last=40)
            expected = [entry_id for entry_id in range(31) if (index - entry_id) % 3 < 2]
            assert held == {"count": len(expected), "ids": expected}


@proves(2, "list of entries")
async def test_in_its_v2_mode_java_cannot_request_the_list_and_our_bookies_continue(
    our_cluster: Cluster, java_cluster: Cluster, driver: Driver
) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        for cluster in (our_cluster, java_cluster):
            # A separate client, because this request breaks its connections: it sends version 3, but its own
            # decoder expects version 2.
            java = await java_client(driver, cluster, 2, readEntryTimeoutSec=4)
            good = await java_client(driver, cluster, 2)
            writer = await good.create()
            await writer.add(b"first")
            bookie = writer.opened["metadata"]["ensembles"][0]["bookies"][0]
            with pytest.raises(DriverError) as refused:
                await java.ask("list_entries", bookie=bookie, ledger_id=writer.ledger_id, last=1)
            assert refused.value.code == UNAVAILABLE
            assert await writer.add(b"second") == 1
            await writer.close()
