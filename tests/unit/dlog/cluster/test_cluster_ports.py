"""Free ports outside the system's range for outgoing connections."""

from __future__ import annotations

import random
import socket

import pytest

from dlog.cluster import ports


def test_ports_are_different_free_and_below_the_systems_own_range() -> None:
    found = ports.free_ports(5, random.Random(1), host="127.0.0.1")
    assert len(set(found)) == 5
    first_ephemeral = int(ports._RANGE.read_text().split()[0])
    assert all(port < first_ephemeral for port in found)


def test_a_port_in_use_is_not_returned() -> None:
    (port,) = ports.free_ports(1, random.Random(2), host="127.0.0.1")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))
        listener.listen()
        assert ports.free_ports(1, random.Random(2), host="127.0.0.1") != [port]


def test_too_many_ports_is_an_error() -> None:
    with pytest.raises(ports.NoFreePortError, match="of 2000"):
        ports.free_ports(2000, random.Random(3), host="127.0.0.1")
