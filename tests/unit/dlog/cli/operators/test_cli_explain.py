"""`dlog explain` with the arguments of a shell: on a directory, and on bookies made of dictionaries."""

# covers: dlog/cli/operators/explain.py
# covers: dlog/cli/operators/service.py
# covers: dlog/explain/collecting.py

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from dlog.cli.main import main
from dlog.cli.operators import explain
from dlog.cli.operators.service import Service
from ledger.catalog.paths import cookie_path
from ledger.client import open_ledger_client
from ledger.deploy import Deployment
from ledger.metadata_store.memory import MemoryTree, open_memory_store
from ledger.replication.marks import UnderReplicatedLedgers
from tests.fakes.dict_bookies import ENDS_WITHIN_S, DictBookie, DictCluster


@pytest.mark.slow
def test_a_directory_with_a_log_is_sound_and_a_missing_ledger_is_not(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    uri = (tmp_path / "namespace").as_uri()
    lines = tmp_path / "lines.txt"
    lines.write_bytes(b"first\nsecond\n")
    assert main(["write", "orders", str(lines), "--create", "--uri", uri]) == 0
    capfd.readouterr()
    assert main(["explain", "log", "orders", "--uri", uri, "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["is_sound"]
    assert "readers see records up to" in found["reasons"][0]["what"]
    assert found["reasons"][0]["next_command"] == f"dlog log show orders --uri {uri}"
    assert main(["explain", "log", "nothing", "--uri", uri]) == 3
    capfd.readouterr()
    assert main(["explain", "ledger", "999", "--service", uri]) == 1
    shown = capfd.readouterr().out
    assert "! ledger 999 does not exist" in shown
    assert f"next: dlog ledger list --service {uri}" in shown


def test_a_lost_bookie_and_the_ledger_that_misses_it_are_explained(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    tree, bookies = MemoryTree(), dict[str, DictBookie]()
    running = ["b1:1", "b2:1", "b3:1"]

    @asynccontextmanager
    async def open_ledgers(service: Service, *, read_only: bool = False) -> AsyncIterator[Deployment]:
        with trio.fail_after(ENDS_WITHIN_S):
            async with (
                open_memory_store(tree) as registrar,
                open_memory_store(tree) as store,
                trio.open_nursery() as nursery,
            ):
                cluster = DictCluster(tree, registrar, nursery)
                cluster.bookies = bookies
                for name in running:
                    await cluster.start(name)
                async with open_ledger_client(store, cluster.dial) as client:
                    yield Deployment(client, store, "/ledgers")
                nursery.cancel_scope.cancel()

    async def write() -> int:
        async with open_ledgers(Service(uri="zk://zk1/ledgers")) as deployment:
            for name in running:
                await deployment.store.create(cookie_path("/ledgers", name), b"", parents=True)
            async with await deployment.client.create() as writer:
                await writer.append_many([b"a", b"b"])
            await UnderReplicatedLedgers(deployment.store, "/ledgers").mark(writer.ledger_id, ["b2:1"])
            return writer.ledger_id

    ledger_id = trio.run(write)
    monkeypatch.setattr(explain, "open_ledgers", open_ledgers)
    monkeypatch.setenv("DLOG_SERVICE", "zk://zk1/ledgers")
    running.remove("b2:1")
    assert main(["explain", "bookie", "b2:1", "--json"]) == 1
    assert [each["what"] for each in json.loads(capfd.readouterr().out)["reasons"]] == [
        "a bookie is away: b2:1",
        "1 ledger misses a replica of this bookie",
        "no process restores lost replicas",
    ]
    assert main(["explain", "ledger", str(ledger_id), "--json"]) == 1
    found = [each["what"] for each in json.loads(capfd.readouterr().out)["reasons"]]
    assert "the ledger is marked as under-replicated and no worker has it yet" in found
    assert "there is no other bookie to copy the entries to" in found
