"""Ports for servers of this machine that must keep them over restarts.

Always: the port lies outside the range from which the system takes the local ends of outgoing connections.
Inside that range a client may sit on a killed server's port when it wants to come back.

Source: ip(7), ip_local_port_range.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

_FIRST = 15_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TRIES_MAX = 1000


class NoFreePortError(Exception):
    """Hardly any port below the system's own range is free."""


def free_ports(count: int, rng: random.Random, *, host: str) -> list[int]:
    """Different ports on which nobody listens now. Nothing holds them: another program may be quicker.

    Raises:
        NoFreePortError: After many tries there are not as many.
    """
    stop = _ephemeral_first()
    found: list[int] = []
    for _ in range(_TRIES_MAX):
        if len(found) == count:
            return found
        port = rng.randrange(min(_FIRST, stop - 5000), stop)
        if port not in found and _is_free(host, port):
            found.append(port)
    raise NoFreePortError(f"only {len(found)} of {count} ports found free on {host} below {stop}")


def _ephemeral_first() -> int:
    try:
        return max(10_000, int(_RANGE.read_text().split()[0]))
    except (OSError, ValueError):
        return 32_768  # Linux's default


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True
