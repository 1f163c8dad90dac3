"""The routes of the HTTP port, one module for each subject, and the table of all of them.

Inside: a handler for each path. Not inside: the checks before a handler runs, the work behind it.
Entry point: ``ROUTES``.
"""

from bookie.http.routes.table import ROUTES

__all__ = ["ROUTES"]
