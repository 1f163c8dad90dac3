"""Calls for trio that a program makes in another loop or another thread: the error says what to use."""

# covers: dlog/write/own_thread.py
# covers: ledger/runtime/tasks/trio_only.py

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

import dlog.aio
import ledger
from dlog import wal
from dlog.cluster import LocalCluster
from dlog.groups import join_group
from dlog.shards import create_sharded_log, open_sharded_reader, open_sharded_writer
from namespace.dlsn import DLSN

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


LIMIT_S = 30
FIRST = DLSN(1, 0, 0)
ONE: dict[str, Any] = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}
# What a later run may call: there is nothing to do, or to wait for.
IDLE = {"aclose", "outcome", "wait_capacity", "flush", "commit", "wait_change"}
IDLE |= {"close", "wait_confirmed", "write_explicit_lac"}


@asynccontextmanager
async def opened(uri: str) -> AsyncIterator[dict[str, Any]]:
    """One object of each kind, in a run of trio of its own."""
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        namespace = await enter(dlog.open_namespace(uri))
        await create_sharded_log(namespace, "parts", 2)
        found: dict[str, Any] = {
            "namespace": namespace,
            "writer": await enter(namespace.open_writer("log", create=True)),
            "shared writer": await enter(namespace.open_writer("shared", create=True, shared=True)),
            "sharded writer": await enter(open_sharded_writer(namespace, "parts")),
            "reader": await enter(namespace.open_reader("log", cursor="c")),
            "sharded reader": await enter(open_sharded_reader(namespace, "parts")),
            "cursors": namespace.cursors("log"),
            "member": await enter(join_group(namespace, "group", ["log"])),
            "wal": await enter(wal.open_wal(namespace, apply=bytes)),
            "standby": await enter(wal.follow_wal(namespace, apply=bytes)),
        }
        client = await enter(ledger.open_client(uri))
        found["write handle"] = await enter(await client.create(**ONE))
        found["adv handle"] = await enter(await client.create_adv(**ONE))
        closed = await client.create(**ONE)
        await closed.append(b"mine")
        await closed.close()
        found["read handle"] = await enter(await client.open(closed.ledger_id))
        while not found["member"].logs:
            await found["member"].wait_change()
        yield found


WRITES: dict[str, Callable[[Any], Any]] = {
    "append": lambda each: each.append(b"x"),
    "append_many": lambda each: each.append_many([b"x", b"y"]),
    "append_after": lambda each: each.append_after(b"x", None),
    "append_many_after": lambda each: each.append_many_after([b"x"], None),
    "append_once": lambda each: each.append_once(b"x", txid=2**41),
    "outcome": lambda each: each.outcome(7),
    "submit": lambda each: each.submit(b"x"),
    "begin_append": lambda each: each.begin_append(b"x"),
    "wait_capacity": lambda each: each.wait_capacity(),
    "flush": lambda each: each.flush(),
    "truncate": lambda each: each.truncate(FIRST),
    "seal": lambda each: each.seal(),
    "reopen": lambda each: each.reopen(),
    "aclose": lambda each: each.aclose(),
}
LEDGER_CALLS: dict[str, Callable[[Any], Any]] = {
    "wait_confirmed": lambda each: each.wait_confirmed(0),
    "force": lambda each: each.force(),
    "write_explicit_lac": lambda each: each.write_explicit_lac(),
    "close": lambda each: each.close(),
}
CALLS: dict[str, dict[str, Callable[[Any], Any]]] = {
    "writer": WRITES,
    "shared writer": WRITES,
    "sharded writer": {
        "append": lambda each: each.append(b"k", b"x"),
        "append_many": lambda each: each.append_many([(b"k", b"x")]),
        "submit": lambda each: each.submit(b"k", b"x"),
        "wait_capacity": lambda each: each.wait_capacity(),
    },
    "reader": {
        "read_batch": lambda each: each.read_batch(1),
        "read_records": lambda each: each.read_records(1, wait_s=0),
        "next": lambda each: anext(each),
        "aclose": lambda each: each.aclose(),
    },
    "sharded reader": {"read_batch": lambda each: each.read_batch(1), "next": lambda each: anext(each)},
    "member": {
        "next": lambda each: anext(each),
        "commit": lambda each: each.commit(None),
        "wait_change": lambda each: each.wait_change(),
    },
    "standby": {
        "lag": lambda each: each.lag(),
        "wait_index": lambda each: each.wait_index(1),
        "take_over": lambda each: each.take_over().__aenter__(),
    },
    "write handle": {
        "append": lambda each: each.append(b"x"),
        "append_many": lambda each: each.append_many([b"x"]),
        "submit": lambda each: each.submit(b"x"),
        **LEDGER_CALLS,
    },
    "adv handle": {
        "append": lambda each: each.append(0, b"x"),
        "submit": lambda each: each.submit(0, b"x"),
        **LEDGER_CALLS,
    },
    "read handle": {
        "read": lambda each: each.read(0, 0),
        "read_payloads": lambda each: each.read_payloads(0, 0),
        "read_last_confirmed": lambda each: each.read_last_confirmed(),
        "wait_last_confirmed_beyond": lambda each: each.wait_last_confirmed_beyond(0, timeout_s=1),
        "close": lambda each: each.close(),
    },
    "cursors": {"set": lambda each: each.set("c", FIRST), "get": lambda each: each.get("c")},
    "wal": {"append": lambda each: each.append(b"x")},
    "namespace": {
        "create_log": lambda each: each.create_log("other"),
        "list_logs": lambda each: each.list_logs(),
        "last_dlsn": lambda each: each.last_dlsn("log"),
        "open_writer": lambda each: each.open_writer("other", create=True).__aenter__(),
    },
}


def refusal(call: Callable[[Any], Any], value: Any, *, runs_trio: bool) -> BaseException | None:
    """What a call raises in another thread; None if it returns or does not end."""
    errors: list[BaseException] = []

    async def in_run() -> None:
        result = call(value)
        if inspect.isawaitable(result):
            await result

    def work() -> None:
        try:
            if runs_trio:
                trio.run(in_run)
            else:
                result = call(value)
                if inspect.iscoroutine(result):
                    result.send(None)
        except BaseException as exc:
            errors.append(exc)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    return errors[0] if errors else None


@pytest.mark.parametrize("kind", CALLS)
async def test_each_call_from_another_thread_is_refused_and_does_nothing(tmp_path: Path, kind: str) -> None:
    with trio.fail_after(LIMIT_S * 2):
        async with opened(tmp_path.as_uri()) as objects:
            for name, call in CALLS[kind].items():
                error = refusal(call, objects[kind], runs_trio=True)
                assert isinstance(error, RuntimeError), (name, error)
                assert "in another thread" in str(error), name
                assert "Use dlog.blocking" in str(error), name
                assert "trio.from_thread.run" in str(error), name
            assert await objects["writer"].append(b"mine") == FIRST
            assert list((await objects["reader"].read_batch(10)).payloads()) == [b"mine"]
            await objects["shared writer"].append(b"mine")
            await objects["sharded writer"].append(b"key", b"mine")
            assert await objects["wal"].append(b"mine") == b"mine"
            assert await objects["write handle"].append(b"mine") == 0
            await objects["adv handle"].append(0, b"mine")
            assert await objects["read handle"].read_payloads(0, 0) == [b"mine"]
            await objects["standby"].wait_index(1)
            assert not await objects["namespace"].log_exists("other")
            for log in ("log", "shared"):
                assert await objects["namespace"].count_records(log) == 1


async def test_a_submit_in_a_thread_without_a_run_is_refused_and_takes_nothing(tmp_path: Path) -> None:
    with trio.fail_after(LIMIT_S * 2):
        async with dlog.open_namespace(tmp_path.as_uri()) as namespace:
            async with namespace.open_writer("log", create=True) as writer:
                error = refusal(lambda each: each.submit(b"x"), writer, runs_trio=False)
                assert isinstance(error, RuntimeError)
                assert "in another thread" in str(error)
                await writer.append(b"mine")
            assert await namespace.count_records("log") == 1


async def test_a_record_cannot_be_awaited_in_another_thread(tmp_path: Path) -> None:
    with trio.fail_after(LIMIT_S * 2):
        async with AsyncExitStack() as stack:
            namespace = await stack.enter_async_context(dlog.open_namespace(tmp_path.as_uri()))
            writer = await stack.enter_async_context(namespace.open_writer("log", create=True))
            pending = writer.submit(b"x")
            error = refusal(lambda each: each, pending, runs_trio=True)
            assert isinstance(error, RuntimeError)
            assert "in another thread" in str(error)
            assert await pending == FIRST


@pytest.mark.parametrize("kind", CALLS)
def test_a_later_run_in_the_same_thread_finds_all_closed(tmp_path: Path, kind: str) -> None:
    objects: dict[str, Any] = {}

    async def first() -> None:
        async with opened(tmp_path.as_uri()) as found:
            objects.update(found)

    async def made(call: Callable[[Any], Any]) -> None:
        result = call(objects[kind])
        if inspect.isawaitable(result):
            await result

    async def second() -> None:
        for name, call in CALLS[kind].items():
            if name not in IDLE:
                with trio.fail_after(LIMIT_S), pytest.raises((dlog.DLogError, ledger.LedgerError)):
                    await made(call)

    trio.run(first)
    trio.run(second)
