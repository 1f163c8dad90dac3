"""`dlog cluster` as a program: processes outlive `start` and end with `stop`."""

# covers: dlog/cli/running/cluster.py
# covers: dlog/cluster/local.py
# covers: dlog/cluster/probe.py
# covers: dlog/cluster/registry.py
# covers: dlog/cluster/rolling.py

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from dlog.cli.terminal.exit_codes import ExitCode
from dlog.cluster import process
from dlog.cluster.layout import ClusterPaths, ClusterState, bookie_id, decode_state, encode_state
from dlog.cluster.registry import query_registrations
from tests.fakes.secured_bookies import MECHANISMS, prepare

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper, pytest.mark.slow]
DLOG = [sys.executable, "-m", "dlog.cli.main"]


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "cluster"
    subprocess.run([*DLOG, "cluster", "stop", "--directory", str(tmp_path / "cluster")], timeout=240)


def cluster(directory: Path, action: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [*DLOG, "cluster", action, "--directory", str(directory), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


def state_of(directory: Path) -> ClusterState:
    paths = ClusterPaths(directory)
    return decode_state(paths.state.read_text("utf-8"), paths.state)


def sessions(directory: Path) -> dict[str, int]:
    """The id of the session that created each bookie's node, in the order of the bookies."""
    state = state_of(directory)
    found = trio.run(partial(query_registrations, state.zookeeper_hosts, timeout_s=120))
    assert found is not None, "ZooKeeper did not reply in time"
    return {name: found[name].session_id for name in map(bookie_id, state.bookies)}


def document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_a_secured_cluster_starts_serves_holders_of_its_settings_and_grows(directory: Path) -> None:
    first = cluster(directory, "start", "--secure", "--json")
    assert first.returncode == 0, first.stderr
    assert [member["is_well"] for member in document(first)["members"]] == [True] * 5
    assert all(member["free_bytes"] for member in document(first)["members"][1:4])
    paths = ClusterPaths(directory)
    assert document(first)["config"] == str(paths.client_settings)
    assert {file.stat().st_mode & 0o777 for file in paths.security.iterdir()} == {0o600}
    assert paths.security.stat().st_mode & 0o777 == 0o700

    def dlog(*words: str, config: Path | None, text: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        names = ("DLOG_CONFIG", "DLOG_BOOKIE_SECURITY", "DLOG_URI")
        environment = {name: value for name, value in os.environ.items() if name not in names}
        environment |= {} if config is None else {"DLOG_CONFIG": str(config)}
        return subprocess.run([*DLOG, *words], input=text, capture_output=True, timeout=240, env=environment)

    known, uri = paths.client_settings, document(first)["uri"]
    written = dlog("write", "orders", "--create", config=known, text=b"one\ntwo\n")
    assert written.returncode == 0, written.stderr
    assert dlog("read", "orders", config=known).stdout == b"one\ntwo\n"
    assert dlog("bookies", "list", config=known).returncode == 0
    stranger = dlog("write", "orders", "--uri", uri, config=None, text=b"three\n")
    assert stranger.returncode == ExitCode.DENIED, stranger.stderr
    assert dlog("read", "orders", config=known).stdout == b"one\ntwo\n"

    # The page of a bookie reads through the same certificates.
    page, _, token = document(first)["page"].partition("#token=")
    asked = urllib.request.Request(
        page.replace("/page", "/api/page/overview"), headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(asked, timeout=60) as reply:
        assert [each["state"] for each in json.loads(reply.read())["bookies"]] == ["writable"] * 3

    grown = cluster(directory, "start", "--bookies", "4", "--json")
    assert grown.returncode == 0, grown.stderr
    assert [member["is_well"] for member in document(grown)["members"]] == [True] * 6
    assert cluster(directory, "stop").returncode == 0
    again = cluster(directory, "start")  # it stays secured
    assert f"export DLOG_CONFIG={paths.client_settings}" in again.stdout + again.stderr
    assert dlog("read", "orders", config=known).stdout == b"one\ntwo\n"


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_cluster_whose_bookies_an_operator_secured_starts_and_is_well(
    directory: Path, mechanism: str
) -> None:
    assert cluster(directory, "start", "--bookies", "1").returncode == 0
    assert cluster(directory, "stop").returncode == 0
    prepare(directory, MECHANISMS[mechanism])
    config = ClusterPaths(directory).bookie_config("bookie-1")
    config.write_text(
        config.read_text() + "tlsProviderFactoryClass=org.apache.bookkeeper.tls.TLSContextFactory\n"
        f"tlsRequired=true\ntlsKeyStoreType=PEM\ntlsKeyStore={directory}/bookie.pem\n"
        f"tlsCertificatePath={directory}/bookie.pem\ntlsTrustStoreType=PEM\n"
        f"tlsTrustStore={directory}/authority.pem\n{MECHANISMS[mechanism].bookie.format(home=directory)}"
    )
    started = cluster(directory, "start", "--json")
    assert started.returncode == 0, started.stderr
    bookie = document(started)["members"][1]
    assert bookie["is_well"]
    assert bool(bookie["free_bytes"]) is (mechanism == "sasl")  # the file of tokens may have hashes only


def test_a_cluster_without_security_is_not_secured_later(directory: Path) -> None:
    assert cluster(directory, "start", "--bookies", "1").returncode == 0
    refused = cluster(directory, "start", "--secure")
    assert refused.returncode != 0
    assert "was made without security" in refused.stderr
    assert not ClusterPaths(directory).security.exists()


def test_a_cluster_starts_survives_kills_and_stops(directory: Path) -> None:
    first = cluster(directory, "start", "--json")
    assert first.returncode == 0, first.stderr
    assert [member["is_well"] for member in document(first)["members"]] == [True] * 5

    # A newcomer gets the page, whose address has the token, and restored replicas.
    assert document(first)["members"][4]["name"] == "autorecovery"
    page, _, token = document(first)["page"].partition("#token=")
    asked = urllib.request.Request(
        page.replace("/page", "/api/page/overview"), headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(asked, timeout=60) as reply:
        assert [each["state"] for each in json.loads(reply.read())["bookies"]] == ["writable"] * 3
    assert ClusterPaths(directory).token.stat().st_mode & 0o077 == 0

    uri = document(first)["uri"]
    written = subprocess.run(
        [*DLOG, "write", "orders", "--create", "--uri", uri, "--json"],
        input=b"one\ntwo\n",
        capture_output=True,
        timeout=240,
    )
    assert json.loads(written.stdout)["records"] == 2

    # A cluster too small for the quorums is told, and not waited for as long as for a restart.
    refused = subprocess.run(
        [*DLOG, "write", "orders", "--uri", f"{uri}?ensemble_size=5&write_quorum=5&ack_quorum=5"],
        input=b"three\n",
        capture_output=True,
        timeout=240,
    )
    assert refused.returncode == ExitCode.UNAVAILABLE
    names = ", ".join(sorted(map(bookie_id, state_of(directory).bookies)))
    assert f"5 bookies wanted, 3 writable ({names})" in refused.stderr.decode()

    # A second start changes nothing.
    second = cluster(directory, "start", "--json")
    assert [member["pid"] for member in document(second)["members"]] == [
        member["pid"] for member in document(first)["members"]
    ]

    before = sessions(directory)
    os.kill(document(first)["members"][2]["pid"], signal.SIGKILL)
    assert cluster(directory, "start").returncode == 0
    after = sessions(directory)
    # The start waits for a new node: the killed bookie's node exists until its session ends.
    assert [after[name] == before[name] for name in before] == [True, False, True]

    os.kill(document(first)["members"][3]["pid"], signal.SIGKILL)
    damaged = cluster(directory, "status", "--json")
    assert damaged.returncode == 1
    assert [member["running"] for member in document(damaged)["members"]] == [True, True, True, False, True]

    running = [member.process for member in state_of(directory).members]
    stopped = cluster(directory, "stop")
    assert stopped.returncode == 0
    assert stopped.stderr == "", "no process was killed"
    assert not any(one is not None and process.is_alive(one) for one in running)
    assert cluster(directory, "status").returncode == 1

    # The records are on the disks.
    assert cluster(directory, "start").returncode == 0
    read = subprocess.run([*DLOG, "read", "orders", "--uri", uri], capture_output=True, timeout=240)
    assert read.stdout == b"one\ntwo\n"


def test_a_failed_start_names_the_log_and_stops_all_processes(directory: Path) -> None:
    assert cluster(directory, "start").returncode == 0
    assert cluster(directory, "stop").returncode == 0
    state = state_of(directory)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", state.bookies[1].port))
        listener.listen()
        failed = cluster(directory, "start")
    assert failed.returncode == 1
    assert "bookie-2" in failed.stderr
    assert "bookie-2.log" in failed.stderr
    assert [member.process for member in state_of(directory).members] == [None] * 5


def test_another_process_with_a_recorded_pid_gets_no_signal(directory: Path, tmp_path: Path) -> None:
    assert cluster(directory, "start").returncode == 0
    assert cluster(directory, "stop").returncode == 0
    other = process.start_detached([sys.executable, "-c", "import time; time.sleep(600)"], tmp_path / "log")
    try:
        # The state of an ended bookie, after the system has given its pid to another process.
        old_identity = process.ProcessId(other.pid, other.start_ticks - 1, other.boot_id)
        changed = state_of(directory).with_process("bookie-1", old_identity)
        ClusterPaths(directory).state.write_text(encode_state(changed), "utf-8")
        assert cluster(directory, "stop").returncode == 0
        assert process.is_alive(other)
    finally:
        process.send_signal(other, signal.SIGKILL)
        process.wait_killed(other)


def test_a_rolling_restart_waits_until_each_bookie_has_all_its_entries(directory: Path) -> None:
    started = cluster(directory, "start", "--json")
    assert started.returncode == 0, started.stderr
    env = cluster(directory, "env")
    assert env.stdout == f"export DLOG_URI={document(started)['uri']}\n"
    environment = os.environ | {"DLOG_URI": document(started)["uri"]}

    def dlog(*words: str, text: bytes = b"") -> bytes:
        return subprocess.run(
            [*DLOG, *words], input=text, capture_output=True, timeout=240, env=environment, check=True
        ).stdout

    lines = b"".join(b"%d\n" % number for number in range(200))
    dlog("write", "orders", "--create", text=lines)

    # One process alone: it stops, the others serve, and what is written meanwhile lacks it.
    assert cluster(directory, "stop", "--only", "nonsense").returncode == 1
    assert cluster(directory, "stop", "--only", "bookie-2").returncode == 0
    members = {
        each["name"]: each["running"] for each in document(cluster(directory, "status", "--json"))["members"]
    }
    assert [name for name, running in members.items() if not running] == ["bookie-2"]
    dlog("write", "orders", text=b"missed\n")
    before = sessions_of(directory)
    assert cluster(directory, "start", "--only", "bookie-2").returncode == 0

    rolled = cluster(directory, "restart", "--rolling", "--json")
    assert rolled.returncode == 0, rolled.stderr
    assert [each["is_well"] for each in document(rolled)["members"]] == [True] * 5
    for number in (1, 2, 3):
        assert f"bookie-{number} was restarted and has all its entries" in rolled.stderr
    now = sessions_of(directory)
    assert all(now[name] != session for name, session in before.items())
    service = f"zk://{state_of(directory).zookeeper_hosts}/ledgers"
    dlog("ledger", "check", "--service", service)
    assert dlog("read", "orders") == lines + b"missed\n"


def sessions_of(directory: Path) -> dict[str, int]:
    """The id of the session of each registered bookie."""
    found = trio.run(partial(query_registrations, state_of(directory).zookeeper_hosts, timeout_s=120))
    assert found is not None, "ZooKeeper did not reply in time"
    return {name: node.session_id for name, node in found.items()}
