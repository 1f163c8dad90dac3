"""The address in a zoo.cfg, and a server that takes the place of the process that starts it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dlog.cluster.zookeeper_member import ZookeeperConfigError, client_address
from ledger.runtime.readiness import READY, VARIABLE
from tests.places import ROOT

# It serves at the descriptor that it inherits, once; then it waits to be killed.
SERVER = """
import os, socket, sys, time
listener = socket.socket(fileno=int(sys.argv[1]))
stream, _ = listener.accept()
assert stream.recv(4) == b"srvr"
stream.sendall(b"Mode: follower\\n" if sys.argv[2] == "serves" else b"not serving\\n")
stream.close()
print(os.getpid(), flush=True)
time.sleep(600 if sys.argv[2] == "serves" else 0)
"""
STARTER = """
import sys
from dlog.cluster.zookeeper_member import become
become([sys.executable, "-c", *sys.argv[2:]], ("127.0.0.1", int(sys.argv[1])))
"""


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("", ("127.0.0.1", 2181)),
        ("# clientPort=1\nclientPort = 28181\nclientPortAddress=10.0.0.1\n", ("10.0.0.1", 28181)),
        ("clientPortAddress=0.0.0.0", ("127.0.0.1", 2181)),
    ],
)
def test_the_address_is_that_of_the_configuration(
    text: str, address: tuple[str, int], tmp_path: Path
) -> None:
    (tmp_path / "zoo.cfg").write_text(text)
    assert client_address(tmp_path / "zoo.cfg") == address


def test_a_configuration_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZookeeperConfigError, match=r"zoo\.cfg cannot be read: No such file"):
        client_address(tmp_path / "zoo.cfg")
    (tmp_path / "zoo.cfg").write_text("clientPort=none")
    with pytest.raises(ZookeeperConfigError, match="clientPort must be a number"):
        client_address(tmp_path / "zoo.cfg")


@pytest.mark.slow
@pytest.mark.parametrize("state", ["serves", "ends"])
def test_the_starter_hears_when_the_server_serves_and_only_then(state: str, tmp_path: Path) -> None:
    with socket.socket() as listener, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as waiting:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        waiting.bind(str(tmp_path / "notify"))
        arguments = [str(listener.getsockname()[1]), SERVER, str(listener.fileno()), state]
        server = subprocess.Popen(
            [sys.executable, "-c", STARTER, *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT), VARIABLE: str(tmp_path / "notify")},
            stdout=subprocess.PIPE,
            pass_fds=[listener.fileno()],
        )
        try:
            assert server.stdout is not None
            assert int(server.stdout.readline()) == server.pid, "it has the number of its starter"
            if state == "serves":
                waiting.settimeout(60)
                assert waiting.recv(100) == READY.encode()
            else:
                server.wait(60)
                server.stdout.read()  # its end: the process that looks has ended too
                waiting.setblocking(False)
                with pytest.raises(BlockingIOError):
                    waiting.recv(100)
        finally:
            server.kill()
            server.wait(60)
            assert server.stdout is not None
            server.stdout.close()
