"""HTTP for operators: garbage collection, read-only by hand, state, space, metrics. Paths and bodies are
Apache's.

Inside: the routes and the server. Not inside: the work behind the routes (``gc``, ``disk_watch``,
``storage``).
Always: off unless ``httpServerEnabled``. Each request passes ``admin_guard`` first. A request body is
bounded. No request starts work that the bookie would not also do by itself.

Apache's paths that need a client of the cluster (lists of ledgers and bookies, recovery) are not offered:
`dlog` has commands for them.

Source: HttpRouter.java, TriggerGCService.java, SuspendCompactionService.java, ResumeCompactionService.java,
GCDetailsService.java, BookieStateService.java, BookieInfoService.java; docs/metadata.md 17.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import attrs
import trio

from bookie.admin_connections import AdminConnections
from bookie.admin_guard import AdminGuard, peer_of
from bookie.admin_secrets import AdminSecrets
from bookie.auth.reloading import Secrets
from bookie.config.admin_config import AdminConfig
from bookie.disk_watch import DiskWatch
from bookie.errors import BookieConfigError, ListenError, StateError
from bookie.gc.collector import GarbageCollector
from bookie.gc.compaction_rules import CompactionLevel
from bookie.requests.service import BookieService
from ledger.audit import audited_async
from ledger.errors import AuditError

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

_BODY_BYTES_MAX = 1 << 16
_IDLE_S = 5  # between requests, within a TLS handshake, and until the first request is whole
_BACKLOG = 32
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class BadRequestError(Exception):
    """The request is invalid; the message becomes the body of the response."""


@attrs.define(eq=False)
class Admin:
    """The state and the operations of one bookie that the routes use."""

    bookie_id: str
    service: BookieService
    garbage: GarbageCollector
    watch: DiskWatch
    wall_ms: Callable[[], int]
    is_ready: bool = False  # announced, and serving
    is_stopping: bool = False

    # --- Routes; each returns the value of the JSON response ---

    def trigger_gc(self, body: dict[str, Any]) -> Any:
        """``PUT gc``."""
        if body:
            self.garbage.force(
                minor=_flag(body, "forceMinor") or False, major=_flag(body, "forceMajor") or False
            )
        else:
            self.garbage.force()
        return f"Triggered GC on BookieServer: {self.bookie_id}"

    def gc_status(self) -> Any:
        """``GET gc``."""
        return {"is_in_force_gc": _text(self.garbage.state.is_forced)}

    def gc_details(self) -> Any:
        """``GET gc_details``: one object for each ledger directory: Apache's fields, then our own."""
        state = self.garbage.state
        details = []
        for collector in self.garbage.collectors:
            stats = collector.stats
            details.append(
                {
                    "forceCompacting": state.is_forced,
                    "majorCompacting": stats.running is CompactionLevel.MAJOR,
                    "minorCompacting": stats.running is CompactionLevel.MINOR,
                    "lastMajorCompactionTime": self._wall(state.last_major_s),
                    "lastMinorCompactionTime": self._wall(state.last_minor_s),
                    "lastEntryLocationCompactionTime": 0,
                    "majorCompactionCounter": state.major_compactions,
                    "minorCompactionCounter": state.minor_compactions,
                    "entryLocationCompactionCounter": 0,
                    "directory": str(collector.directory),
                    "collecting": state.is_running,
                    "entryLogs": stats.logs,
                    "entryLogBytes": stats.total_bytes,
                    "liveBytes": stats.live_bytes,
                    "deletedBytes": stats.deleted_bytes,
                    "compactedBytes": stats.compacted_bytes,
                    "copiedBytes": stats.copied_bytes,
                    "quarantined": {f"{log_id:x}.log": why for log_id, why in stats.quarantined.items()},
                    "failures": stats.failures,
                    "lastFailure": stats.last_failure or state.last_failure,
                }
            )
        return details

    def suspend_compaction(self, body: dict[str, Any]) -> Any:
        """``PUT gc/suspend_compaction``."""
        minor, major = _one_flag_at_least(body, "suspendMinor", "suspendMajor")
        self.garbage.suspend(minor=minor, major=major)
        return f"Suspend majorGC {_text(major)}, minorGC {_text(minor)} on BookieServer: {self.bookie_id}"

    def resume_compaction(self, body: dict[str, Any]) -> Any:
        """``PUT gc/resume_compaction``."""
        minor, major = _one_flag_at_least(body, "resumeMinor", "resumeMajor")
        self.garbage.resume(minor=minor, major=major)
        return f"Resume majorGC {_text(major)}, minorGC {_text(minor)} on BookieServer: {self.bookie_id}"

    def compaction_status(self) -> Any:
        """``GET gc/suspend_compaction``."""
        minor, major = self.garbage.suspended()
        return {"isMajorGcSuspended": _text(major), "isMinorGcSuspended": _text(minor)}

    def state(self) -> Any:
        """``GET state``."""
        rights = self.service.rights
        return {
            "running": self.is_ready and not self.is_stopping,
            "readOnly": not rights.writable,
            "shuttingDown": self.is_stopping,
            "availableForHighPriorityWrites": rights.high_priority_writable,
        }

    def read_only(self) -> Any:
        """``GET state/readonly``."""
        return {"readOnly": not self.service.rights.writable}

    def set_read_only(self, body: dict[str, Any]) -> Any:
        """``PUT state/readonly``."""
        wanted = _flag(body, "readOnly")
        if wanted is None:
            raise BadRequestError('expected {"readOnly": true} or {"readOnly": false}')
        try:
            self.watch.set_read_only(wanted)
        except StateError as exc:
            raise BadRequestError(str(exc)) from exc
        return self.read_only()

    def info(self) -> Any:
        """``GET info``."""
        usage = self.service.storage.disk_usage()
        return {"freeSpace": usage.free_bytes, "totalSpace": usage.total_bytes}

    def metrics(self) -> str:
        """``GET /metrics``, in the text format of Prometheus, with the names of Apache's bookie."""
        return "".join(
            f"# TYPE {name} {kind}\n{name} {value}\n" for name, kind, value in self._measurements()
        )

    def _measurements(self) -> Iterator[tuple[str, str, float]]:
        state, collectors = self.garbage.state, self.garbage.collectors
        stats = [collector.stats for collector in collectors]
        writable = self.service.rights.writable
        usage = self.service.storage.disk_usage()
        yield "bookie_SERVER_STATUS", "gauge", (1 if writable else 0) if self.is_ready else -1
        yield "bookie_ledger_num_dirs", "gauge", len(collectors)
        yield "bookie_ledger_writable_dirs", "gauge", len(collectors) if writable else 0
        yield "bookie_disk_total_bytes", "gauge", usage.total_bytes
        yield "bookie_disk_free_bytes", "gauge", usage.free_bytes
        yield "bookie_gc_ACTIVE_LEDGER_TOTAL", "gauge", len(self.service.storage.ledger_ids())
        yield "bookie_gc_ACTIVE_ENTRY_LOG_TOTAL", "gauge", sum(one.logs for one in stats)
        yield "bookie_gc_ENTRY_LOG_SPACE_BYTES", "gauge", sum(one.total_bytes for one in stats)
        yield "bookie_gc_ACTIVE_ENTRY_LOG_SPACE_BYTES", "gauge", sum(one.live_bytes for one in stats)
        yield "bookie_gc_QUARANTINED_ENTRY_LOG_TOTAL", "gauge", sum(len(one.quarantined) for one in stats)
        yield "bookie_gc_DELETED_LEDGER_TOTAL", "counter", state.deleted_ledgers
        yield "bookie_gc_MAJOR_COMPACTION_TOTAL", "counter", state.major_compactions
        yield "bookie_gc_MINOR_COMPACTION_TOTAL", "counter", state.minor_compactions
        deleted = sum(one.deleted_bytes for one in stats)
        yield "bookie_gc_RECLAIMED_DELETION_SPACE_BYTES", "counter", deleted
        reclaimed = sum(max(0, one.compacted_bytes - one.copied_bytes) for one in stats)
        yield "bookie_gc_RECLAIMED_COMPACTION_SPACE_BYTES", "counter", reclaimed
        yield "bookie_gc_RECLAIM_FAILED_TO_DELETE", "counter", sum(one.failures for one in stats)

    def _wall(self, at_s: float | None) -> int:
        """A time on the loop's clock as milliseconds since 1970; 0 for never."""
        return 0 if at_s is None else self.wall_ms() - round((trio.current_time() - at_s) * 1000)

    # --- the application ---

    def application(self) -> Starlette:
        """The routes as an ASGI application."""
        from starlette.applications import Starlette
        from starlette.responses import PlainTextResponse, Response
        from starlette.routing import Route

        def reply(value: Any) -> Response:
            return Response(json.dumps(value, indent=2), media_type="application/json")

        def get(path: str, operation: Callable[[], Any]) -> Route:
            async def handle(request: Request) -> Response:
                return reply(operation())

            return Route(path, handle, methods=["GET"])

        def put(path: str, operation: Callable[[dict[str, Any]], Any]) -> Route:
            async def handle(request: Request) -> Response:
                try:
                    body = await _body_of(request)
                    target = f"{self.bookie_id} {json.dumps(body)}"
                    async with audited_async(f"PUT {path}", target, identity=peer_of(request.scope)):
                        return reply(operation(body))
                except BadRequestError as exc:
                    return PlainTextResponse(f"{exc}\n", status_code=400)
                except AuditError as exc:
                    return PlainTextResponse(f"{exc}\n", status_code=503)

            return Route(path, handle, methods=["PUT"])

        async def heartbeat(request: Request) -> Response:
            return PlainTextResponse("OK\n")

        async def ready(request: Request) -> Response:
            is_ready = self.is_ready and not self.is_stopping
            return PlainTextResponse("OK" if is_ready else "not ready", status_code=200 if is_ready else 503)

        async def metrics(request: Request) -> Response:
            return Response(self.metrics(), media_type=_METRICS_TYPE)

        base = "/api/v1/bookie"
        return Starlette(
            routes=[
                Route("/heartbeat", heartbeat, methods=["GET"]),
                Route("/metrics", metrics, methods=["GET"]),
                Route(f"{base}/is_ready", ready, methods=["GET"]),
                put(f"{base}/gc", self.trigger_gc),
                get(f"{base}/gc", self.gc_status),
                get(f"{base}/gc_details", self.gc_details),
                put(f"{base}/gc/suspend_compaction", self.suspend_compaction),
                get(f"{base}/gc/suspend_compaction", self.compaction_status),
                put(f"{base}/gc/resume_compaction", self.resume_compaction),
                get(f"{base}/state", self.state),
                put(f"{base}/state/readonly", self.set_read_only),
                get(f"{base}/state/readonly", self.read_only),
                get(f"{base}/info", self.info),
            ]
        )


async def serve_admin(
    admin: Admin,
    config: AdminConfig,
    secrets: Secrets | None = None,
    *,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; ``task_status.started`` gets the address as a URL.

    Args:
        secrets: Reads the files of the token and of TLS again with all others. A changed certificate closes
            open connections.

    Raises:
        BookieConfigError: The libraries are not installed, or a file of the token or of TLS cannot be used.
        ListenError: The port is taken or is not one of this machine's.
    """
    try:
        from hypercorn.config import Config
        from hypercorn.trio.tcp_server import TCPServer
        from hypercorn.trio.worker_context import WorkerContext
        from hypercorn.typing import ConnectionState
        from hypercorn.utils import wrap_app
    except ImportError as exc:
        raise BookieConfigError(
            f"httpServerEnabled=true needs libraries that are not installed ({exc.name}):"
            " pip install 'dlog-streams[admin]'"
        ) from exc
    files = AdminSecrets(config)
    await (secrets or Secrets(None, None)).include(files)

    settings = Config()
    settings.accesslog = None
    settings.errorlog = None
    settings.keep_alive_timeout = _IDLE_S
    settings.ssl_handshake_timeout = _IDLE_S
    guarded = AdminGuard(
        admin.application(),
        secrets=files,
        hosts=(config.host, *config.allowed_hosts),
        has_certificates=config.tls is not None and config.tls.trust_store is not None,
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
            " the program that listens there, or set httpServerPort"
        ) from exc
    return trio.socket.from_stdlib_socket(bound)


async def _body_of(request: Request) -> dict[str, Any]:
    body, size_bytes = b"", 0
    async for chunk in request.stream():
        size_bytes += len(chunk)
        if size_bytes <= _BODY_BYTES_MAX:
            body += chunk
        elif size_bytes > 16 * _BODY_BYTES_MAX:
            break
    if size_bytes > _BODY_BYTES_MAX:
        raise BadRequestError(f"the body has more than {_BODY_BYTES_MAX} bytes")
    if not body.strip():
        return {}
    try:
        value = json.loads(body)
    except ValueError as exc:
        raise BadRequestError(f"the body is not JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise BadRequestError("the body is not a JSON object")
    return value


def _flag(body: dict[str, Any], name: str) -> bool | None:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise BadRequestError(f"{name}: expected true or false, not {value!r}")
    return value


def _one_flag_at_least(body: dict[str, Any], minor: str, major: str) -> tuple[bool, bool]:
    flags = bool(_flag(body, minor)), bool(_flag(body, major))
    if not any(flags):
        raise BadRequestError(f"expected {major} or {minor}, or both, to be true")
    return flags


def _text(value: bool) -> str:
    return "true" if value else "false"
