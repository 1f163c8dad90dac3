"""The HTTP server for operators: a port, and requests and replies of the framework as values of ours.

Inside: the server, bodies of requests. Not inside: the checks of a request (``guard``), the routes
(``table``), the work behind them.
Always: off unless ``httpServerEnabled``. Each request passes the guard first. A request body is bounded.

Source: HttpServer.java, VertxHttpServer.java; docs/http.md.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import trio

from bookie.auth.reloading import Secrets
from bookie.config.admin_config import AdminConfig
from bookie.errors import BookieConfigError, ListenError
from bookie.http.admin import Admin
from bookie.http.connections import AdminConnections
from bookie.http.guard import AdminGuard, peer_of
from bookie.http.messages import BODY_BYTES_MAX, AdminRequest, Method
from bookie.http.metrics import auto_recovery_metrics_text
from bookie.http.router import OpenRoutes, Route, Router
from bookie.http.routes.health import METRICS_TYPE
from bookie.http.routes.table import ROUTES
from bookie.http.secrets import AdminSecrets
from ledger.replication import AutoRecoveryStats

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

_IDLE_S = 5  # between requests, within a TLS handshake, and until the first request is whole
_BACKLOG = 32


def make_application(router: Router) -> Starlette:
    """The routes as an ASGI application."""
    from starlette.applications import Starlette
    from starlette.responses import Response
    from starlette.routing import Route

    async def handle(request: Request) -> Response:
        # HEAD is GET whose body the server leaves out.
        method = Method("GET" if request.method == "HEAD" else request.method)
        query = {name: request.query_params.getlist(name)[0] for name in request.query_params}
        content = b"" if method is Method.GET else await _content_of(request)
        reply = await router.answer(
            AdminRequest(method, request.url.path, query, content, peer_of(request.scope))
        )
        return Response(reply.body, reply.status, dict(reply.headers), media_type=reply.media_type)

    return Starlette(routes=[Route("/{path:path}", handle, methods=[method.value for method in Method])])


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
        BookieConfigError: The libraries are not installed, or a file of the token or of TLS cannot be used.
        ListenError: The port is taken or is not one of this machine's.
    """
    _check_libraries()
    files = AdminSecrets(config)
    await (secrets or Secrets(None, None)).include(files)
    async with no_more_routes(config) if open_routes is None else open_routes(config) as more:
        routes = (*ROUTES, *more)
        application = make_application(Router(routes, admin))
        open_paths = [route.path for route in routes if route.is_public]
        await _serve_guarded(application, config, files, open_paths, admin, task_status)


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
    _check_libraries()
    from starlette.applications import Starlette
    from starlette.responses import Response
    from starlette.routing import Route

    async def show_metrics(request: Request) -> Response:
        return Response(auto_recovery_metrics_text(stats), media_type=METRICS_TYPE)

    async def heartbeat(request: Request) -> Response:
        return Response("OK\n", media_type="text/plain")

    application = Starlette(routes=[Route("/metrics", show_metrics), Route("/heartbeat", heartbeat)])
    config = AdminConfig(host=host, port=port)
    await _serve_guarded(application, config, AdminSecrets(config), (), None, task_status)


def _check_libraries() -> None:
    try:
        import hypercorn  # noqa: F401
        import starlette  # noqa: F401
    except ImportError as exc:
        raise BookieConfigError(
            f"the HTTP server (httpServerEnabled=true) needs libraries that are not installed ({exc.name}):"
            " pip install 'dlog-streams[admin]'"
        ) from exc


async def _serve_guarded(
    open_application: Starlette,
    config: AdminConfig,
    files: AdminSecrets,
    open_paths: Collection[str],
    admin: Admin | None,
    task_status: trio.TaskStatus[str],
) -> None:
    from hypercorn.config import Config
    from hypercorn.trio.tcp_server import TCPServer
    from hypercorn.trio.worker_context import WorkerContext
    from hypercorn.typing import ConnectionState
    from hypercorn.utils import wrap_app

    settings = Config()
    settings.accesslog = None
    settings.errorlog = None
    settings.keep_alive_timeout = _IDLE_S
    settings.ssl_handshake_timeout = _IDLE_S
    guarded = AdminGuard(
        open_application,
        secrets=files,
        hosts=(config.host, *config.allowed_hosts),
        has_certificates=config.tls is not None and config.tls.trust_store is not None,
        open_paths=open_paths,
    )
    application = wrap_app(guarded, settings.wsgi_max_body_size, "asgi")  # type: ignore[arg-type]

    async def handle(stream: trio.SocketStream) -> None:
        """One connection. hypercorn's own server would accept any number of them."""
        wrapped: Any = stream
        context = files.context
        if context is not None:
            context.set_alpn_protocols(settings.alpn_protocols)
            wrapped = trio.SSLStream(stream, context, server_side=True, https_compatible=True)
        await TCPServer(application, settings, WorkerContext(None), ConnectionState({}), wrapped).run()

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


async def _content_of(request: Request) -> bytes:
    """The body; of a longer one than ``BODY_BYTES_MAX`` only so much that it is seen to be too long."""
    content, size_bytes = b"", 0
    async for chunk in request.stream():
        size_bytes += len(chunk)
        if size_bytes <= BODY_BYTES_MAX:
            content += chunk
        elif size_bytes > 16 * BODY_BYTES_MAX:
            break
    return content if size_bytes <= BODY_BYTES_MAX else bytes(BODY_BYTES_MAX + 1)
