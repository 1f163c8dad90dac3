"""Row 5: ensembles of Java bookies and ours; a test kills one of them while either client writes.

Then the other side reads, or recovers, the ledger while the killed bookie is still down.
"""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio

from tests.interop.clients import (
    TEST_TIMEOUT_S,
    RemoteClient,
    RemoteLedger,
    java_client,
    our_client,
    our_writing_client,
)
from tests.interop.driver import Driver, DriverEndedError
from tests.interop.killed_writers import end_by_java, end_by_us
from tests.interop.originals import Bookie, Cluster, Kind, Originals
from tests.interop.table import proves

COUNT = 4000
ACKED_BEFORE_KILL = 500
ACKED_AFTER_KILL = 1000
ENDLESS = 200_000
IN_FLIGHT = 64

cells = pytest.mark.parametrize(
    ("client", "killed"),
    [
        pytest.param("ours", "java", marks=proves(5, "our client, a Java bookie killed")),
        pytest.param("ours", "ours", marks=proves(5, "our client, our bookie killed")),
        pytest.param("java", "java", marks=proves(5, "Java client, a Java bookie killed")),
        pytest.param("java", "ours", marks=proves(5, "Java client, our bookie killed")),
    ],
)


@pytest.fixture(scope="session")
def mixed_bookies(originals: Originals, driver: Driver) -> Cluster:
    driver.ask("init_cluster", uri=originals.uri("/mixed", layout="hierarchical"))
    cluster = Cluster(originals, "/mixed")
    # Any three of them include both kinds, and the fourth can replace one of them.
    cluster.add("java", "ours", "java", "ours")
    return cluster


@pytest.fixture
def mixed_cluster(mixed_bookies: Cluster) -> Cluster:
    """Two running bookies of each kind: a bookie that an earlier test killed is started again."""
    mixed_bookies.start()
    return mixed_bookies


@attrs.define
class Writing:
    """A writer in another process, and the last entry acknowledged to it."""

    driver: Driver
    ledger: RemoteLedger
    acked: int = -1

    async def until_acked(self, entry_id: int) -> None:
        """Wait until the writer has the acknowledgement of this entry."""
        while self.acked < entry_id:
            event = await trio.to_thread.run_sync(
                self.driver.events.get, True, TEST_TIMEOUT_S, abandon_on_cancel=True
            )
            if event["handle"] == self.ledger.handle:
                self.acked = max(self.acked, event["entry_id"])


async def _start_writer(originals: Originals, cluster: Cluster, kind: Kind) -> tuple[Driver, RemoteClient]:
    start = originals.start_driver if kind == "java" else originals.start_our_driver
    writer = await trio.to_thread.run_sync(start)
    client = await (java_client if kind == "java" else our_writing_client)(writer, cluster)
    return writer, client


async def _kill_one(cluster: Cluster, ledger: RemoteLedger, kind: Kind, java: RemoteClient) -> Bookie:
    ensemble = (await java.metadata(ledger.ledger_id))["ensembles"][-1]["bookies"]
    bookie = next(each for each in map(cluster.by_id, ensemble) if each.kind == kind)
    await trio.to_thread.run_sync(bookie.kill)
    return bookie


def _check_change(ensembles: list[dict[str, Any]], dead: Bookie) -> None:
    assert len(ensembles) >= 2
    assert ensembles[1]["first"] > ACKED_BEFORE_KILL
    assert dead.id in ensembles[0]["bookies"]
    assert dead.id not in ensembles[-1]["bookies"]


@cells
async def test_both_clients_read_over_an_ensemble_change_of_one_side(
    originals: Originals, driver: Driver, mixed_cluster: Cluster, client: Kind, killed: Kind
) -> None:
    expected = tuple(b"entry %d" % index for index in range(COUNT))
    with trio.fail_after(TEST_TIMEOUT_S):
        java = await java_client(driver, mixed_cluster)
        writer, remote = await _start_writer(originals, mixed_cluster, client)
        ledger = await remote.create((3, 3, 2))
        writing = Writing(writer, ledger)
        flood = ledger.begin("flood", prefix="entry ", count=COUNT, in_flight=IN_FLIGHT)
        await writing.until_acked(ACKED_BEFORE_KILL)
        dead = await _kill_one(mixed_cluster, ledger, killed, java)
        assert await writer.wait("flood", flood, timeout_s=TEST_TIMEOUT_S) == COUNT
        await ledger.close()
        metadata = await java.metadata(ledger.ledger_id)
        _check_change(metadata["ensembles"], dead)
        by_java = await end_by_java(java, ledger.ledger_id)
        async with our_client(mixed_cluster) as ours:
            by_us = await end_by_us(ours, ledger.ledger_id)
            seen = (await ours.metadata(ledger.ledger_id)).ensembles
        assert by_java.payloads == by_us.payloads == expected
        assert by_java == by_us
        assert [{"first": each.first_entry_id, "bookies": list(each.bookies)} for each in seen] == metadata[
            "ensembles"
        ]
        await trio.to_thread.run_sync(writer.process.stop)


@cells
async def test_when_the_writer_is_killed_too_the_other_side_recovers_all_acknowledged_entries(
    originals: Originals, driver: Driver, mixed_cluster: Cluster, client: Kind, killed: Kind
) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        java = await java_client(driver, mixed_cluster)
        writer, remote = await _start_writer(originals, mixed_cluster, client)
        ledger = await remote.create((3, 2, 2))
        writing = Writing(writer, ledger)
        flood = ledger.begin("flood", prefix="entry ", count=ENDLESS, in_flight=IN_FLIGHT)
        await writing.until_acked(ACKED_BEFORE_KILL)
        dead = await _kill_one(mixed_cluster, ledger, killed, java)
        await writing.until_acked(writing.acked + ACKED_AFTER_KILL)
        writer.process.kill()
        with pytest.raises(DriverEndedError):
            await writer.wait("flood", flood)
        while not writer.events.empty():
            writing.acked = max(writing.acked, writer.events.get()["entry_id"])
        async with our_client(mixed_cluster) as ours:
            if client == "java":
                recovered = await end_by_us(ours, ledger.ledger_id)
                read = await end_by_java(java, ledger.ledger_id)
            else:
                recovered = await end_by_java(java, ledger.ledger_id)
                read = await end_by_us(ours, ledger.ledger_id)
        assert recovered.last_entry_id >= writing.acked
        assert recovered.payloads == tuple(b"entry %d" % index for index in range(len(recovered.payloads)))
        assert read == recovered
        _check_change((await java.metadata(ledger.ledger_id))["ensembles"], dead)
