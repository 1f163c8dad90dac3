"""Routes about the cluster, over bookies made of dictionaries: pages, limits, taking a bookie out."""

# covers: bookie/cluster/access.py
# covers: bookie/http/routes/cluster.py
# covers: bookie/http/routes/ledgers.py
# covers: bookie/http/routes/recovery.py

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

from bookie.cluster.access import ClusterAccess
from bookie.http.admin import Admin
from bookie.http.messages import AdminReply, AdminRequest, Method
from bookie.http.router import Router
from bookie.http.routes import ledgers as ledger_routes
from bookie.http.routes.cluster import space_texts
from bookie.http.routes.table import ROUTES
from bookie.ledger_metadata.cluster_nodes import ClusterNodes
from ledger.catalog.catalog import LedgerCatalog
from ledger.catalog.paths import Layout, cookie_path
from ledger.client import BookieSpace
from ledger.config import ClientConfig
from ledger.metadata import Ensemble, LedgerMetadata
from ledger.metadata_store.memory import open_memory_store
from ledger.read.handle import ReadHandle
from ledger.replication.marks import UnderReplicatedLedgers
from tests.fakes.replication_world import PAYLOADS, ReplicationWorld, open_world


@attrs.frozen
class Routes:
    world: ReplicationWorld
    admin: Admin

    async def send(
        self, path: str, method: str = "GET", body: object = None, **query: str
    ) -> tuple[int, Any]:
        content = b"" if body is None else json.dumps(body).encode()
        request = AdminRequest(Method(method), f"/api/v1/{path}", query, content)
        reply: AdminReply = await Router(ROUTES, self.admin).answer(request)
        text = reply.body.decode()
        return reply.status, json.loads(text) if reply.media_type == "application/json" else text

    async def recovered(self) -> dict[str, Any]:
        """The state of the recovery when it has ended."""
        while True:
            status, state = await self.send("autorecovery/bookie")
            assert status == 200
            if not state["running"]:
                return dict(state)
            await trio.lowlevel.checkpoint()

    async def has_cookie(self, bookie: str) -> bool:
        return await self.world.session.exists(cookie_path("/ledgers", bookie)) is not None


@asynccontextmanager
async def routes(layout: Layout = Layout.HIERARCHICAL) -> AsyncIterator[Routes]:
    nothing: Any = None
    async with open_world() as world, trio.open_nursery() as nursery:
        for bookie in world.cluster.bookies:
            await world.session.create(cookie_path("/ledgers", bookie), b"", parents=True)
        cluster = ClusterAccess(
            ClusterNodes(lambda: world.session, "/ledgers", layout),
            lambda: open_memory_store(world.cluster.tree),
            ClientConfig,
            dial=world.cluster.dial,
        )
        admin = Admin("b1:1", nothing, nothing, nothing, wall_ms=lambda: 0, is_ready=True, cluster=cluster)
        admin.tasks = nursery
        yield Routes(world, admin)
        nursery.cancel_scope.cancel()


async def test_pages_together_list_every_ledger_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with routes() as found:
        catalog = LedgerCatalog(found.world.session, "/ledgers", Layout.HIERARCHICAL)
        metadata = LedgerMetadata(
            ensemble_size=1, write_quorum=1, ack_quorum=1, ensembles=(Ensemble(0, ("b1:1",)),)
        )
        ids = [*range(5, 215), 20_000, 1 << 40]
        for ledger_id in ids:
            await catalog.create(metadata, ledger_id)
        pages = [await found.send("ledger/list", page=str(page)) for page in (1, 2, 3, 4)]
        assert [len(page) for _, page in pages] == [100, 100, 12, 0]
        assert [int(each) for _, page in pages for each in page] == ids
        _, decoded = await found.send("ledger/list", page="3", print_metadata="true", decode_meta="true")
        assert decoded[str(1 << 40)]["state"] == "OPEN"
        assert len((await found.send("ledger/list"))[1]) == len(ids)
        monkeypatch.setattr(ledger_routes, "LEDGERS_MAX", 211)
        status, text = await found.send("ledger/list")
        assert (status, "page=1" in text) == (400, True)  # a list is whole or refused


async def test_entries_are_read_without_closing_the_ledger_and_within_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with routes() as found:
        writer = await found.world.client.create(password=b"secret")
        for payload in PAYLOADS:
            await writer.append(payload)
        query = {"ledger_id": str(writer.ledger_id), "start_entry_id": "2", "end_entry_id": "4"}
        _, entries = await found.send("ledger/read", **query)
        assert entries == {str(number): PAYLOADS[number].decode() for number in (2, 3, 4)}
        monkeypatch.setattr(ledger_routes, "PAGE_ENTRIES", 4)
        query = {"ledger_id": str(writer.ledger_id), "page": "2"}
        assert list((await found.send("ledger/read", **query))[1]) == [
            "Entries for page: ",
            "4",
            "5",
            "6",
            "7",
        ]
        await writer.append(b"the writer goes on")
        monkeypatch.setattr(ledger_routes, "ENTRIES_BYTES_MAX", 30)
        await writer.close()
        monkeypatch.setattr(ReadHandle, "read_payloads", one_by_one)
        status, text = await found.send("ledger/read", ledger_id=str(writer.ledger_id))
        assert (status, "start_entry_id" in text) == (400, True)


async def one_by_one(handle: ReadHandle, first: int, last: int) -> list[bytes]:
    return [entry.payload for entry in await handle.read(first, first)]


async def test_a_running_bookie_is_not_decommissioned(caplog: pytest.LogCaptureFixture) -> None:
    async with routes() as found:
        ledger_id = await found.world.closed_ledger()
        ((bookie, *_),) = await found.world.members(ledger_id)
        body = {"bookie_src": bookie, "delete_cookie": "true"}
        status, text = await found.send("autorecovery/decommission", "PUT", body)
        assert (status, "Stop it" in text) == (400, True)
        assert await found.has_cookie(bookie)
        assert bookie in (await found.world.members(ledger_id))[0]
        await found.world.lose(bookie)
        caplog.set_level(logging.INFO, "bookie.http")
        status, text = await found.send("autorecovery/decommission", "PUT", body)
        assert (status, text) == (200, f"Success send decommission Bookie command {bookie}")
        state = await found.recovered()
        assert (state["moved"], state["left"], state["error"]) == (1, [], None)
        assert bookie not in (await found.world.members(ledger_id))[0]
        assert not await found.has_cookie(bookie)
        assert f"recovery of {bookie}: 1 ledgers moved, 0 left" in caplog.text


async def test_a_cookie_stays_while_a_ledger_names_the_bookie_and_one_recovery_runs_at_a_time() -> None:
    async with routes() as found:
        ledger_id = await found.world.closed_ledger()
        ((bookie, other, _),) = await found.world.members(ledger_id)
        body = {"bookie_src": [bookie], "delete_cookie": True}
        assert (await found.send("autorecovery/bookie", "PUT", body))[0] == 200
        state = await found.recovered()
        assert (state["moved"], "registered" in state["error"]) == (1, True)
        assert await found.has_cookie(bookie)  # it runs, and may get new ledgers
        ledger_id = await found.world.closed_ledger()
        ((bookie, other, _),) = await found.world.members(ledger_id)
        body = {"bookie_src": [bookie], "delete_cookie": True}
        await found.world.lose(bookie)
        async with open_memory_store(found.world.cluster.tree) as worker:
            taken = await UnderReplicatedLedgers(worker, "/ledgers").take_unmarked(ledger_id)
            assert taken is not None
            assert (await found.send("autorecovery/bookie", "PUT", body))[0] == 200
            assert (await found.send("autorecovery/bookie", "PUT", {"bookie_src": [other]}))[0] == 503
            assert (await found.recovered())["left"] == [ledger_id]
            assert await found.has_cookie(bookie)
        assert (await found.send("autorecovery/bookie", "PUT", body))[0] == 200
        state = await found.recovered()
        assert (state["left"], state["error"]) == ([], None)
        assert not await found.has_cookie(bookie)
        assert await found.world.payloads(ledger_id) == PAYLOADS


@pytest.mark.parametrize("source", ["", "a/b", "readonly", 7, None])
async def test_what_is_no_bookie_is_not_taken_out(source: object) -> None:
    async with routes() as found:
        for path, body in (("bookie", [source]), ("decommission", source)):
            status, _ = await found.send(f"autorecovery/{path}", "PUT", {"bookie_src": body})
            assert status == 400
        assert found.admin.recovery is None


async def test_the_cluster_is_counted() -> None:
    async with routes() as found:
        await found.world.lose("b4:1")
        await found.world.marks.mark(3, ["b4:1"])
        _, info = await found.send("bookie/cluster_info")
        assert (info["totalBookiesCount"], info["writableBookiesCount"]) == (4, 3)
        assert (info["unavailableBookiesCount"], info["clusterUnderReplicated"]) == (1, True)
        _, marked = await found.send(
            "autorecovery/list_under_replicated_ledger", excludingmissingreplica="b1:1"
        )
        assert marked == [3]


def test_space_is_written_in_units_of_1000_and_cut_off() -> None:
    spaces = {"a:1": BookieSpace(270_553_174_016, 51_436_711_936), "b:1": None, "c:1": BookieSpace(2000, 999)}
    assert space_texts(spaces) == {
        "a:1": ": {Free: 51436711936(51.436GB), Total: 270553174016(270.553GB)},",
        "b:1": ": {no reply},",
        "c:1": ": {Free: 999, Total: 2000(2KB)},",
        "ClusterInfo: ": "{Free: 51436712935(51.436GB), Total: 270553176016(270.553GB)}",
    }


@pytest.mark.parametrize("ledger_id", ["-1", str(2**63 - 1), str(2**63), "9" * 25])
async def test_an_id_that_the_layout_cannot_have_is_a_bad_request(ledger_id: str) -> None:
    async with routes(Layout.FLAT) as flat:
        for method, path in (("GET", "metadata"), ("GET", "read"), ("DELETE", "delete")):
            status, text = await flat.send(f"ledger/{path}", method, ledger_id=ledger_id)
            assert (status, "ledger" in text) == (400, True), text
