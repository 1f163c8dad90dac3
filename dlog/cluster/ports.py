"""Ports for servers of this machine that keep their port over restarts.

Always: a port is outside the system's range for the local ends of outgoing connections. Inside that range, a
client's connection could occupy the port of a killed server before the server restarts.

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
    """Too few ports below the system's own range are free."""


def free_ports(count: int, rng: random.Random, *, host: str) -> list[int]:
    """Return different ports that are free now. They are not reserved: another program may take one.

    Raises:
        NoFreePortError: Fewer ports were found after ``_TRIES_MAX`` tries.
    """
    stop = _ephemeral_first()
    found: list[int] = []
    for _ in range(_TRIES_MAX):
        if len(found) == count:
            return found
        port = rng.randrange(min(_FIRST, stop - 5000), stop)
        if port not in found and _is_free(host, port):
            found.append(port)
    raise NoFreePortError(
        f"found {len(found)} of {count} free ports on {host} below {stop} in {_TRIES_MAX} tries; end programs"
        " that listen on ports in this range"
    )


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
