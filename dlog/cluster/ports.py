"""Ports for servers of this machine that keep their port over restarts.

Always: a port is outside the system's range for the local ends of outgoing connections. Inside that range, a
client's connection could occupy the port of a killed server before the server restarts. The variable
``DLOG_PORTS`` narrows the choice, so that programs which start servers at the same time do not choose alike.

Source: ip(7), ip_local_port_range.
"""

from __future__ import annotations

import os
import random
import re
import socket
from pathlib import Path

VARIABLE = "DLOG_PORTS"
_FIRST = 15_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TRIES_MAX = 1000
_returned: set[int] = set()  # by this process, whose servers may not listen yet


class NoFreePortError(Exception):
    """Too few ports are free in the range from which they are chosen, or the range is not one."""


def free_ports(count: int, rng: random.Random, *, host: str) -> list[int]:
    """Return different ports that are free now, and that this process was not given before.

    They are not reserved: another program may take one.

    Raises:
        NoFreePortError: Fewer ports were found after ``_TRIES_MAX`` tries, or ``DLOG_PORTS`` is no range.
    """
    first, stop = port_range()
    if stop - first - len(_returned) < (stop - first) // 2:
        _returned.clear()  # servers that got the first ones have begun, or ended
    found: list[int] = []
    for _ in range(_TRIES_MAX):
        if len(found) == count:
            _returned.update(found)
            return found
        port = rng.randrange(first, stop)
        if port not in found and port not in _returned and _is_free(host, port):
            found.append(port)
    raise NoFreePortError(
        f"found {len(found)} of {count} free ports on {host} from {first} to {stop - 1} in {_TRIES_MAX}"
        f" tries; end programs that listen on these ports, or set {VARIABLE} to another range"
    )


def port_range() -> tuple[int, int]:
    """The first port to choose from, and the one after the last."""
    value = os.environ.get(VARIABLE)
    if not value:
        stop = _ephemeral_first()
        return min(_FIRST, stop - 5000), stop
    matched = re.fullmatch(r"([0-9]{1,5})-([0-9]{1,5})", value)
    if matched is None or not 1024 <= int(matched[1]) <= int(matched[2]) <= 65_535:
        raise NoFreePortError(
            f"{VARIABLE}={value!r} is no range of ports such as 20000-20999 (1024 to 65535); mend or unset it"
        )
    return int(matched[1]), int(matched[2]) + 1


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
