"""Each example runs and does what its first lines say."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import celery
import fastapi
import flask
import httpx
import pytest

import dlog
import dlog.blocking
from tests.places import ROOT

EXAMPLES = ROOT / "examples"
pytestmark = pytest.mark.slow


def run(name: str, *args: str, stdin: str = "") -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *args],
        input=stdin,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stderr == ""
    return done.stdout


def test_the_write_ahead_log_keeps_its_values(tmp_path: Path) -> None:
    assert run("write_ahead_log.py", str(tmp_path), "get", "greeting") == "None\n"
    assert run("write_ahead_log.py", str(tmp_path), "set", "greeting", "hello") == "hello\n"
    assert run("write_ahead_log.py", str(tmp_path), "set", "other", "x") == "x\n"
    assert run("write_ahead_log.py", str(tmp_path), "get", "greeting") == "hello\n"


def test_both_followers_see_every_event_in_order(tmp_path: Path) -> None:
    lines = run("event_stream.py", str(tmp_path)).splitlines()
    for name in ("early", "late"):
        mine = [line.split(" at ")[0] for line in lines if line.startswith(name)]
        assert mine == [f"{name}: event {number}" for number in range(20)]


def test_the_script_writes_lines_and_counts_them(tmp_path: Path) -> None:
    text = "".join(f"line {number}\n" for number in range(500))
    assert run("script.py", str(tmp_path), stdin=text).splitlines()[-1] == "500 lines in the log"
    assert run("script.py", str(tmp_path), stdin=text).splitlines()[-1] == "1000 lines in the log"


async def over_http(app: fastapi.FastAPI) -> None:
    async with app.router.lifespan_context(app) as state:
        assert state is not None
        transport = httpx.ASGITransport(app=with_state(app, state))
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
            assert (await client.post("/orders", content=b"apples")).json() == {"position": "1:0:0"}
            assert (await client.get("/orders")).json() == ["apples"]
            health = await client.get("/health")
            assert (health.status_code, health.json()["ok"]) == (200, True)
            state["log"]._inner._forward.machine.stop(dlog.LogFencedError("orders", "for this test"))
            health = await client.get("/health")
            assert (health.status_code, health.json()["writers"][0]["state"]) == (503, "failed")
            refused = await client.post("/orders", content=b"bread")
            assert (refused.status_code, refused.json()["detail"]["order"]) == (503, "not written")


def with_state(app: fastapi.FastAPI, state: Mapping[str, Any]) -> Any:
    """The application as a server calls it, which passes on what ``lifespan`` gave."""

    async def call(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await app({**scope, "state": dict(state)}, receive, send)

    return call


def test_the_service_on_fastapi_stores_orders_and_tells_its_health(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(over_http(loaded("fastapi_service", tmp_path, monkeypatch).app))


def test_the_service_on_flask_stores_orders_and_tells_its_health(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = loaded("flask_service", tmp_path, monkeypatch)
    with service.namespace:
        app: flask.Flask = service.app
        client = app.test_client()
        assert client.post("/orders", data=b"apples").get_json() == {"position": "1:0:0"}
        assert client.get("/orders").get_json() == ["apples"]
        health = client.get("/health")
        assert (health.status_code, health.get_json()["ok"]) == (200, True)
        service.log.close()
        refused = client.post("/orders", data=b"bread")
        assert (refused.status_code, refused.get_json()["order"]) == (503, "not written")


def test_a_task_of_celery_stores_its_order_under_its_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = loaded("celery_tasks", tmp_path, monkeypatch)
    assert isinstance(tasks.app, celery.Celery)
    done = tasks.store.apply(args=("apples",), task_id="task-1")
    assert done.get() == "1:0:0"
    tasks.store.apply(args=("apples",), task_id="task-1").get()  # delivered again
    tasks.writer().close()
    with (
        dlog.blocking.open_namespace(tmp_path.as_uri()) as namespace,
        namespace.open_reader("orders", follow=False) as reader,
    ):
        stored = [json.loads(record.payload) for record in reader]
    assert stored == [{"task": "task-1", "order": "apples"}] * 2


def loaded(name: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of an example, whose log is in this directory."""
    monkeypatch.setenv("DLOG_URI", directory.as_uri())
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
