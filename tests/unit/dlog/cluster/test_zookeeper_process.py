"""Starting and stopping a ZooKeeper server: what is found, what is missing, which server replies."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from dlog.cluster import zookeeper_process
from dlog.cluster.process import ProcessId, is_alive, start_detached
from dlog.cluster.zookeeper_process import (
    ZookeeperNotInstalledError,
    ZookeeperPortError,
    ZookeeperProcessError,
    find_class_path,
    find_java,
    is_serving,
    prepare,
    start_zookeeper,
    stop_zookeeper,
)
from tests.fakes.zookeeper_server import open_zookeeper_process

NEEDED = ["zookeeper.jar", "zookeeper-jute.jar", "slf4j-api.jar", "metrics-core.jar", "snappy-java.jar"]


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without Java and PySpark, with an empty directory for Debian's jars."""
    jars = tmp_path / "jars"
    jars.mkdir()
    monkeypatch.setattr(zookeeper_process, "DEBIAN_JARS", jars)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("SPARK_HOME", raising=False)
    return tmp_path


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\necho no server here\nexit 3\n")
    path.chmod(0o755)
    return path


def test_the_error_for_missing_software_names_its_packages(bare: Path) -> None:
    with pytest.raises(ZookeeperNotInstalledError, match="openjdk-17-jre-headless"):
        find_java()
    with pytest.raises(ZookeeperNotInstalledError, match=r"pyspark; Debian: libzookeeper-java"):
        find_class_path()


def test_java_home_goes_before_the_path(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path = program(bare / "java")
    assert find_java() == on_path
    at_home = program(bare / "home" / "bin" / "java")
    monkeypatch.setenv("JAVA_HOME", str(bare / "home"))
    assert find_java() == at_home


def test_all_five_jars_are_needed(bare: Path) -> None:
    jars = bare / "jars"
    for name in NEEDED[:-1]:
        (jars / name).touch()
    with pytest.raises(ZookeeperNotInstalledError):
        find_class_path()
    (jars / "snappy-java-1.1.10.8.jar").touch()
    assert [jar.name for jar in find_class_path()] == [*NEEDED[:-1], "snappy-java-1.1.10.8.jar"]


def test_the_configuration_binds_to_this_machine_only(tmp_path: Path) -> None:
    command = prepare(tmp_path / "new", 12345)
    config = (tmp_path / "new" / "zoo.cfg").read_text().splitlines()
    assert f"dataDir={tmp_path / 'new'}" in config
    assert "clientPort=12345" in config
    assert "clientPortAddress=127.0.0.1" in config
    assert command[-1] == str(tmp_path / "new" / "zoo.cfg")


async def test_a_server_that_ends_at_once_is_an_error_with_its_log(bare: Path, tmp_path: Path) -> None:
    program(bare / "java")
    for name in NEEDED:
        (bare / "jars" / name).touch()
    with pytest.raises(ZookeeperProcessError, match=r"ended at once; the end of .*zk.log:\nno server here"):
        await start_zookeeper(tmp_path / "data", log_path=tmp_path / "zk.log")


async def test_a_port_in_use_is_an_error(tmp_path: Path, autojump_clock: MockClock) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ZookeeperPortError, match=f"port {port} of 127.0.0.1 is in use"):
            await start_zookeeper(tmp_path, port=port)


async def test_an_open_port_is_not_a_server(tmp_path: Path) -> None:
    async def other_server(stream: trio.SocketStream) -> None:
        word = await stream.receive_some()
        if word == b"srvr":
            await stream.send_all(b"Zookeeper version: 3\nMode: standalone\n")
        else:
            await stream.send_all(b"clientPort=1\ndataDir=/elsewhere/version-2\n")
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listener.socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, other_server, [listener])
        assert not await is_serving(port, tmp_path)
        nursery.cancel_scope.cancel()


@pytest.mark.zookeeper
async def test_a_started_server_replies_and_a_stopped_one_is_gone(tmp_path: Path) -> None:
    log_path = tmp_path / "logs" / "zk.log"
    async with open_zookeeper_process(tmp_path / "data", log_path=log_path) as server:
        assert server.hosts == f"127.0.0.1:{server.port}"
        assert await is_serving(server.port, tmp_path / "data")
        assert not await is_serving(server.port, tmp_path)
        assert is_alive(server.identity)
        assert os.getsid(server.pid) != os.getsid(0), "Ctrl-C in our terminal must not reach the server"
    assert not is_alive(server.identity)
    assert log_path.stat().st_size > 0
    await stop_zookeeper(server.identity)


@pytest.mark.zookeeper
async def test_a_killed_server_restarts_on_the_same_port_and_data(tmp_path: Path) -> None:
    server = await start_zookeeper(tmp_path)
    try:
        os.kill(server.pid, signal.SIGKILL)
        again = await start_zookeeper(tmp_path, port=server.port)
        assert again.port == server.port
        assert again.pid != server.pid
        await stop_zookeeper(again.identity)
    finally:
        await stop_zookeeper(server.identity)


@pytest.mark.zookeeper
async def test_a_cancelled_start_leaves_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[ProcessId] = []

    def remember(command: list[str], log_path: Path) -> ProcessId:
        started.append(start_detached(command, log_path))
        scope.cancel()
        return started[-1]

    monkeypatch.setattr(zookeeper_process, "start_detached", remember)
    with trio.CancelScope() as scope:
        await start_zookeeper(tmp_path)
    assert scope.cancelled_caught
    assert [is_alive(identity) for identity in started] == [False]


def test_the_jars_of_a_setting_come_first(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NEEDED:
        (bare / "jars" / name).touch()  # Debian's
    chosen, named = bare / "chosen", bare / "named"
    for directory in (chosen, named):
        directory.mkdir()
        for name in NEEDED:
            (directory / name).touch()
    assert find_class_path()[0].parent == bare / "jars"
    monkeypatch.setenv("DLOG_ZOOKEEPER_JARS", str(named))
    assert find_class_path()[0].parent == named
    assert find_class_path(chosen)[0].parent == chosen


def test_a_setting_that_names_a_directory_without_the_jars_is_refused_with_their_names(bare: Path) -> None:
    for name in NEEDED:
        (bare / "jars" / name).touch()
    lacking = bare / "lacking"
    lacking.mkdir()
    (lacking / "zookeeper-3.9.4.jar").touch()
    with pytest.raises(ZookeeperNotInstalledError, match="no jar of zookeeper-jute, slf4j-api"):
        find_class_path(lacking)
