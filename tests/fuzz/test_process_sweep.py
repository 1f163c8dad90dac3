"""The sweep of a bookie's process: each kind of port, and hostile HTTP beside an honest client."""

from __future__ import annotations

import itertools
import random

import pytest

from bookie.http.routes.table import ROUTES
from tests.fuzz.bookie_process import TOKEN
from tests.fuzz.frame_sweep import batches
from tests.fuzz.frame_talk import Mode
from tests.fuzz.http_cases import HttpCase, draw_http, http2_cases, upgrade_cases
from tests.fuzz.process_sweep import run_batch

SEED = 27


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.parametrize("mode", list(Mode))
def test_a_bookie_process_lives_and_serves_an_honest_client_through_a_sweep(mode: Mode) -> None:
    batch = next(one for one in batches(SEED, 20_000) if one.mode is mode)
    report = run_batch(SEED, batch)
    assert report is None, report


@pytest.mark.slow
def test_one_seed_gives_the_same_requests_again_http_2_and_upgrades_first() -> None:
    def drawn(seed: int) -> list[HttpCase]:
        return list(itertools.islice(draw_http(random.Random(seed), TOKEN.encode()), 400))

    assert drawn(1) == drawn(1) != drawn(2)
    first = [*http2_cases(), *upgrade_cases()]
    assert {case.name for case in first} == {case.name for case in drawn(1)[: len(first)]}
    for route in ROUTES:
        assert any(route.path.encode() in case.data for case in drawn(1)), route.path


@pytest.mark.parametrize(
    ("received", "wrong"),
    [
        (b"", False),
        (b"HTTP/1.1 400 Bad Request\r\n", False),
        (b"HTTP/1.1 505 HTTP Version Not Supported\r\n", False),
        (b"HTTP/1.1 200 OK\r\n", True),
        (b"HTTP/1.1 101 Switching Protocols\r\n", True),
        (b"HTTP/1.1 500 Internal Server Error\r\n", True),
        (b"\0\0\0\x04\0\0\0\0\0", True),
    ],
)
def test_http_2_must_get_a_close_or_a_refusal(received: bytes, wrong: bool) -> None:
    assert all((case.verdict(received) is not None) is wrong for case in http2_cases())
    stranger = HttpCase("GET /api/v1/config/server_config", b"")
    assert stranger.verdict(b"HTTP/1.1 200 OK\r\n") == "status 200 without a token"
