"""Strangers at the HTTP port: no token, foreign Host, foreign Origin."""

# covers: bookie/http/guard.py

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from bookie.config.admin_config import AdminConfig
from bookie.http import serve_admin
from bookie.http.guard import OPEN_PATHS
from tests.unit.bookie.http.test_admin import AUTHORIZED, HOST, TOKEN, send_request, serving

CLOSED = [
    ("GET", "/api/v1/bookie/gc"),
    ("GET", "/api/v1/bookie/gc_details"),
    ("GET", "/api/v1/bookie/gc/suspend_compaction"),
    ("GET", "/api/v1/bookie/state"),
    ("GET", "/api/v1/bookie/state/readonly"),
    ("GET", "/api/v1/bookie/info"),
    ("GET", "/api/v1/bookie/nothing"),
    ("PUT", "/api/v1/bookie/gc"),
    ("PUT", "/api/v1/bookie/gc/suspend_compaction"),
    ("PUT", "/api/v1/bookie/gc/resume_compaction"),
    ("PUT", "/api/v1/bookie/state/readonly"),
    ("POST", "/heartbeat"),
]
BODY = b'{"readOnly": true, "suspendMajor": true, "resumeMajor": true}'


@pytest.mark.slow
async def test_a_stranger_changes_and_learns_nothing(tmp_path: Path) -> None:
    wrong = [
        HOST,
        f"{HOST}Authorization: Bearer {TOKEN.decode()[:-1]}\r\n",
        f"{HOST}Authorization: Bearer\r\n",
        f"{HOST}Authorization: Basic {TOKEN.decode()}\r\n",
        f"{HOST}Authorization: Bearer x\r\nAuthorization: Bearer {TOKEN.decode()}\r\n",
    ]
    async with serving(tmp_path) as (admin, url):
        for method, path in CLOSED:
            for headers in wrong:
                body = BODY if method == "PUT" else b""
                status, reply = await send_request(url, method, path, body, headers=headers)
                assert (status, reply[:9]) == (401, b"the token"), (method, path, headers)
        assert admin.service.rights.writable
        assert admin.garbage.suspended() == (False, False)
        for path in OPEN_PATHS:
            assert (await send_request(url, "GET", path, headers=HOST))[0] == 200


async def test_without_a_token_in_the_configuration_only_the_open_paths_answer(tmp_path: Path) -> None:
    async with serving(tmp_path) as (admin, _), trio.open_nursery() as nursery:
        url = await nursery.start(serve_admin, admin, AdminConfig(port=0))
        status, reply = await send_request(url, "GET", "/api/v1/bookie/info")
        assert (status, b"httpServerTokenPath" in reply) == (401, True)
        assert (await send_request(url, "GET", "/heartbeat"))[0] == 200
        nursery.cancel_scope.cancel()


@pytest.mark.slow
@pytest.mark.parametrize(
    "host", ["attacker.example", "attacker.example:8080", "localhost.attacker.example", ""]
)
async def test_a_name_that_a_page_points_here_is_refused(tmp_path: Path, host: str) -> None:
    async with serving(tmp_path) as (_, url):
        headers = AUTHORIZED.replace("localhost:8080", host)
        assert (await send_request(url, "GET", "/heartbeat", headers=headers))[0] in (400, 421)
        assert (await send_request(url, "PUT", "/api/v1/bookie/gc", headers=headers))[0] in (400, 421)


async def test_names_of_this_server_are_accepted(tmp_path: Path) -> None:
    async with serving(tmp_path) as (admin, _), trio.open_nursery() as nursery:
        url = await nursery.start(
            serve_admin, admin, AdminConfig(port=0, allowed_hosts=("Bookie-1.example",))
        )
        for host in ("127.0.0.1", "127.0.0.1:8080", "[::1]:8080", "LOCALHOST", "bookie-1.example:8080"):
            headers = f"Host: {host}\r\n"
            assert (await send_request(url, "GET", "/heartbeat", headers=headers))[0] == 200, host
        nursery.cancel_scope.cancel()


async def test_a_page_of_another_site_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as (admin, url):
        for origin in ("https://attacker.example", "null", "http://localhost:8081"):
            headers = f"{AUTHORIZED}Origin: {origin}\r\n"
            assert (await send_request(url, "PUT", "/api/v1/bookie/gc", headers=headers))[0] == 403
        own = f"{AUTHORIZED}Origin: http://localhost:8080\r\n"
        assert (await send_request(url, "GET", "/api/v1/bookie/gc", headers=own))[0] == 200
        assert admin.garbage.state.rounds == 0
