"""What the routes of one bookie work on.

Inside: the parts of the bookie, its state as a process. Not inside: the routes (``table``), the server.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from bookie.disk_watch import DiskWatch
from bookie.gc.collector import GarbageCollector
from bookie.requests.service import BookieService


@attrs.define(eq=False)
class Admin:
    """The state of one bookie, and the parts of it that the routes use."""

    bookie_id: str
    service: BookieService
    garbage: GarbageCollector
    watch: DiskWatch
    wall_ms: Callable[[], int]
    is_ready: bool = False  # announced, and serving
    is_stopping: bool = False

    @property
    def is_running(self) -> bool:
        return self.is_ready and not self.is_stopping
