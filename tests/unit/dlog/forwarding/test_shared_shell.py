"""What a shared writer tells the next owner of what an owner before may have stored."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import trio
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from dlog.config import WriterConfig
from dlog.forwarding.forward_machine import ForwardPhase
from dlog.forwarding.frames import (
    Appended,
    ForwardedCall,
    Hello,
    Request,
    Welcome,
    decode,
    encode_appended,
    encode_welcome,
)
from dlog.forwarding.shared_shell import SharedLog, SharedShell
from namespace.dlsn import DLSN, INVALID_DLSN


class Owners:
    """A meeting at which there is always an owner: the test, at the other end of each connection."""

    def __init__(self) -> None:
        self._send, self.streams = trio.open_memory_channel[trio.abc.Stream](10)
        self.at, self._changed = "here", trio.Event()

    async def address(self, changed: trio.Event) -> str | None:
        self._changed = changed
        return self.at

    def move(self, address: str) -> None:
        self.at = address
        self._changed.set()

    @asynccontextmanager
    async def connected(self, address: str) -> AsyncIterator[trio.abc.Stream | None]:
        ours, theirs = memory_stream_pair()
        self._send.send_nowait(theirs)
        yield ours


class Log:
    """The name of a log."""

    name = "log"


async def hello_of(stream: trio.abc.Stream) -> Hello:
    found = decode(bytes(await stream.receive_some())[4:])
    assert isinstance(found, Hello)
    return found


def shell_at(owners: Owners) -> SharedShell:
    nothing = cast("Any", None)
    return SharedShell(
        SharedLog(
            cast("Any", Log()),
            WriterConfig(),
            cast("Any", owners),
            nothing,
            nothing,
            nothing,
            "p",
            nothing,
            nothing,
        )
    )


async def test_forwarders_leave_an_owner_whose_node_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may stand still: then its connections show nothing."""
    monkeypatch.setattr("dlog.forwarding.shared_shell.PING_S", 3600.0)
    owners = Owners()
    shell = shell_at(owners)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shell.run)
            first = await owners.streams.receive()
            await hello_of(first)
            await first.send_all(encode_welcome(Welcome(-1, -1, DLSN(1, 3, 0))))
            await wait_all_tasks_blocked()
            group = shell.machine.take([b"x"], None, None, size_bytes=1)
            owners.move("there")
            second = await owners.streams.receive()
            await hello_of(second)
            await second.send_all(encode_welcome(Welcome(-1, -1, DLSN(1, 3, 0))))
            await second.send_all(encode_appended(Appended(0, 1, [(1, 9, 0, 1)])))
            await wait_all_tasks_blocked()
            assert group.dlsn(0) == DLSN(1, 9, 0)
            nursery.cancel_scope.cancel()


async def test_the_next_owner_learns_where_a_call_under_way_may_have_been_stored() -> None:
    owners = Owners()
    shell = shell_at(owners)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shell.run)
            first = await owners.streams.receive()
            assert (await hello_of(first)).floor == INVALID_DLSN
            await first.send_all(encode_welcome(Welcome(-1, -1, DLSN(1, 3, 0))))
            await wait_all_tasks_blocked()
            assert shell.machine.phase is ForwardPhase.FORWARDING
            nursery.start_soon(shell.call, Request(0, ForwardedCall.FLUSH))
            await wait_all_tasks_blocked()
            group = shell.machine.take([b"x"], None, None, size_bytes=1)
            await first.send_all(encode_appended(Appended(0, 1, [(1, 9, 0, 1)])))
            await wait_all_tasks_blocked()
            assert (group.dlsn(0), shell.machine.floor) == (DLSN(1, 9, 0), DLSN(1, 9, 0))
            await first.aclose()
            second = await owners.streams.receive()
            assert (await hello_of(second)).floor == DLSN(1, 3, 0)
            nursery.cancel_scope.cancel()
