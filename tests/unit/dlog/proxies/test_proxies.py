"""Proxies own logs on behalf of others, divide them, and leave them without a failed append."""

# covers: dlog/proxies/proxy.py

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

import dlog
from dlog.proxies import Proxy

pytestmark = pytest.mark.slow
TEST_TIMEOUT_S = 60
LOGS = [f"log-{number}" for number in range(6)]


@attrs.define
class Running:
    """A proxy, and what ends it as a signal does."""

    proxy: Proxy
    scope: trio.CancelScope
    ended: trio.Event = attrs.field(factory=trio.Event)

    async def stop(self) -> None:
        self.scope.cancel()
        await self.ended.wait()


@attrs.define
class Town:
    """A namespace with proxies."""

    uri: str
    nursery: trio.Nursery

    async def start(self, name: str, *patterns: str) -> Running:
        async def run(task_status: trio.TaskStatus[Running]) -> None:
            with trio.CancelScope() as scope:
                async with dlog.open_namespace(self.uri) as namespace:
                    running = Running(Proxy(namespace, patterns or ("*",), name), scope)
                    task_status.started(running)
                    await running.proxy.run(lambda _: None)
            running.ended.set()

        started: Running = await self.nursery.start(run)
        return started

    @asynccontextmanager
    async def client(self) -> AsyncIterator[dlog.Namespace]:
        """A program that owns no log."""
        config = dlog.NamespaceConfig(owner_address="none")
        async with dlog.open_namespace(self.uri, config=config) as namespace:
            yield namespace


@pytest.fixture
async def town(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Town]:
    monkeypatch.setattr("dlog.proxies.proxy.LOOK_S", 0.05)
    uri = f"file://{tmp_path}/ns"
    with trio.fail_after(TEST_TIMEOUT_S):
        async with dlog.open_namespace(uri) as namespace, trio.open_nursery() as nursery:
            for log in LOGS:
                await namespace.create_log(log)
            yield Town(uri, nursery)
            nursery.cancel_scope.cancel()


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110
        await trio.sleep(0.01)


async def test_a_proxy_owns_the_logs_that_match_also_later_ones_and_others_forward_to_it(town: Town) -> None:
    running = await town.start("a", "log-*")
    await until(lambda: running.proxy.owned == LOGS)
    async with town.client() as client, client.open_writer("log-0", shared=True) as writer:
        await writer.append(b"one")
        assert not writer.is_owner
        await client.create_log("log-7")
        await client.create_log("other")
        await until(lambda: running.proxy.owned == [*LOGS, "log-7"])


async def test_proxies_divide_the_logs_and_those_of_one_that_leaves_get_another(town: Town) -> None:
    first = await town.start("a")
    await until(lambda: first.proxy.owned == LOGS)
    second = await town.start("b")
    await until(lambda: sorted(first.proxy.owned + second.proxy.owned) == LOGS and bool(second.proxy.owned))
    kept = first.proxy.owned
    assert kept
    await second.stop()
    await until(lambda: first.proxy.owned == LOGS)


async def test_no_append_fails_while_proxies_come_and_leave(town: Town) -> None:
    stop = trio.Event()

    async def append(log: str, stored: list[bytes]) -> None:
        async with town.client() as client, client.open_writer(log, shared=True) as writer:
            while not stop.is_set():
                payload = b"%d" % len(stored)
                await writer.append(payload)
                stored.append(payload)
                assert not writer.is_owner

    proxies = [await town.start("a")]
    records: dict[str, list[bytes]] = {log: [] for log in LOGS}
    async with trio.open_nursery() as nursery:
        for log, stored in records.items():
            nursery.start_soon(append, log, stored)
        for name in "bcd":
            enough = {log: len(stored) + 20 for log, stored in records.items()}
            await until(lambda: all(len(records[log]) >= least for log, least in enough.items()))  # noqa: B023
            proxies.append(await town.start(name))
            await until(lambda: bool(proxies[-1].proxy.owned))
            await proxies.pop(0).stop()
        stop.set()
    for log, stored in records.items():
        async with (
            dlog.open_namespace(town.uri) as namespace,
            namespace.open_reader(log, follow=False) as reader,
        ):
            assert [record.payload async for record in reader] == stored


async def test_a_sealed_log_and_one_that_another_program_writes_leave_the_others_alone(town: Town) -> None:
    async with dlog.open_namespace(town.uri) as namespace:
        await namespace.seal_log("log-0")
        async with namespace.open_writer("log-1") as own:
            running = await town.start("a")
            await until(lambda: running.proxy.owned == LOGS[2:])
            await own.append(b"its own")
        await until(lambda: running.proxy.owned == LOGS[1:])
        async with running.proxy._namespace.open_writer("log-2", shared=True) as writer:
            await writer.seal()
        await until(lambda: running.proxy.owned == [LOGS[1], *LOGS[3:]])


async def test_a_program_that_may_not_own_says_what_is_missing(town: Town) -> None:
    async with town.client() as client:
        with pytest.raises(dlog.LogUnavailableError, match="start dlog proxy"):
            async with client.open_writer("log-0", shared=True, lock_timeout_s=0):
                raise AssertionError("it was opened")
