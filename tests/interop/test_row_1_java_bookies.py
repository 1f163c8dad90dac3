"""Row 1: our client on Apache's bookies. Apache's client also reads the ledgers that it writes."""

from __future__ import annotations

from typing import Literal

import pytest
import trio

from ledger.codes import Code
from ledger.digest import DigestType, EntryCodec, master_key
from ledger.errors import EntryBeyondLacError, NoSuchLedgerError, WrongPasswordError
from ledger.metadata import LedgerState
from ledger.transport.dial import Address, dial_tcp
from ledger.transport.transport import open_transport
from ledger.wire.messages import AddRequest, ReadRequest
from tests.interop.clients import (
    NO_SUCH_LEDGER,
    PASSWORD,
    TEST_TIMEOUT_S,
    java_client,
    our_client,
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
        pytest.param(2, marks=proves(1, "create, append, read, close: v2")),
        pytest.param(3, marks=proves(1, "create, append, read, close: v3")),
    ],
)
async def test_both_clients_read_our_ledger(java_cluster: Cluster, driver: Driver, version: Version) -> None:
    payloads = some_payloads(40)
    custom = {"application": b"interop", "empty": b""}
    with trio.fail_after(TEST_TIMEOUT_S):
        java = await java_client(driver, java_cluster)
        async with our_client(java_cluster, version) as client:
            writer = await client.create(password=PASSWORD, custom=custom)
            assert await writer.append(payloads[0]) == 0
            assert await writer.append_many(payloads[1:]) == range(1, 40)
            await writer.close()
            reader = await client.open(writer.ledger_id, password=PASSWORD)
            assert reader.is_closed
            assert [entry.payload for entry in await reader.read(0, 39)] == payloads
            assert await reader.read_payloads(7, 7) == [payloads[7]]
            with pytest.raises(EntryBeyondLacError):
                await reader.read(40, 40)
            seen = await java.open(writer.ledger_id)
            assert seen.opened["metadata"]["state"] == "CLOSED"
            assert seen.opened["length"] == sum(map(len, payloads))
            assert seen.opened["metadata"]["custom"] == {key: value.hex() for key, value in custom.items()}
            assert await seen.read(0, seen.lac) == payloads


@proves(1, "each digest type")
@both_versions
@pytest.mark.parametrize("digest", list(DigestType))
async def test_both_clients_verify_each_digest_type(
    java_cluster: Cluster, driver: Driver, version: Version, digest: DigestType
) -> None:
    payloads = some_payloads(6, salt=digest.name)
    with trio.fail_after(TEST_TIMEOUT_S):
        java = await java_client(driver, java_cluster)
        async with our_client(java_cluster, version) as client:
            writer = await client.create(password=PASSWORD, digest_type=digest)
            await writer.append_many(payloads)
            await writer.close()
            reader = await client.open(writer.ledger_id, password=PASSWORD)
            assert reader.metadata.digest_type is digest
            assert [entry.payload for entry in await reader.read(0, 5)] == payloads
            seen = await java.open(writer.ledger_id, digest=digest)
            assert await seen.read(0, seen.lac) == payloads


@proves(1, "E > Qw striping")
@both_versions
@pytest.mark.parametrize("sizes", [(3, 2, 2), (3, 2, 1), (3, 1, 1)])
async def test_both_clients_find_striped_entries(
    java_cluster: Cluster, driver: Driver, version: Version, sizes: tuple[int, int, int]
) -> None:
    payloads = some_payloads(13)
    ensemble_size, write_quorum, ack_quorum = sizes
    with trio.fail_after(TEST_TIMEOUT_S):
        java = await java_client(driver, java_cluster)
        async with our_client(java_cluster, version) as client:
            writer = await client.create(
                ensemble_size=ensemble_size,
                write_quorum=write_quorum,
                ack_quorum=ack_quorum,
                password=PASSWORD,
            )
            await writer.append_many(payloads)
            await writer.close()
            reader = await client.open(writer.ledger_id, password=PASSWORD)
            assert [entry.payload for entry in await reader.read(0, 12)] == payloads
            seen = await java.open(writer.ledger_id)
            assert await seen.read(0, 12) == payloads
            for index, bookie in enumerate(writer.metadata.last_ensemble.bookies):
                held = await java.ask("list_entries", bookie=bookie, ledger_id=writer.ledger_id, last=20)
                expected = [e for e in range(13) if (index - e) % ensemble_size < write_quorum]
                if ack_quorum == write_quorum:  # otherwise an add may still be under way
                    assert held["ids"] == expected
                assert set(held["ids"]) <= set(expected)


@proves(1, "long poll")
@both_versions
async def test_a_long_poll_returns_with_our_entries(java_cluster: Cluster, version: Version) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        async with our_client(java_cluster, version) as client, our_client(java_cluster) as other:
            writer = await client.create(password=PASSWORD)
            reader = await other.open(writer.ledger_id, password=PASSWORD, recover=False)
            assert await reader.wait_last_confirmed_beyond(-1, timeout_s=0.3) == -1
            async with trio.open_nursery() as nursery:
                polled = trio.Event()

                async def follow() -> None:
                    assert await reader.wait_last_confirmed_beyond(-1, timeout_s=30) >= 0
                    assert (await reader.read(0, 0))[0].payload == b"first"
                    polled.set()

                nursery.start_soon(follow)
                assert await writer.append(b"first") == 0
                assert not polled.is_set()  # entry 1 brings the bookies the LAC 0
                await writer.append(b"second")
            await writer.close()
            assert await reader.wait_last_confirmed_beyond(0, timeout_s=30) == 1
            assert reader.is_closed or reader.last_confirmed == 1


@proves(1, "long poll")
async def test_a_long_poll_returns_with_entries_of_java(java_cluster: Cluster, driver: Driver) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        java = await java_client(driver, java_cluster)
        async with our_client(java_cluster) as client:
            writer = await java.create()
            reader = await client.open(writer.ledger_id, password=PASSWORD, recover=False)
            for entry_id in range(5):
                await writer.add(b"entry %d" % entry_id)
                if entry_id:
                    lac = await reader.wait_last_confirmed_beyond(entry_id - 2, timeout_s=30)
                    assert lac == entry_id - 1
                    assert (await reader.read(lac, lac))[0].payload == b"entry %d" % lac
            await writer.close()
            assert await reader.wait_last_confirmed_beyond(3, timeout_s=30) == 4


@proves(1, "explicit LAC")
async def test_both_clients_see_our_explicit_lac(java_cluster: Cluster, driver: Driver) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        java = await java_client(driver, java_cluster)
        async with our_client(java_cluster) as client:
            writer = await client.create(password=PASSWORD)
            await writer.append_many([b"a", b"b", b"c"])
            reader = await client.open(writer.ledger_id, password=PASSWORD, recover=False)
            seen = await java.open(writer.ledger_id, recover=False)
            await writer.write_explicit_lac()
            assert await reader.read_last_confirmed() == 2
            assert await seen.ask("explicit_lac") == 2
            assert await seen.read(0, 2) == [b"a", b"b", b"c"]
            await writer.close()


@proves(1, "delete")
async def test_a_ledger_that_we_delete_is_gone_for_both_clients(
    java_cluster: Cluster, driver: Driver
) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        java = await java_client(driver, java_cluster)
        async with our_client(java_cluster) as client:
            writer = await client.create(password=PASSWORD)
            await writer.append(b"soon gone")
            await writer.close()
            await client.delete(writer.ledger_id)
            with pytest.raises(NoSuchLedgerError):
                await client.open(writer.ledger_id, password=PASSWORD)
            with pytest.raises(DriverError) as refused:
                await java.open(writer.ledger_id)
            assert refused.value.code == NO_SUCH_LEDGER


@proves(1, "wrong password refused")
async def test_a_wrong_password_is_refused_and_harms_nothing(java_cluster: Cluster, driver: Driver) -> None:
    async def resolve(bookie: str) -> Address:
        host, _, port = bookie.rpartition(":")
        return Address(host, int(port))

    with trio.fail_after(TEST_TIMEOUT_S):
        java = await java_client(driver, java_cluster)
        async with our_client(java_cluster) as client:
            writer = await client.create(password=PASSWORD)
            await writer.append(b"first")
            with pytest.raises(WrongPasswordError):
                await client.open(writer.ledger_id, password=b"guess")
            # Not only the metadata but also the bookies check: no add and no fence with a wrong key.
            wrong = master_key(b"guess")
            async with open_transport(dial_tcp, resolve) as transport:
                for bookie in writer.metadata.last_ensemble.bookies:
                    fence = ReadRequest(writer.ledger_id, 0, fence=True, master_key=wrong)
                    assert (await transport.call(bookie, fence)).code is Code.UNAUTHORIZED
                    add = AddRequest(writer.ledger_id, 1, wrong, _forged_entry(writer.ledger_id, b"forged"))
                    assert (await transport.call(bookie, add)).code is Code.UNAUTHORIZED
            assert await writer.append(b"second") == 1
            await writer.close()
            assert (await client.metadata(writer.ledger_id)).state is LedgerState.CLOSED
            assert await (await java.open(writer.ledger_id)).read(0, 1) == [b"first", b"second"]


def _forged_entry(ledger_id: int, payload: bytes) -> bytes:
    """Entry 1 as a client with a guessed password packs it."""
    return EntryCodec(DigestType.CRC32C, b"guess").pack(ledger_id, 1, 0, len(payload), payload)
