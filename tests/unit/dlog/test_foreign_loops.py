"""Functions for trio that a program of asyncio calls: the error says what to use."""

# covers: ledger/runtime/tasks/trio_only.py

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest

import dlog.aio
from dlog.cluster import LocalCluster

# Functions of the public packages that open something by a URI or a path. All other asynchronous ones take
# what these give.
DOORS = {
    "dlog": {"open_namespace", "open_ledgers"},
    "dlog.cluster": {"open_local_cluster"},
    "dlog.page": {"open_page"},
    "ledger": {"open_client"},
    "ledger.deploy": {"open_client", "open_deployment"},
}
PACKAGES = [
    *DOORS,
    "dlog.bulk",
    "dlog.explain",
    "dlog.groups",
    "dlog.shards",
    "dlog.wal",
    "ledger.replication",
]


def asynchronous(package: str) -> set[str]:
    module = importlib.import_module(package)
    return {
        name
        for name in module.__all__
        if inspect.isfunction(function := getattr(module, name))
        and (
            inspect.iscoroutinefunction(inner := inspect.unwrap(function))
            or inspect.isasyncgenfunction(inner)
            or "Async" in str(inspect.signature(function).return_annotation)
        )
        and next(iter(inspect.signature(function).parameters)) in ("uri", "path", "directory")
    }


@pytest.mark.parametrize("package", PACKAGES)
def test_every_door_for_trio_says_in_asyncio_what_to_use(package: str, tmp_path: Path) -> None:
    assert asynchronous(package) == DOORS.get(package, set())

    async def main(door: Any) -> None:
        takes_path = "directory" in inspect.signature(door).parameters
        with pytest.raises(RuntimeError, match=r"is for programs on trio, .*: use (dlog|ledger|the command)"):
            async with door(tmp_path if takes_path else tmp_path.as_uri()):
                raise AssertionError("it is open")

    for name in DOORS.get(package, ()):
        asyncio.run(main(getattr(importlib.import_module(package), name)))
    assert not list(tmp_path.iterdir())


async def no_trio(call: Any) -> None:
    with pytest.raises(RuntimeError, match=r"LocalCluster is for programs on trio, .*: use the command dlog"):
        await call


def test_each_call_on_a_local_cluster_says_so_and_does_nothing(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "cluster")
    for call in (
        cluster.start(),
        cluster.stop(),
        cluster.status(),
        cluster.restart(0),
        cluster.terminate(0),
    ):
        asyncio.run(no_trio(call))
    assert not list(tmp_path.iterdir())


def test_asyncio_learns_of_dlog_aio_also_while_a_namespace_of_it_is_open(tmp_path: Path) -> None:
    async def main() -> None:
        async with dlog.aio.open_namespace(tmp_path.as_uri()), contextlib.AsyncExitStack() as stack:
            with pytest.raises(RuntimeError, match=r"use dlog\.aio\.open_namespace on asyncio"):
                await stack.enter_async_context(dlog.open_namespace(tmp_path.as_uri()))

    asyncio.run(main())
