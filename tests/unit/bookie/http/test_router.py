"""From a request to its reply, without a socket: paths, methods, errors."""

# covers: bookie/http/messages.py
# covers: bookie/http/routes/table.py

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from bookie.http.admin import Admin
from bookie.http.messages import (
    BODY_BYTES_MAX,
    AdminReply,
    AdminRequest,
    BadRequestError,
    Method,
    NotFoundError,
    json_reply,
    text_reply,
)
from bookie.http.router import Route, Router, get
from bookie.http.routes.table import ROUTES
from ledger.errors import NoSuchLedgerError
from ledger.metadata_store.errors import ConnectionLostError

NOTHING: Any = None


def admin_without_cluster() -> Admin:
    return Admin("me:3181", NOTHING, NOTHING, NOTHING, wall_ms=lambda: 0)


async def answer(*routes: Route, method: str = "GET", path: str = "/x", **more: Any) -> AdminReply:
    router = Router(routes, admin_without_cluster(), request_s=5.0)
    return await router.answer(AdminRequest(Method(method), path, **more))


def failing(error: BaseException) -> Route:
    async def fail(admin: Admin, request: AdminRequest) -> AdminReply:
        raise error

    return get("/x", fail)


async def echo(admin: Admin, request: AdminRequest) -> AdminReply:
    return json_reply(request.body)


async def test_an_unknown_path_and_an_unknown_method_are_told_apart() -> None:
    route = Route("/x", {Method.GET: echo, Method.PUT: echo})
    assert (await answer(route)).status == 200
    assert (await answer(route, path="/y")).status == 404
    refused = await answer(route, method="DELETE")
    assert (refused.status, dict(refused.headers)) == (405, {"Allow": "GET, PUT"})


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (BadRequestError("no"), 400),
        (NotFoundError("no"), 404),
        (NoSuchLedgerError(7), 404),
        (ConnectionLostError("/"), 503),
        (ExceptionGroup("tasks", [ConnectionLostError("/")]), 503),
        (ZeroDivisionError(), 500),
    ],
)
async def test_an_error_of_a_route_is_a_status_with_text(
    error: BaseException, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        reply = await answer(failing(error))
    assert (reply.status, reply.body[-1:]) == (status, b"\n")
    assert bool(caplog.records) is isinstance(error, ZeroDivisionError)  # only a bug is logged


async def test_a_request_that_takes_too_long_is_cancelled(autojump_clock: MockClock) -> None:
    async def wait(admin: Admin, request: AdminRequest) -> AdminReply:
        await trio.sleep_forever()

    assert (await answer(get("/x", wait))).status == 503


@pytest.mark.parametrize("content", [b"[1]", b"{", b"[" * 60_000, b" " * (BODY_BYTES_MAX + 1)])
async def test_a_body_that_is_no_object_is_refused(content: bytes) -> None:
    assert (await answer(Route("/x", {Method.PUT: echo}), method="PUT", content=content)).status == 400


@pytest.mark.parametrize("text", ["x", "1.5", "", "-", "\u0661", "9" * 30, str(2**63), f"-{2**63}"])
def test_a_number_of_the_query_is_a_whole_number(text: str) -> None:
    with pytest.raises(BadRequestError, match="ledger_id"):
        AdminRequest(Method.GET, "/x", {"ledger_id": text}).number("ledger_id")


def test_a_text_that_is_no_unicode_is_a_reply_nevertheless() -> None:
    assert text_reply("\ud800").body == b"\\ud800"


async def test_a_bookie_without_a_cluster_says_so() -> None:
    for route in ROUTES:
        if "/ledger/" in route.path or ("/autorecovery/" in route.path and Method.GET in route.handlers):
            for method in route.handlers:
                reply = await answer(
                    *ROUTES, method=method.value, path=route.path, query={"ledger_id": "1", "enabled": "true"}
                )
                assert reply.status in (400, 404, 503), route.path
                assert reply.status == 503 or route.path.endswith(("/bookie", "_delay")), route.path
