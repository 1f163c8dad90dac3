"""All routes of the HTTP port. A new route is a handler in the file of its subject, named in that file."""

from __future__ import annotations

from bookie.http import gc_routes, health_routes
from bookie.http.router import Route

ROUTES: tuple[Route, ...] = (
    *health_routes.ROUTES,
    *gc_routes.ROUTES,
)
