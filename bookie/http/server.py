"""The HTTP server for operators: a port, and its parts put together.

Inside: the socket, TLS, the end of connections when certificates change. Not inside: connections and their
errors (``connections``), HTTP (``exchange``), the checks of a request (``guard``), the routes (``table``).
Always: off unless ``httpServerEnabled``. Each request passes the guard first.

Source: HttpServer.java, VertxHttpServer.java; docs/http.md.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from functools import partial

import trio

from bookie.auth.reloading import Secrets
from bookie.config.admin_config import AdminConfig
from bookie.errors import BookieConfigError, ListenError
from bookie.http.admin import Admin
from bookie.http.connections import AdminConnections, peer_of
from bookie.http.guard import AdminGuard
from bookie.http.messages import AdminReply, AdminRequest, Method, text_reply
from bookie.http.metrics import auto_recovery_metrics_text
from bookie.http.router import NO_SUCH_PATH, OpenRoutes, Route, Router, method_refused
from bookie.http.routes.health import METRICS_TYPE
from bookie.http.routes.table import ROUTES
from bookie.http.secrets import AdminSecrets
from bookie.requests.turns import Turns
from bookie.server.handshake import shake_hands
from ledger.replication import AutoRecoveryStats

_IDLE_S = 5  # between requests, within a TLS handshake, and until the first request is whole
_BACKLOG = 32


@asynccontextmanager
async def no_more_routes(config: AdminConfig) -> AsyncIterator[Sequence[Route]]:
    """The routes of the table are all."""
    yield ()


async def serve_admin(
    admin: Admin,
    config: AdminConfig,
    secrets: Secrets | None = None,
    *,
    open_routes: OpenRoutes | None = None,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; ``task_status.started`` gets the address as a URL.

    Args:
        secrets: Reads the files of the token and of TLS again with all others. A changed certificate closes
            open connections.
        open_routes: More routes than those of the table.

    Raises:
        BookieConfigError: The library is not installed, or a file of the token or of TLS cannot be used.
        ListenError: The port is taken or is not one of this machine's.
    """
    _check_libraries()
    files = AdminSecrets(config)
    await (secrets or Secrets(None, None)).include(files)
    async with no_more_routes(config) if open_routes is None else open_routes(config) as more:
        routes = (*ROUTES, *more)
        open_paths = [route.path for route in routes if route.is_public]
        await _serve_guarded(Router(routes, admin).answer, config, files, open_paths, admin, task_status)


async def serve_auto_recovery(
    stats: AutoRecoveryStats,
    host: str,
    port: int,
    *,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve ``/metrics`` and ``/heartbeat`` of auto-recovery in a process that is no bookie, until cancelled.

    ``task_status.started`` gets the address as a URL. Raises as ``serve_admin``.
    """
    await serve_metrics(partial(auto_recovery_metrics_text, stats), host, port, task_status=task_status)


async def serve_metrics(
    text: Callable[[], str],
    host: str,
    port: int,
    *,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve ``text()`` as ``/metrics``, and ``/heartbeat``, to all that reach the port, until cancelled.

    ``task_status.started`` gets the address as a URL. Raises as ``serve_admin``.
    """
    _check_libraries()

    async def answer(request: AdminRequest) -> AdminReply:
        if request.path not in ("/metrics", "/heartbeat"):
            return NO_SUCH_PATH
        if request.method is not Method.GET:
            return method_refused(request.path, (Method.GET,))
        if request.path == "/heartbeat":
            return text_reply("OK\n")
        return AdminReply(200, text().encode(), METRICS_TYPE)

    config = AdminConfig(host=host, port=port)
    await _serve_guarded(answer, config, AdminSecrets(config), (), None, task_status)


def _check_libraries() -> None:
    try:
        import h11  # noqa: F401
    except ImportError as exc:
        raise BookieConfigError(
            f"the HTTP server (httpServerEnabled=true) needs a library that is not installed ({exc.name}):"
            " pip install '.[admin]' in a checkout of DLog"
        ) from exc


async def _serve_guarded(
    answer: Callable[[AdminRequest], Awaitable[AdminReply]],
    config: AdminConfig,
    files: AdminSecrets,
    open_paths: Collection[str],
    admin: Admin | None,
    task_status: trio.TaskStatus[str],
) -> None:
    from bookie.http.exchange import STEP_UNITS, HttpConnection  # here, because it needs the library

    guard = AdminGuard(
        secrets=files,
        hosts=(config.host, *config.allowed_hosts),
        has_certificates=config.tls is not None and config.tls.trust_store is not None,
        open_paths=open_paths,
    )
    turns = Turns(STEP_UNITS)

    async def handle(stream: trio.SocketStream) -> None:
        inner: trio.abc.Stream = stream
        context = files.context
        if context is not None:
            with trio.move_on_after(_IDLE_S) as handshake:
                inner = await shake_hands(stream, context, turns, https_compatible=True)
            if handshake.cancelled_caught:
                return
        scheme = "http" if context is None else "https"
        peer = peer_of(stream)
        await HttpConnection(
            inner, guard.admit, answer, turns, peer=peer, scheme=scheme, idle_s=_IDLE_S
        ).serve()

    bound = _bound(config)
    host, port = bound.getsockname()[:2]
    connections = AdminConnections(handle)
    async with trio.open_nursery() as nursery:
        if admin is not None:
            admin.tasks = nursery
        nursery.start_soon(connections.serve, trio.SocketListener(bound))
        task_status.started(f"{'http' if files.context is None else 'https'}://{host}:{port}")
        while True:
            await files.context_changed.wait()
            connections.close_all()


def _bound(config: AdminConfig) -> trio.socket.SocketType:
    """A socket that listens."""
    bound = socket.socket()
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((config.host, config.port))
        bound.listen(_BACKLOG)
    except OSError as exc:
        bound.close()
        raise ListenError(
            f"the HTTP server cannot listen at {config.host} port {config.port}: {exc.strerror or exc}. Stop"
            " the program that listens there, or name another port (httpServerPort)"
        ) from exc
    return trio.socket.from_stdlib_socket(bound)
