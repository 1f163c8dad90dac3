"""All routes of the HTTP port. A new route is a handler in the file of its subject, named in that file."""

from __future__ import annotations

from bookie.http.router import Route
from bookie.http.routes import cluster, config, disks, gc, health, ledgers, recovery

ROUTES: tuple[Route, ...] = (
    *health.ROUTES,
    *config.ROUTES,
    *gc.ROUTES,
    *disks.ROUTES,
    *cluster.ROUTES,
    *ledgers.ROUTES,
    *recovery.ROUTES,
)
