"""From a request to its reply: the route, the method, the audit log, errors as text.

Inside: the look-up, what every route has in common. Not inside: the routes (``table``), sockets (``server``),
the rights of clients (``guard``).
Always: a request that may change something is in the audit log before it is done, or is not done. A path
without a route is 404, a method without a handler 405. No error of a route ends the bookie.

Source: HttpRouter.java.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

import attrs
import trio

from bookie.config.admin_config import AdminConfig
from bookie.errors import BookieServerError
from bookie.http.admin import Admin
from bookie.http.messages import AdminReply, AdminRequest, Method, RequestRefusedError, text_reply
from ledger.errors import AuditError, LedgerError, MetadataUnavailableError, NoSuchLedgerError
from ledger.metadata_store.errors import ConnectionLostError, MetadataError, SessionExpiredError
from ledger.runtime.audit import audited_async
from ledger.runtime.tasks.failure_domain import report_contained
from ledger.runtime.tasks.task_errors import only_error

Handler = Callable[[Admin, AdminRequest], Awaitable[AdminReply]]

REQUEST_S = 50.0  # shorter than the life of a connection, so that the client learns about it


@attrs.frozen
class Route:
    """One path with its methods. A handler other than that of GET is audited."""

    path: str
    handlers: Mapping[Method, Handler]
    is_public: bool = False  # GET needs no token: the reply is the same for everyone and reveals nothing


OpenRoutes = Callable[[AdminConfig], AbstractAsyncContextManager[Sequence[Route]]]
"""Opens routes of another part of the program for as long as the server runs."""


def get(path: str, handler: Handler) -> Route:
    """A route that only shows something."""
    return Route(path, {Method.GET: handler})


def put(path: str, handler: Handler) -> Route:
    """A route that only changes something."""
    return Route(path, {Method.PUT: handler})


NO_SUCH_PATH = text_reply("there is no such path\n", 404)


def method_refused(path: str, methods: Iterable[Method]) -> AdminReply:
    """405: the path takes other methods."""
    allowed = ", ".join(method.value for method in methods)
    return attrs.evolve(text_reply(f"{path} takes {allowed}\n", 405), headers={"Allow": allowed})


class Router:
    """The routes of one bookie."""

    def __init__(self, routes: Iterable[Route], admin: Admin, *, request_s: float = REQUEST_S) -> None:
        """``request_s``: a request that takes longer is cancelled."""
        self._admin, self._request_s = admin, request_s
        self._routes: dict[str, Route] = {}
        for route in routes:
            # True because the paths are constants: ``routes.table.ROUTES`` and ``dlog.page``'s.
            assert route.path not in self._routes, f"two routes for {route.path}"
            self._routes[route.path] = route

    def __repr__(self) -> str:
        return f"<Router of {self._admin.bookie_id}, {len(self._routes)} paths>"

    async def answer(self, request: AdminRequest) -> AdminReply:
        """The reply to a request. A cancelled request may have been done in part."""
        route = self._routes.get(request.path)
        if route is None:
            return NO_SUCH_PATH
        handler = route.handlers.get(request.method)
        if handler is None:
            return method_refused(request.path, route.handlers)
        try:
            with trio.fail_after(self._request_s):
                if request.method is Method.GET:
                    return await handler(self._admin, request)
                return await self._change(handler, request)
        except trio.TooSlowError:
            return text_reply(f"not done within {self._request_s:g} s\n", 503)
        except Exception as exc:
            return _refusal(request, only_error(exc) if isinstance(exc, BaseExceptionGroup) else exc)

    async def _change(self, handler: Handler, request: AdminRequest) -> AdminReply:
        target = self._admin.bookie_id
        if request.query:
            target += f" {json.dumps(dict(request.query))}"
        target += f" {json.dumps(request.body)}"
        act = f"{request.method.value} {request.path}"
        async with audited_async(act, target, identity=request.identity):
            return await handler(self._admin, request)


def _refusal(request: AdminRequest, error: BaseException) -> AdminReply:
    match error:
        case RequestRefusedError():
            status = error.status
        case NoSuchLedgerError():
            status = 404
        case AuditError() | ConnectionLostError() | SessionExpiredError() | MetadataUnavailableError():
            status = 503
        case BookieServerError() | LedgerError() | MetadataError() | OSError():
            status = 500
        case Exception():
            report_contained("HTTP request", error)
            return text_reply("the request failed; the bookie's log has the reason\n", 500)
        case _:
            raise error
    return text_reply(f"{error}\n", status)
