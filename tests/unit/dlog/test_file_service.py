"""The example that keeps files: over HTTP, with a client that leaves, and after kill -9."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

import dlog
from dlog.cluster.ports import free_ports
from tests.places import ROOT

EXAMPLE = ROOT / "examples" / "file_service.py"
TIMEOUT_S = 120
CONTENT = bytes(range(256)) * 4_000
pytestmark = pytest.mark.slow


def example() -> Any:
    spec = importlib.util.spec_from_file_location("file_service", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_files_are_put_got_in_ranges_listed_and_deleted(tmp_path: Path) -> None:
    with trio.fail_after(TIMEOUT_S):
        async with dlog.open_namespace(tmp_path.as_uri()) as namespace:
            transport = httpx.ASGITransport(app=example().application(namespace))
            async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
                kind = {"content-type": "image/png"}
                put = await client.put("/a/b.png", content=CONTENT, headers=kind)
                assert put.status_code == 201
                assert (await client.put("/a/b.png", content=b"x")).status_code == 409
                assert (await client.put("/a//b", content=b"x")).status_code == 400
                got = await client.get("/a/b.png")
                assert (got.content, got.headers["content-type"]) == (CONTENT, "image/png")
                assert got.headers["etag"] == put.headers["etag"]
                part = await client.get("/a/b.png", headers={"range": "bytes=300000-300009"})
                assert (part.status_code, part.content) == (206, CONTENT[300_000:300_010])
                assert part.headers["content-range"] == f"bytes 300000-300009/{len(CONTENT)}"
                rest = await client.get("/a/b.png", headers={"range": "bytes=1023990-"})
                assert (rest.status_code, rest.content) == (206, CONTENT[1_023_990:])
                beyond = await client.get("/a/b.png", headers={"range": "bytes=1024000-"})
                assert beyond.status_code == 416
                assert (await client.get("/", params={"prefix": "a/"})).json() == [
                    {"name": "a/b.png", "bytes": len(CONTENT)}
                ]
                assert (await client.delete("/a/b.png")).status_code == 204
                assert (await client.get("/a/b.png")).status_code == 404


@contextlib.contextmanager
def service(directory: Path, port: int) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(
        [sys.executable, str(EXAMPLE), str(directory), str(port)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline()
    finally:
        process.kill()
        process.wait(TIMEOUT_S)
        assert process.stdout is not None
        process.stdout.close()


def connected(port: int) -> socket.socket:
    """A connection; it waits until the service listens."""
    for _ in range(TIMEOUT_S * 10):
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        threading.Event().wait(0.1)
    raise AssertionError("the service does not listen")


def begin_put(connection: socket.socket, name: str, size: int) -> None:
    head = f"PUT /{name} HTTP/1.1\r\nHost: service\r\nContent-Length: {size}\r\n\r\n"
    connection.sendall(head.encode() + random.Random(1).randbytes(size // 2))


def test_a_service_that_is_killed_during_an_upload_has_the_whole_files_and_no_other(tmp_path: Path) -> None:
    [port] = free_ports(1, random.Random(1), host="127.0.0.1")
    with service(tmp_path, port) as (process, line):
        assert line == "0 files, 0 interrupted\n"
        with connected(port) as half, connected(port) as whole:
            begin_put(half, "half", 8_000_000)
            client = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
            client.sock = whole
            client.request("PUT", "/whole", body=CONTENT)
            assert client.getresponse().status == 201
            process.kill()
            process.wait(TIMEOUT_S)
    with service(tmp_path, port) as (_, line):
        assert line.startswith("1 files, ")
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        client.sock = connected(port)
        client.request("GET", "/")
        assert json.loads(client.getresponse().read()) == [{"name": "whole", "bytes": len(CONTENT)}]
        client.request("GET", "/whole")
        assert client.getresponse().read() == CONTENT
        client.close()
