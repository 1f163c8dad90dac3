"""kazoo's threads: how long they wait for a server, and what they log."""

from __future__ import annotations

import logging
import socket
from typing import Any

import pytest
from kazoo.handlers.threading import SequentialThreadingHandler

from ledger.metadata_store import zookeeper_threads
from ledger.metadata_store.errors import StoreUnreachableError
from ledger.metadata_store.zookeeper import ZookeeperStore, open_zookeeper_store
from ledger.metadata_store.zookeeper_security import ZooKeeperSecurity
from ledger.metadata_store.zookeeper_threads import CONNECT_ATTEMPT_S, OneSessionHandler, kazoo_log

SESSION_S = 10.0


class Waits:
    """Notes how long the handler lets kazoo wait, in place of waiting."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.connect_s: list[float] = []
        self.select_s: list[float] = []

        def create_connection(_: object, *args: Any, **kwargs: Any) -> object:
            self.connect_s.append(kwargs["timeout"])
            return object()

        def ready(*args: Any) -> tuple[list[object], list[object], list[object]]:
            self.select_s.append(args[2])
            return [], [], []

        monkeypatch.setattr(SequentialThreadingHandler, "create_connection", create_connection)
        monkeypatch.setattr(zookeeper_threads, "_ready", ready)


def connect(handler: OneSessionHandler, server: int = 1) -> None:
    handler.create_connection(address=("127.0.0.1", server), hostname="h", timeout=SESSION_S)


def test_an_attempt_to_connect_is_shorter_than_the_session_and_longer_after_each_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits, handler = Waits(monkeypatch), OneSessionHandler(ZooKeeperSecurity())
    for _ in range(30):
        connect(handler)
    assert waits.connect_s[:4] == [CONNECT_ATTEMPT_S, 2 * CONNECT_ATTEMPT_S, 4 * CONNECT_ATTEMPT_S, SESSION_S]
    assert set(waits.connect_s[3:]) == {SESSION_S}


def test_a_dark_server_gets_its_share_of_the_session_and_no_more_after_failures_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits, handler = Waits(monkeypatch), OneSessionHandler(ZooKeeperSecurity(), 3)
    for _ in range(10):
        connect(handler, 2)  # as a member that elects a leader, it refuses at once
        connect(handler, 3)
    assert set(waits.connect_s[8:]) == {SESSION_S / 3}
    connect(handler, 1)
    assert waits.connect_s[-1] == CONNECT_ATTEMPT_S


def test_the_first_reply_is_part_of_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    waits, handler = Waits(monkeypatch), OneSessionHandler(ZooKeeperSecurity())
    connect(handler)
    with socket.socket() as one:
        handler.select([one], [], [], SESSION_S)
    assert 0 <= waits.select_s[0] <= CONNECT_ATTEMPT_S


def test_a_connection_that_serves_waits_as_long_as_kazoo_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    waits, handler = Waits(monkeypatch), OneSessionHandler(ZooKeeperSecurity())
    for _ in range(5):
        connect(handler)
    with socket.socket() as one, socket.socket() as other:
        handler.select([one, other], [], [], SESSION_S)
        handler.select([one], [], [], SESSION_S)
    assert waits.select_s == [SESSION_S, SESSION_S]
    connect(handler)
    assert waits.connect_s[-1] == CONNECT_ATTEMPT_S, "the failures before are forgotten"


def test_kazoo_logs_nothing_unless_a_program_asks_for_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    kazoo_log.warning("Connection dropped: refused")
    assert caplog.messages == []
    caplog.set_level(logging.WARNING, kazoo_log.name)
    kazoo_log.warning("Connection dropped: refused")
    assert caplog.messages == ["Connection dropped: refused"]


async def test_a_store_logs_each_change_of_its_state_once(caplog: pytest.LogCaptureFixture) -> None:
    store = ZookeeperStore("h:1", 1000, ZooKeeperSecurity())  # never connected
    store._client._live.set()  # so kazoo tells the session
    for state in ("CONNECTED", "SUSPENDED", "SUSPENDED", "CONNECTED", "CONNECTED"):
        store._enter(state)
    assert caplog.messages == [
        "ZooKeeper at h:1: the connection is lost; trying again",
        "ZooKeeper at h:1: connected again",
    ]


async def test_a_host_without_an_address_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(host: str, *_: object) -> list[object]:
        raise socket.gaierror(-2, f"Name or service not known ({host})")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with pytest.raises(StoreUnreachableError, match="host nowhere: Name or service not known"):
        async with open_zookeeper_store("nowhere:2181", connect_timeout_s=0.05):
            pass
