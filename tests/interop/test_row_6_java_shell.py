"""Row 6: Apache's bookie shell and bkctl on our cluster. Their output is equal to our client's results."""

from __future__ import annotations

import attrs
import pytest
import trio

from ledger.digest import DigestType
from ledger.metadata import LedgerMetadata, LedgerState
from tests.interop.clients import PASSWORD, TEST_TIMEOUT_S, our_client
from tests.interop.originals import Cluster, Originals
from tests.interop.shell import Tools, bookies_listed, shown_entries, shown_metadata, shown_space
from tests.interop.table import proves

PAYLOADS = [b"", b"one", bytes(range(256)) * 5, b"last"]


@attrs.frozen
class Written:
    """A ledger of ours, closed."""

    ledger_id: int
    metadata: LedgerMetadata


@pytest.fixture(scope="session")
def written(our_cluster: Cluster) -> Written:
    async def write() -> Written:
        with trio.fail_after(TEST_TIMEOUT_S):
            async with our_client(our_cluster) as client:
                writer = await client.create(
                    password=PASSWORD, digest_type=DigestType.MAC, custom={"application": b"interop"}
                )
                await writer.append_many(PAYLOADS)
                await writer.close()
                return Written(writer.ledger_id, writer.metadata)

    return trio.run(write)


@pytest.fixture
def tools(originals: Originals, our_cluster: Cluster) -> Tools:
    return Tools(originals, our_cluster)


@proves(6, "list bookies")
def test_bookies_are_listed_as_writable_or_read_only(our_cluster: Cluster, tools: Tools) -> None:
    (reader,) = our_cluster.add("ours", forceReadOnlyBookie="true")
    ids = {bookie.id for bookie in our_cluster.bookies} - {reader.id}
    try:
        for output in tools.both(["listbookies", "-rw"], ["bookies", "list", "-rw"]):
            assert bookies_listed(output) == ids
        for output in tools.both(["listbookies", "-ro"], ["bookies", "list", "-ro"]):
            assert bookies_listed(output) == {reader.id}
    finally:
        reader.stop()
        our_cluster.bookies.remove(reader)
    for output in tools.both(["listbookies", "-a"], ["bookies", "list", "-a"]):
        assert bookies_listed(output) >= ids | {
            reader.id
        }  # from the cookies, including bookies that are down


@proves(6, "ledger metadata")
def test_both_tools_show_our_ledger_metadata(written: Written, tools: Tools) -> None:
    metadata = written.metadata
    assert metadata.state is LedgerState.CLOSED
    expected = {
        "formatVersion": "3",
        "ensembleSize": "3",
        "writeQuorumSize": "3",
        "ackQuorumSize": "2",
        "state": "CLOSED",
        "length": str(metadata.length_bytes),
        "lastEntryId": str(metadata.last_entry_id),
        "digestType": "MAC",
        "application": "base64:aW50ZXJvcA==",
    }
    ledger = str(written.ledger_id)
    for output in tools.both(["ledgermetadata", "-ledgerid", ledger], ["ledger", "show", "-l", ledger]):
        shown = shown_metadata(output)
        assert shown.ensembles == {each.first_entry_id: list(each.bookies) for each in metadata.ensembles}
        assert {name: shown.fields.get(name) for name in expected} == expected


@proves(6, "read a ledger")
def test_both_tools_read_our_ledger(written: Written, tools: Tools) -> None:
    shell = ["-entryformat", "hex", "readledger", "-msg", "-ledgerid", str(written.ledger_id)]
    # bkctl fails with its own default for the first entry, -1.
    bkctl = ["bookie", "readledger", "-m", "-ef", "hex", "-fe", "0", "-le", "3", "-l", str(written.ledger_id)]
    for output in tools.both(shell, bkctl):
        entries = shown_entries(output)
        assert [entry.entry_id for entry in entries] == list(range(len(PAYLOADS)))
        assert {entry.ledger_id for entry in entries} == {written.ledger_id}
        assert [entry.data for entry in entries] == PAYLOADS
        assert entries[-1].size_bytes == sum(map(len, PAYLOADS))


@proves(6, "simple test")
async def test_the_simple_test_passes_and_cleans_up(our_cluster: Cluster, tools: Tools) -> None:
    shell = ["simpletest", "-ensemble", "3", "-writeQuorum", "3", "-ackQuorum", "2", "-numEntries", "50"]
    bkctl = ["ledger", "simpletest", "-e", "3", "-w", "3", "-a", "2", "-n", "50"]
    async with our_client(our_cluster) as client:
        before = await client.ledger_ids()
        outputs = await trio.to_thread.run_sync(tools.both, shell, bkctl)
        assert all("50 entries written to ledger" in output for output in outputs)
        assert await client.ledger_ids() == before


@proves(6, "bookie info")
def test_our_bookies_report_their_disk_space(our_cluster: Cluster, tools: Tools) -> None:
    for output in tools.both(["bookieinfo"], ["bookies", "info"], until="Total disk capacity"):
        space = shown_space(output)
        assert space.keys() == {bookie.id for bookie in our_cluster.bookies}
        for free_bytes, total_bytes in space.values():
            assert 0 < free_bytes < total_bytes
