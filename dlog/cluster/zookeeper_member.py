"""A ZooKeeper server that replaces this process, and tells the program that started it when it serves.

Inside: the address in a ``zoo.cfg``, the process that looks at the server. Not inside: the command line
(``zookeeper_process``).
Always: the server has the number of this process, so a signal for it reaches it. The process that looks ends
with the server at the latest.

Source: ZooKeeper administrator's guide (configuration file, four letter words); sd_notify(3).
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from dlog.cluster.process import identify, is_alive
from ledger.runtime.readiness import READY, VARIABLE, notify

DEFAULT_PORT = 2181
_LOOK_S = 0.1
_REPLY_TIMEOUT_S = 2.0


class ZookeeperConfigError(ValueError):
    """A ``zoo.cfg`` cannot be used; nothing was started."""


def client_address(config: Path) -> tuple[str, int]:
    """The host and the port at which the server of a ``zoo.cfg`` accepts clients.

    Raises:
        ZookeeperConfigError: The file cannot be read, or its port is no number.
    """
    try:
        lines = config.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        reason = getattr(exc, "strerror", None) or "it is not UTF-8"
        raise ZookeeperConfigError(f"{config} cannot be read: {reason}") from exc
    pairs = (line.partition("=") for line in lines if not line.lstrip().startswith(("#", "!")))
    settings = {key.strip(): value.strip() for key, _, value in pairs}
    port = settings.get("clientPort", str(DEFAULT_PORT))
    if not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise ZookeeperConfigError(f"{config}: clientPort must be a number from 1 to 65535")
    host = settings.get("clientPortAddress", "")
    return ("127.0.0.1" if host in ("", "0.0.0.0") else host), int(port)


def become(command: Sequence[str], address: tuple[str, int]) -> NoReturn:
    """Replace this process by the server.

    If a program waits for readiness (``ledger.runtime.readiness``), a second process tells it as soon as the
    server replies at the address.

    Raises:
        OSError: The command cannot be executed.
    """
    if os.environ.get(VARIABLE):
        server = identify(os.getpid())
        assert server is not None, "this process is listed"  # it runs this line
        child = os.fork()
        if child == 0:
            # A second fork: the server would never reap a child that it does not know.
            if os.fork() == 0:
                while is_alive(server):
                    if _serves(address):
                        notify(READY)
                        break
                    time.sleep(_LOOK_S)
            os._exit(0)
        os.waitpid(child, 0)
    os.execv(command[0], list(command))


def _serves(address: tuple[str, int]) -> bool:
    """True if a server replies there, alone or with a majority of the members."""
    reply = b""
    try:
        with socket.create_connection(address, _REPLY_TIMEOUT_S) as stream:
            stream.sendall(b"srvr")
            while chunk := stream.recv(4096):
                reply += chunk
    except OSError:
        return False
    return b"Mode:" in reply
