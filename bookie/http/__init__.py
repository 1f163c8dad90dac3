"""HTTP for operators: Apache's paths, methods and JSON, and metrics under Apache's names.

Inside: the checks of a request, the table of routes, the routes by subject, metrics. Not inside: the work
behind them (``bookie.gc``, ``disk_watch``, ``bookie.healing``, ``bookie.cluster``, ``ledger.replication``).
Entry point: ``serve_admin``. A route is one entry of ``routes.table.ROUTES``.
"""

from bookie.http.admin import Admin
from bookie.http.messages import AdminReply, AdminRequest
from bookie.http.router import OpenRoutes, Route, get
from bookie.http.server import serve_admin, serve_auto_recovery, serve_metrics

__all__ = [
    "Admin",
    "AdminReply",
    "AdminRequest",
    "OpenRoutes",
    "Route",
    "get",
    "serve_admin",
    "serve_auto_recovery",
    "serve_metrics",
]
