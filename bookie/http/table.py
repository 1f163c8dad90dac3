"""All routes of the HTTP port. A new route is a handler in the file of its subject, named in that file."""

from __future__ import annotations

from bookie.http import (
    cluster_routes,
    config_routes,
    disk_routes,
    gc_routes,
    health_routes,
    ledger_routes,
    recovery_routes,
)
from bookie.http.router import Route

ROUTES: tuple[Route, ...] = (
    *health_routes.ROUTES,
    *config_routes.ROUTES,
    *gc_routes.ROUTES,
    *disk_routes.ROUTES,
    *cluster_routes.ROUTES,
    *ledger_routes.ROUTES,
    *recovery_routes.ROUTES,
)
