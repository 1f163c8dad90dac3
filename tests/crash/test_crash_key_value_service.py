"""The key-value service of the examples, killed while clients change keys: acknowledged changes are there."""

from __future__ import annotations

import http.client
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dlog.cluster.ports import free_ports
from tests.places import ROOT

pytestmark = pytest.mark.slow
CLIENTS = 4
TIMEOUT_S = 120


class Client(threading.Thread):
    """Counts one key up until the service is gone."""

    def __init__(self, port: int, key: str, known: int) -> None:
        super().__init__(name=key)
        self.port, self.key = port, key
        self.acknowledged = self.sent = known
        self.count = 0
        self.advanced = threading.Semaphore(0)

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        try:
            while True:
                self.sent += 1
                connection.request("PUT", f"/{self.key}", body=str(self.sent))
                response = connection.getresponse()
                response.read()
                assert response.status == 200
                self.acknowledged = self.sent
                self.count += 1
                self.advanced.release()
        except (OSError, http.client.HTTPException):
            pass  # the service was killed
        finally:
            connection.close()


@contextmanager
def service(directory: Path, port: int) -> Iterator[tuple[subprocess.Popen[str], int, int]]:
    """The process, and the numbers of keys and operations that it found."""
    script = ROOT / "examples" / "key_value_service.py"
    process = subprocess.Popen(
        [sys.executable, str(script), str(directory), str(port)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        assert [*words[1::2]] == ["keys,", "operations"], words
        yield process, int(words[0]), int(words[2])
    finally:
        process.kill()
        process.wait(TIMEOUT_S)
        assert process.stdout is not None
        process.stdout.close()


def get(port: int, key: str) -> str | None:
    """The value of a key; it waits until the service listens."""
    for _ in range(TIMEOUT_S * 10):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        try:
            connection.request("GET", f"/{key}")
            response = connection.getresponse()
            body = response.read().decode()
            return body if response.status == 200 else None
        except ConnectionRefusedError:
            threading.Event().wait(0.1)
        finally:
            connection.close()
    raise AssertionError("the service does not listen")


def test_a_killed_service_has_each_acknowledged_change_once(tmp_path: Path) -> None:
    rng = random.Random(1)
    [port] = free_ports(1, rng, host="127.0.0.1")
    values = {f"key{number}": 0 for number in range(CLIENTS)}
    operations = 0
    for round_number in range(3):
        with service(tmp_path, port) as (process, keys, found):
            assert keys == (CLIENTS if round_number else 0)
            assert found >= operations
            operations = found
            for key, known in values.items():
                stored = get(port, key)
                assert int(stored or 0) >= known, "an acknowledged change is lost"
                values[key] = int(stored or 0)
            # Each change is one operation: what is stored was applied once.
            assert sum(values.values()) == operations
            clients = [Client(port, key, known) for key, known in values.items()]
            for client in clients:
                client.start()
            for client in clients:
                for _ in range(rng.randint(100, 400)):
                    assert client.advanced.acquire(timeout=TIMEOUT_S)
            process.kill()
            for client in clients:
                client.join(TIMEOUT_S)
                values[client.key] = client.acknowledged
                operations += client.count
    with service(tmp_path, port) as (_, _, found):
        assert found >= operations
        stored_values = {key: int(get(port, key) or 0) for key in values}
        assert sum(stored_values.values()) == found
        assert all(stored_values[key] >= known for key, known in values.items())
