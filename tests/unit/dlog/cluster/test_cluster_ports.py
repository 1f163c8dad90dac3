"""Free ports outside the system's range for outgoing connections."""

# covers: dlog/cluster/ports.py

from __future__ import annotations

import random
import socket

import pytest

from dlog.cluster import ports


def test_ports_are_different_free_and_below_the_systems_own_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ports.VARIABLE, raising=False)
    found = ports.free_ports(5, random.Random(1), host="127.0.0.1")
    assert len(set(found)) == 5
    first_ephemeral = int(ports._RANGE.read_text().split()[0])
    assert all(port < first_ephemeral for port in found)


def test_a_port_in_use_is_not_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = ports.free_ports(1, random.Random(2), host="127.0.0.1")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))
        listener.listen()
        monkeypatch.setattr(ports, "_returned", set[int]())
        assert ports.free_ports(1, random.Random(2), host="127.0.0.1") != [port]


def test_a_port_is_returned_once_although_its_server_does_not_listen_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ports.VARIABLE, "21000-21099")
    monkeypatch.setattr(ports, "_returned", set[int]())
    found = [ports.free_ports(1, random.Random(1), host="127.0.0.1")[0] for _ in range(20)]
    assert len(set(found)) == 20


def test_ports_are_returned_again_once_half_of_them_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ports.VARIABLE, "21000-21019")
    monkeypatch.setattr(ports, "_returned", set[int]())
    rng = random.Random(2)
    assert all(ports.free_ports(2, rng, host="127.0.0.1") for _ in range(50))


def test_ports_come_from_the_range_of_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ports.VARIABLE, "21000-21009")
    found = ports.free_ports(5, random.Random(4), host="127.0.0.1")
    assert all(21000 <= port <= 21009 for port in found)
    with pytest.raises(ports.NoFreePortError, match="from 21000 to 21009"):
        ports.free_ports(11, random.Random(5), host="127.0.0.1")


@pytest.mark.parametrize("value", ["20000", "20000-", "0-5", "3000-2000", "60000-70000", "a-b", "²000-3000"])
def test_a_range_that_is_none_is_an_error(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(ports.VARIABLE, value)
    with pytest.raises(ports.NoFreePortError, match=ports.VARIABLE):
        ports.free_ports(1, random.Random(6), host="127.0.0.1")


def test_too_many_ports_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ports.VARIABLE, "21000-21999")
    with pytest.raises(ports.NoFreePortError, match="of 2000"):
        ports.free_ports(2000, random.Random(3), host="127.0.0.1")
