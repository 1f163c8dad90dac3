"""The state of the bookie: is it up, is it writable, how much space has it.

Source: HeartbeatService.java, BookieStateService.java, BookieStateReadOnlyService.java,
BookieIsReadyService.java, BookieInfoService.java.
"""

from __future__ import annotations

from bookie.errors import StateError
from bookie.http.admin import Admin
from bookie.http.messages import (
    AdminReply,
    AdminRequest,
    BadRequestError,
    Method,
    UnavailableError,
    json_reply,
    text_reply,
)
from bookie.http.metrics import metrics_text
from bookie.http.router import Route, get

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


async def heartbeat(admin: Admin, request: AdminRequest) -> AdminReply:
    """``GET heartbeat``: the process answers."""
    return text_reply("OK\n")


async def metrics(admin: Admin, request: AdminRequest) -> AdminReply:
    """``GET metrics``: see ``bookie.http.metrics``."""
    return AdminReply(200, metrics_text(admin).encode(), METRICS_TYPE)


async def is_ready(admin: Admin, request: AdminRequest) -> AdminReply:
    """``GET is_ready``: 200 if the bookie is announced and serves, else 503."""
    if not admin.is_running:
        raise UnavailableError("the bookie is not ready")
    return text_reply("OK")


async def state(admin: Admin, request: AdminRequest) -> AdminReply:
    """``GET state``."""
    rights = admin.service.rights
    return json_reply(
        {
            "running": admin.is_running,
            "readOnly": not rights.writable,
            "shuttingDown": admin.is_stopping,
            "availableForHighPriorityWrites": rights.high_priority_writable,
        }
    )


async def read_only(admin: Admin, request: AdminRequest) -> AdminReply:
    """``GET state/readonly``."""
    return json_reply({"readOnly": not admin.service.rights.writable})


async def set_read_only(admin: Admin, request: AdminRequest) -> AdminReply:
    """``PUT state/readonly``: the operator's switch."""
    wanted = request.flag("readOnly")
    if wanted is None:
        raise BadRequestError('expected {"readOnly": true} or {"readOnly": false}')
    try:
        admin.watch.set_read_only(wanted)
    except StateError as exc:
        raise BadRequestError(str(exc)) from exc
    return await read_only(admin, request)


async def info(admin: Admin, request: AdminRequest) -> AdminReply:
    """``GET info``: the file systems of the ledger directories together, in bytes."""
    usage = admin.service.storage.disk_usage()
    return json_reply({"freeSpace": usage.free_bytes, "totalSpace": usage.total_bytes})


ROUTES = (
    get("/heartbeat", heartbeat),
    get("/metrics", metrics),
    get("/api/v1/bookie/is_ready", is_ready),
    get("/api/v1/bookie/state", state),
    Route("/api/v1/bookie/state/readonly", {Method.GET: read_only, Method.PUT: set_read_only}),
    get("/api/v1/bookie/info", info),
)
