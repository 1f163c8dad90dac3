"""`dlog cluster start|stop --hosts` through a real SSH server."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from random import Random

import attrs
import pytest
import trio

from dlog.cluster.ports import free_ports
from tests.places import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper, pytest.mark.slow]
DLOG = [sys.executable, "-m", "dlog.cli.main"]
LOCALHOST = "127.0.0.1"


@attrs.frozen
class SshServer:
    """A running server, which takes one key."""

    port: int
    key: Path

    @property
    def options(self) -> list[str]:
        """Options of the client: nothing of the user's own files counts."""
        known = [
            "-o",
            "StrictHostKeyChecking=no",
            "-o",
            "UserKnownHostsFile=/dev/null",
            "-o",
            "LogLevel=ERROR",
        ]
        return ["-F", "none", "-p", str(self.port), "-i", str(self.key), "-o", "IdentitiesOnly=yes", *known]


def prepare(directory: Path, port: int) -> list[str]:
    """Write keys and configuration; return the command that runs ``sshd`` with them."""
    program = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin")
    assert program is not None, "the test needs sshd; install the package openssh-server"
    directory.mkdir(mode=0o700)
    for name in ("host", "user"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / name)]
        subprocess.run(words, check=True)
    settings = {
        "ListenAddress": f"{LOCALHOST}:{port}",
        "HostKey": directory / "host",
        "AuthorizedKeysFile": directory / "user.pub",
        "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no",
        "UsePAM": "no",
        "StrictModes": "no",
        "PidFile": "none",
    }
    config = directory / "sshd_config"
    config.write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # without it sshd of root does not start
    return [program, "-D", "-e", "-f", str(config)]


@contextlib.asynccontextmanager
async def open_ssh_server(directory: Path) -> AsyncIterator[SshServer]:
    """Run ``sshd`` on a free port of this machine; Debian has it in the package openssh-server."""
    (port,) = free_ports(1, Random(), host=LOCALHOST)
    run = partial(trio.run_process, prepare(directory, port), capture_stderr=True, check=False)
    async with trio.open_nursery() as nursery:
        server: trio.Process = await nursery.start(run)
        try:
            while not await listens(port):
                assert server.returncode is None, "sshd has ended"
                await trio.sleep(0.02)
            yield SshServer(port, directory / "user")
        finally:
            server.terminate()


async def listens(port: int) -> bool:
    try:
        await (await trio.open_tcp_stream(LOCALHOST, port)).aclose()
    except OSError:
        return False
    return True


def hosts_text(server: SshServer, directory: Path) -> str:
    """Three hosts at one address; the directory of one has a name that a shell would take apart."""
    zookeeper, peer, election, *bookies = free_ports(6, Random(), host=LOCALHOST)
    text = f"""
[defaults]
dlog = {json.dumps(DLOG)}
environment = {{ PYTHONPATH = "{ROOT}", JDK_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1" }}
autorecovery = false
zookeeper_heap_mib = 64
ssh = "{getpass.getuser()}@{LOCALHOST}"
ssh_options = {json.dumps(server.options)}
[bookie]
zkTimeout = 3000
diskUsageThreshold = 0.99
diskUsageWarnThreshold = 0.98
minUsableSizeForEntryLogCreation = 100000000
[hosts.m1]
zookeeper = 1
zookeeper_port = {zookeeper}
zookeeper_peer_port = {peer}
zookeeper_election_port = {election}
"""
    for number, port in enumerate(bookies, 1):
        own = f"[hosts.m{number}]\n" if number > 1 else ""
        place = directory / ("m2 it's $HOME" if number == 2 else f"m{number}")
        text += f'{own}address = "{LOCALHOST}"\nbookie_port = {port}\ndirectory = {json.dumps(str(place))}\n'
    return text


async def test_a_cluster_is_started_used_and_stopped_through_a_real_ssh_server(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.toml"

    async def cluster(action: str) -> dict[str, object]:
        words = [*DLOG, "cluster", action, "--hosts", str(hosts), "--json"]
        done = await trio.run_process(words, capture_stdout=True, capture_stderr=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)  # type: ignore[no-any-return]

    with trio.fail_after(120):
        async with open_ssh_server(tmp_path / "ssh") as server:
            hosts.write_text(hosts_text(server, tmp_path))
            started = await cluster("start")
            try:
                assert states(started) == ["started"] * 4
                here = ["orders", "--uri", str(started["uri"])]
                await trio.run_process(
                    [*DLOG, "write", *here, "--create"], stdin=b"1\n2\n", capture_stdout=True
                )
                read = await trio.run_process([*DLOG, "read", *here], capture_stdout=True)
                assert read.stdout == b"1\n2\n"
                assert "m2 it's $HOME" in os.listdir(tmp_path)
            finally:
                with trio.CancelScope(shield=True):
                    stopped = await cluster("stop")
            assert states(stopped) == ["stopped"] * 4


async def test_a_key_that_the_host_does_not_take_changes_nothing_and_is_named(tmp_path: Path) -> None:
    with trio.fail_after(60):
        async with open_ssh_server(tmp_path / "ssh") as server:
            hosts = tmp_path / "hosts.toml"
            other = attrs.evolve(server, key=tmp_path / "ssh" / "host")
            hosts.write_text(hosts_text(other, tmp_path))
            words = [*DLOG, "cluster", "start", "--hosts", str(hosts)]
            done = await trio.run_process(words, capture_stdout=True, capture_stderr=True, check=False)
    assert done.returncode != 0
    assert b"Permission denied" in done.stdout + done.stderr
    assert sorted(os.listdir(tmp_path)) == ["hosts.toml", "ssh"]


def states(printed: dict[str, object]) -> list[str]:
    programs = printed["programs"]
    assert isinstance(programs, list)
    return [each["state"] for each in programs]
