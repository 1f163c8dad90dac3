"""Row 7: our command line on Apache's cluster prints the same results as Apache's own shell."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
import trio

from ledger.digest import DigestType
from tests.interop.clients import RemoteClient, RemoteLedger, java_client
from tests.interop.driver import Driver
from tests.interop.originals import Bookie, Cluster, Originals
from tests.interop.shell import Tools, at_once, bookies_listed, shown_entries, shown_metadata, shown_space
from tests.interop.table import proves

CELL = "the same output as Apache's shell"
PAYLOADS = [b"", b"one", bytes(range(256)) * 5, b"last"]
COMMAND_TIMEOUT_S = 180


@attrs.frozen
class Dlog:
    """Our command line, on a cluster."""

    cluster: Cluster

    def run(self, *arguments: str, code: int = 0) -> str:
        """Run a command with its options; return its output."""
        command = [sys.executable, "-m", "dlog.cli.main", *arguments, "--service", self.cluster.uri]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S)
        assert done.returncode == code, (
            f"{arguments}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        )
        return done.stdout

    def json(self, *arguments: str) -> Any:
        """Run a command; return the one JSON document that it printed."""
        return json.loads(self.run(*arguments, "--json"))


@pytest.fixture
def dlog(java_cluster: Cluster) -> Dlog:
    return Dlog(java_cluster)


@pytest.fixture
def tools(originals: Originals, java_cluster: Cluster) -> Tools:
    return Tools(originals, java_cluster)


@pytest.fixture
async def java(java_cluster: Cluster, driver: Driver) -> RemoteClient:
    return await java_client(driver, java_cluster)


@pytest.fixture
def read_only_bookie(java_cluster: Cluster) -> Iterator[Bookie]:
    """A bookie of Apache, started with --readOnly and stopped after the test."""
    bookie = Bookie(java_cluster.originals, "java", java_cluster.root)
    bookie.start(read_only=True)
    yield bookie
    bookie.stop()


async def written(java: RemoteClient, *, close: bool = True) -> RemoteLedger:
    ledger = await java.create(digest=DigestType.CRC32, custom={"application": b"interop".hex()})
    for payload in PAYLOADS:
        await ledger.add(payload)  # each entry brings the bookies the LAC of the entry before it
    if close:
        await ledger.close()
    return ledger


@proves(7, CELL)
def test_bookies_list_is_listbookies(
    java_cluster: Cluster, dlog: Dlog, tools: Tools, read_only_bookie: Bookie
) -> None:
    writable, read_only, every = at_once(
        lambda: tools.shell("listbookies", "-rw"),
        lambda: tools.shell("listbookies", "-ro"),
        lambda: tools.shell("listbookies", "-a"),
    )
    listed = dlog.json("bookies", "list")
    by_state: dict[str, set[str]] = {}
    for each in listed:
        by_state.setdefault(each["state"], set()).add(each["bookie"])
        assert each["address"] in (each["bookie"], None if each["state"] == "away" else each["bookie"])
    assert (
        by_state["writable"] == bookies_listed(writable) == {bookie.id for bookie in java_cluster.running()}
    )
    assert by_state["read-only"] == bookies_listed(read_only) == {read_only_bookie.id}
    assert {each["bookie"] for each in listed} == bookies_listed(every)
    assert {each["bookie"] for each in dlog.json("bookies", "list", "--rw")} == by_state["writable"]
    assert {each["bookie"] for each in dlog.json("bookies", "list", "--ro")} == by_state["read-only"]


@proves(7, CELL)
def test_bookies_info_is_bookieinfo(java_cluster: Cluster, dlog: Dlog, tools: Tools) -> None:
    theirs = shown_space(tools.shell("bookieinfo", until="Total disk capacity"))
    ours = dlog.json("bookies", "info")
    assert {each["bookie"] for each in ours["bookies"]} == theirs.keys()
    assert {bookie.id for bookie in java_cluster.bookies} <= theirs.keys()
    for each in ours["bookies"]:
        free_bytes, total_bytes = theirs[each["bookie"]]
        assert each["total_bytes"] == total_bytes
        assert (
            abs(each["free_bytes"] - free_bytes) < total_bytes / 10
        )  # other processes write to this disk meanwhile
    assert ours["total_bytes"] == sum(each["total_bytes"] for each in ours["bookies"])


@proves(7, CELL)
async def test_ledger_show_is_ledgermetadata(java: RemoteClient, dlog: Dlog, tools: Tools) -> None:
    ledger = await written(java)
    command = ("ledgermetadata", "-ledgerid", str(ledger.ledger_id))
    theirs = shown_metadata(await trio.to_thread.run_sync(tools.shell, *command))
    shown = await trio.to_thread.run_sync(dlog.json, "ledger", "show", str(ledger.ledger_id))
    assert {each["first_entry_id"]: each["bookies"] for each in shown["ensembles"]} == theirs.ensembles
    same = {
        "formatVersion": "format_version",
        "ensembleSize": "ensemble_size",
        "writeQuorumSize": "write_quorum",
        "ackQuorumSize": "ack_quorum",
        "state": "state",
        "length": "length_bytes",
        "lastEntryId": "last_entry_id",
        "digestType": "digest_type",
    }
    assert {name: str(shown[ours]) for name, ours in same.items()} == {
        name: theirs.fields[name] for name in same
    }
    assert theirs.fields["application"] == "base64:aW50ZXJvcA=="
    assert shown["custom"] == {"application": {"payload": "interop"}}
    assert "secret" not in json.dumps(shown)


@proves(7, CELL)
async def test_ledger_read_is_readledger(java: RemoteClient, dlog: Dlog, tools: Tools) -> None:
    ledger = await written(java)
    command = ("-entryformat", "hex", "readledger", "-msg", "-ledgerid", str(ledger.ledger_id))
    theirs = shown_entries(await trio.to_thread.run_sync(tools.shell, *command))
    printed = await trio.to_thread.run_sync(dlog.run, "ledger", "read", str(ledger.ledger_id), "--json")
    ours = [json.loads(line) for line in printed.splitlines()]
    assert [each["entry_id"] for each in ours] == [each.entry_id for each in theirs] == [0, 1, 2, 3]
    assert [each["size_bytes"] for each in ours] == [len(each.data) for each in theirs]
    assert [each.data for each in theirs] == PAYLOADS
    assert [each.get("payload") for each in ours] == ["", "one", None, "last"]
    assert ledger.ledger_id in await trio.to_thread.run_sync(dlog.json, "ledger", "list")


@proves(7, CELL)
async def test_reading_a_ledger_does_not_disturb_its_java_writer_but_recovering_it_does(
    java: RemoteClient, dlog: Dlog
) -> None:
    ledger = await written(java, close=False)
    number = str(ledger.ledger_id)
    printed = await trio.to_thread.run_sync(dlog.run, "ledger", "read", number, "--json")
    assert 3 <= len(printed.splitlines()) <= 4  # the bookies do not know yet that the last one is confirmed
    assert await ledger.add(b"more") == 4
    shown = await trio.to_thread.run_sync(dlog.json, "ledger", "show", number)
    assert (shown["state"], shown["last_entry_id"]) == ("OPEN", None)
    printed = await trio.to_thread.run_sync(dlog.run, "ledger", "read", number, "--recover", "--json")
    assert [json.loads(line)["entry_id"] for line in printed.splitlines()] == [0, 1, 2, 3, 4]
    shown = await trio.to_thread.run_sync(dlog.json, "ledger", "show", number)
    assert (shown["state"], shown["last_entry_id"]) == ("CLOSED", 4)


@proves(7, CELL)
async def test_java_finds_no_ledger_after_simpletest_and_delete(java: RemoteClient, dlog: Dlog) -> None:
    ledger = await written(java)
    before = await trio.to_thread.run_sync(dlog.json, "ledger", "list")
    sizes = ("--ensemble", "3", "--write-quorum", "2", "--ack-quorum", "2", "--entries", "200")
    assert (await trio.to_thread.run_sync(dlog.json, "ledger", "simpletest", *sizes))["entries"] == 200
    assert await trio.to_thread.run_sync(dlog.json, "ledger", "list") == before
    await trio.to_thread.run_sync(dlog.run, "ledger", "delete", "--yes", str(ledger.ledger_id))
    with pytest.raises(Exception, match="code -25"):  # no such ledger
        await java.metadata(ledger.ledger_id)
