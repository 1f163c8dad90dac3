"""The questions of the page, on a directory."""

# covers: dlog/cli/operators/bookie/page_routes.py
# covers: dlog/page/snapshots.py

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import dlog
from bookie.http import AdminReply, AdminRequest
from bookie.http.messages import Method
from dlog.cli.operators.bookie.page_routes import page_routes
from dlog.page import Page, open_page, snapshots
from dlog.page.page import CONTENT_POLICY, FILES, METRICS_IDLE_S, METRICS_PATH, OPEN_S, PATHS
from ledger.balancing.run_node import RunningBalance, held_run
from ledger.catalog.paths import cookie_path
from ledger.metadata_store.store import SessionState
from ledger.replication.marks import UnderReplicatedLedgers
from tests.fakes.dict_bookies import open_cluster
from tests.fakes.dict_namespace import open_on

pytestmark = pytest.mark.slow


@asynccontextmanager
async def opened(tmp_path: Path, *, shows_records: bool = True, count: int = 3) -> AsyncIterator[Page]:
    uri = (tmp_path / "namespace").as_uri()
    with trio.fail_after(30):
        async with dlog.open_namespace(uri) as namespace:
            await namespace.create_log("orders")
            async with namespace.open_writer("orders") as writer:
                await writer.append_many([b"order %d" % number for number in range(count)])
            await namespace.cursors("orders").set("billing", dlog.DLSN(1, 0, 1))
            async with open_page(uri, shows_records=shows_records) as page:
                yield page


async def ask(page: Page, question: str, **query: str) -> tuple[int, dict[str, Any]]:
    reply = await page.answer(f"/api/page/{question}", query)
    return reply.status, json.loads(reply.body)


async def test_the_questions_of_a_directory_are_answered(tmp_path: Path) -> None:
    async with opened(tmp_path) as page:
        status, overview = await ask(page, "overview")
        assert (status, overview["under_replicated"], len(overview["bookies"])) == (200, 0, 1)
        assert overview["auto_recovery"]["exists"] is False
        _, streams = await ask(page, "streams")
        assert [(each["name"], each["records"]) for each in streams["streams"]] == [("orders", 3)]
        _, stream = await ask(page, "stream", name="orders")
        assert [each["records"] for each in stream["segments"]] == [3]
        assert stream["segments"][0]["began_ms"] <= stream["segments"][0]["completed_ms"]
        assert stream["cursors"] == [{"name": "billing", "position": "1:0:1", "lag": 2}]
        for kind, name in (("log", "orders"), ("ledger", str(stream["segments"][0]["ledger_id"]))):
            status, reasons = await ask(page, "explain", kind=kind, name=name)
            assert (status, reasons["is_sound"]) == (200, True)


async def test_records_are_bounded_and_go_on_at_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "RECORDS_MAX", 2)
    monkeypatch.setattr(snapshots, "PAYLOAD_BYTES_MAX", 6)
    async with opened(tmp_path) as page:
        _, found = await ask(page, "records", name="orders")
        assert [each["text"] for each in found["records"]] == ["order ", "order "]
        assert (found["records"][0]["size_bytes"], found["records"][0]["is_cut"]) == (7, True)
        _, rest = await ask(page, "records", name="orders", **{"from": found["next"]})
        assert ([each["dlsn"] for each in rest["records"]], rest["next"]) == (["1:0:2"], None)


async def test_records_are_refused_unless_they_are_allowed(tmp_path: Path) -> None:
    async with opened(tmp_path, shows_records=False) as page:
        status, refusal = await ask(page, "records", name="orders")
        assert status == 403
        assert "httpPageRecords" in refusal["error"]


async def test_wrong_questions_are_errors_of_the_viewer(tmp_path: Path) -> None:
    async with opened(tmp_path) as page:
        assert (await ask(page, "stream"))[0] == 400
        assert (await ask(page, "stream", name="nothing"))[0] == 404
        assert (await ask(page, "records", name="orders", **{"from": "yesterday"}))[0] == 400
        for start in ("", "1:2", "1:2:", "1:2:3:4", "-1", str(2**63), f"1:0:{2**63}", "\u0661"):
            assert (await ask(page, "records", name="orders", **{"from": start}))[0] == 400, start
        for ledger in ("x", "-1", str(2**63), "9" * 30, "\u0661"):
            assert (await ask(page, "explain", kind="ledger", name=ledger))[0] == 400, ledger
        for name in ("\ud800", "a\0", "/", "../.."):
            assert (await ask(page, "stream", name=name))[0] in (400, 404), name
            assert (await ask(page, "explain", kind="bookie", name=name))[0] == 200, name
        assert (await ask(page, "explain", kind="weather", name="x"))[0] == 400
        assert (await ask(page, "stream", name="x" * 5000))[0] == 400
        assert (await ask(page, "secrets"))[0] == 404


async def test_a_repeated_question_is_asked_once(tmp_path: Path, autojump_clock: object) -> None:
    page = Page("file:///nowhere", shows_records=False)
    asked = []

    async def answered(question: str, query: object) -> Any:
        asked.append(question)
        await trio.sleep(0.1)
        return len(asked)

    page._asked_anew = answered  # type: ignore[method-assign]
    found: list[Any] = []

    async def ask_once() -> None:
        found.append(await page.answer("/api/page/overview", {}))

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(ask_once)
    assert found == [1] * 5
    await trio.sleep(1.0)
    await ask_once()
    assert found[-1] == 2


async def test_the_figures_are_collected_while_they_are_scraped(tmp_path: Path) -> None:
    line = 'dlog_log_records{log="orders"} 3'
    async with opened(tmp_path) as page:
        assert page._namespace is None, "nobody looks"
        (metrics,) = [route for route in page_routes(page) if route.path == METRICS_PATH]
        assert not metrics.is_public, "the names of logs need the token"
        while line not in page.metrics().body.decode():  # noqa: ASYNC110
            await trio.sleep(0.01)
        assert page._namespace is None, "the page itself needs no session"


async def test_without_a_scrape_the_collection_ends(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, runs = Page("file:///nowhere", shows_records=False), []

    async def collected() -> None:
        runs.append("begun")
        try:
            await trio.sleep_forever()
        finally:
            runs.append("ended")

    monkeypatch.setattr(page._exporter, "run", collected)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(page.collect)
        for _ in range(2):
            page.metrics()
            await trio.sleep(METRICS_IDLE_S - 1)
            page.metrics()
            await trio.sleep(METRICS_IDLE_S - 1)
            assert runs[-1] == "begun"
            await trio.sleep(2)
            assert runs[-1] == "ended"
        nursery.cancel_scope.cancel()
    assert runs == ["begun", "ended"] * 2


async def test_a_namespace_that_cannot_be_opened_is_an_answer_and_no_end(tmp_path: Path) -> None:
    with trio.fail_after(20):
        async with open_page((tmp_path / "nothing").as_uri()) as page:
            assert (await ask(page, "overview"))[0] == 503


async def test_only_the_files_of_the_page_are_public(tmp_path: Path) -> None:
    async with opened(tmp_path) as page:
        routes = page_routes(page)
        assert {route.path for route in routes if route.is_public} == set(FILES)
        assert {route.path for route in routes if not route.is_public} == {*PATHS, METRICS_PATH}
        for route in routes:
            admin: Any = None
            reply = await route.handlers[Method.GET](admin, AdminRequest(Method.GET, route.path))
            assert isinstance(reply, AdminReply)
            assert reply.headers["Content-Security-Policy"] == CONTENT_POLICY


def test_nothing_comes_from_elsewhere_and_nothing_is_written_as_html() -> None:
    page = Page("file:///nowhere", shows_records=False)
    for path in FILES:
        reply = page.file(path)
        assert reply is not None
        text = reply.body.decode().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(
            r"(https?:)?//[a-z]|innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text
        ), path
        assert not re.search(r"\son\w+=|style=|<style|javascript:", text), path


async def test_a_bookie_that_is_away_has_no_rate(autojump_clock: trio.testing.MockClock) -> None:
    async with open_cluster() as cluster, open_on(cluster) as opened:
        namespace = opened.namespace
        async with namespace.open_writer("orders", create=True) as writer:
            await writer.append(b"x", txid=1)
            await writer.append(b"y", txid=2)
            lost, *others = sorted(cluster.bookies)
            for bookie in cluster.bookies:
                await opened.store.create(cookie_path("/ledgers", bookie), parents=True)
            await cluster.stop(lost)

            async def rates(known: float | None) -> dict[str, float | None]:
                found = await snapshots.overview(
                    namespace, lambda kind, counters: dict.fromkeys(counters, known)
                )
                return {each["bookie"]: each["entries_per_s"] for each in found["bookies"]}

            assert await rates(304.0) == {lost: None, **dict.fromkeys(others, 304.0)}
            assert await rates(None) == dict.fromkeys([lost, *others])
            found = await snapshots.overview(namespace, lambda kind, counters: dict.fromkeys(counters, 1.0))
            (away,) = [each for each in found["bookies"] if each["bookie"] == lost]
            assert (away["state"], away["free_bytes"]) == ("away", None)


async def test_a_running_balance_is_shown_and_gone_with_its_end() -> None:
    run = RunningBalance("ops1", 5, 9, 4, 9000, 4000)
    async with open_cluster() as cluster, open_on(cluster) as opened:

        async def shown() -> object:
            found = await snapshots.overview(opened.namespace, lambda kind, counters: {})
            return found["balance"]

        assert await shown() is None
        await UnderReplicatedLedgers(opened.store, "/ledgers").prepare()
        async with held_run(opened.store, "/ledgers", run):
            assert await shown() == {
                "host": "ops1",
                "began_ms": 5,
                "moves": 9,
                "moves_done": 4,
                "bytes": 9000,
                "bytes_done": 4000,
            }
        assert await shown() is None


async def test_a_store_that_does_not_reply_is_reported_soon(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    async def open_slowly(self: Page) -> None:
        await trio.sleep(10)  # as long as ZooKeeper is waited for

    monkeypatch.setattr(Page, "_keep_open", open_slowly)
    page = Page("distributedlog://zk1:2181/shop", shows_records=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(page.keep)
        began_s = trio.current_time()
        status, found = await ask(page, "overview")
        assert (status, trio.current_time() - began_s) == (503, OPEN_S)
        assert "Is ZooKeeper running?" in found["error"]
        nursery.cancel_scope.cancel()


async def test_a_session_that_is_suspended_is_reported_at_once(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_cluster() as cluster, open_on(cluster) as opened:
        page = Page("distributedlog://zk1:2181/ns", shows_records=False)
        page._change(opened.namespace, None)
        assert (await ask(page, "overview"))[0] == 200
        monkeypatch.setattr(type(opened.store), "state", SessionState.SUSPENDED)
        began_s = trio.current_time()
        status, found = await ask(page, "streams")
        assert (status, trio.current_time()) == (503, began_s)
        assert "does not reply" in found["error"]
