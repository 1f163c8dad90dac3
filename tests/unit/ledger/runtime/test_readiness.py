"""The message to the program that waits until this one serves."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from ledger.runtime.readiness import READY, VARIABLE, notify


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_the_message_reaches_the_socket_in_the_variable(tmp_path: Path, kind: str) -> None:
    address = f"{tmp_path}/s" if kind == "path" else f"@dlog-test-{tmp_path.name}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(address.replace("@", "\0", 1))
        listener.settimeout(10)
        assert notify(READY, {VARIABLE: address})
        assert listener.recv(100) == b"READY=1"


@pytest.mark.parametrize("address", ["", "relative", "/no/such/socket", "@nobody-listens-here"])
def test_without_a_listener_nothing_happens(address: str) -> None:
    assert not notify(READY, {VARIABLE: address})
    assert not notify(READY, {})
