"""The state of a writer and the health of its namespace, as the three faces show them."""

# covers: dlog/operations/health.py
# covers: dlog/write/health.py

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import dlog
import dlog.aio
import dlog.blocking
from dlog.context import NamespaceContext
from dlog.namespace_handle import Namespace
from tests.unit.dlog.test_expired_sessions import two_programs

FAILURE = dlog.LogWriteError("log", "bookies were out of reach", dlog.RecordOutcome.NOT_WRITTEN)


def state_of(writer: Any) -> dlog.WriterState:
    state: dlog.WriterState = writer.state  # a type checker takes a property for constant
    return state


def stop(writer: Any) -> None:
    """As the shell of the writer does after an error that lasts."""
    getattr(writer, "_inner", writer)._shell._stop(FAILURE)


def check_open(health: dlog.NamespaceHealth) -> None:
    assert health.ok
    assert health.problems == ()
    assert health.session == "connected"
    assert len(health.bookies) == 1
    (writer,) = health.writers
    assert (writer.log, writer.state, writer.reason) == ("log", dlog.WriterState.OPEN, None)
    assert writer.oldest_pending_s == 0.0
    assert json.loads(json.dumps(health.as_dict()))["writers"][0]["state"] == "open"


def check_failed(health: dlog.NamespaceHealth) -> None:
    assert not health.ok
    (problem,) = health.problems
    assert problem.startswith("the writer of log 'log' is failed: log 'log': the writer had to stop: bookies")
    assert health.as_dict()["ok"] is False


@pytest.mark.slow
async def test_a_writer_and_its_namespace_tell_their_state(tmp_path: Path) -> None:
    async with dlog.open_namespace(tmp_path.as_uri()) as namespace:
        assert namespace.health().writers == ()
        async with namespace.open_writer("log", create=True) as writer:
            await writer.append(b"a")
            assert (writer.state, writer.failure, writer.oldest_pending_s) == (dlog.WriterState.OPEN, None, 0)
            check_open(namespace.health())
            stop(writer)
            assert state_of(writer) is dlog.WriterState.FAILED
            assert isinstance(writer.failure, dlog.LogWriteError)
            check_failed(namespace.health())
            await writer.reopen()
            check_open(namespace.health())
        assert state_of(writer) is dlog.WriterState.CLOSED
        assert namespace.health().writers == ()
    assert namespace.health().problems == ("the namespace is closed",)


@pytest.mark.slow
def test_the_same_in_asyncio(tmp_path: Path) -> None:
    async def main() -> None:
        async with dlog.aio.open_namespace(tmp_path.as_uri()) as namespace:
            async with namespace.open_writer("log", create=True) as writer:
                await writer.append(b"a")
                assert state_of(writer) is dlog.WriterState.OPEN
                assert writer.oldest_pending_s == 0.0
                pending = writer.submit(b"b")
                assert writer.oldest_pending_s > 0.0
                assert (
                    namespace.health(pending_s_max=0.0).problems[0].startswith("log 'log': a record has wait")
                )
                await pending
                check_open(namespace.health())
                stop(writer)
                check_failed(namespace.health())
                await writer.reopen()
            assert state_of(writer) is dlog.WriterState.CLOSED

    asyncio.run(main())


@pytest.mark.slow
def test_the_same_without_async(tmp_path: Path) -> None:
    with dlog.blocking.open_namespace(tmp_path.as_uri()) as namespace:
        with namespace.open_writer("log", create=True) as writer:
            writer.append(b"a")
            assert state_of(writer) is dlog.WriterState.OPEN
            assert writer.oldest_pending_s == 0.0
            check_open(namespace.health())
            loop: Any = writer
            loop._loop.run(_in_loop, writer)
            check_failed(namespace.health())
            writer.reopen()
        assert state_of(writer) is dlog.WriterState.CLOSED


async def _in_loop(writer: dlog.blocking.LogWriter) -> None:
    stop(writer)


async def test_a_session_out_of_reach_and_missing_bookies_are_problems(autojump_clock: MockClock) -> None:
    async with two_programs() as (one, _):
        one.sessions.failures = 10**6
        one.sessions.expire()
        await trio.lowlevel.checkpoint()
        assert one.namespace.health().problems == ("the metadata are out of reach",)
        assert one.namespace.health().session == "suspended"
    wide = dlog.NamespaceConfig(ensemble_size=9, write_quorum=9, ack_quorum=9).for_scheme("distributedlog")
    async with two_programs() as (one, _):
        context = one.namespace.context
        namespace = Namespace(
            NamespaceContext("test:wide", context.store, context.client, "/ns", wide, client_id="wide")
        )
        assert namespace.health().problems == ("3 bookies are writable, and a new segment needs 9",)
