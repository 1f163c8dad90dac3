"""The configuration that the bookie was started with.

Source: ConfigurationService.java.
"""

from __future__ import annotations

from bookie.http.admin import Admin
from bookie.http.messages import AdminReply, AdminRequest, BadRequestError, Method, json_reply
from bookie.http.router import Route


async def show(admin: Admin, request: AdminRequest) -> AdminReply:
    """``GET server_config``: the keys of the file as text; secrets are hidden, unlike Apache's."""
    return json_reply(dict(admin.need_config().shown))


async def change(admin: Admin, request: AdminRequest) -> AdminReply:
    """``PUT server_config``: refused. Apache's changes a value that most parts have read already."""
    raise BadRequestError(
        "a running bookie keeps its configuration: change the file and restart the bookie. SIGHUP reads"
        " certificates and secrets again"
    )


ROUTES = (Route("/api/v1/config/server_config", {Method.GET: show, Method.PUT: change}),)
