"""What the routes of one bookie work on.

Inside: the parts of the bookie, its state as a process, work in the background. Not inside: the routes
(``routes.table``), the server.
Always: a part that a bookie has only in a cluster may be missing; its routes say so.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import trio

from bookie.cluster.access import ClusterAccess
from bookie.config.classes import BookieConfig
from bookie.disk.disk import Disk
from bookie.disk_watch import DiskWatch
from bookie.gc.collector import GarbageCollector
from bookie.healing.damage_healing import HealingStats
from bookie.healing.integrity import IntegrityStats
from bookie.http.messages import UnavailableError
from bookie.identity.cookie import Cookie
from bookie.requests.session import BookieService
from bookie.server.server import Server
from ledger.replication import AutoRecoveryStats

CLIENTS_MAX = 2  # of the cluster, each with a session of its own


@attrs.define
class RecoveryState:
    """The last recovery of a bookie that a request has begun."""

    bookies: tuple[str, ...]
    is_running: bool = True
    moved: int = 0  # ledgers
    left: list[int] = attrs.field(factory=list)  # ledgers that still name a bookie
    error: str | None = None


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
    disk: Disk | None = None
    config: BookieConfig | None = None
    server: Server | None = None
    cluster: ClusterAccess | None = None
    cookie: Cookie | None = None
    auto_recovery: AutoRecoveryStats | None = None  # in this process
    healing: HealingStats | None = None
    integrity: IntegrityStats | None = None
    tasks: trio.Nursery | None = attrs.field(default=None, init=False)  # while the server runs
    recovery: RecoveryState | None = attrs.field(default=None, init=False)
    clients: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(CLIENTS_MAX), init=False)

    @property
    def is_running(self) -> bool:
        """True while the bookie is announced and serves."""
        return self.is_ready and not self.is_stopping

    def need_cluster(self) -> ClusterAccess:
        """The cluster. Raises ``UnavailableError`` if the bookie belongs to none."""
        if self.cluster is None:
            raise UnavailableError("this bookie belongs to no cluster")
        return self.cluster

    def need_config(self) -> BookieConfig:
        """The configuration. Raises ``UnavailableError`` if the bookie was started without a file."""
        if self.config is None:
            raise UnavailableError("this bookie has no configuration file")
        return self.config

    def need_disk(self) -> Disk:
        """The disk. Raises ``UnavailableError`` if the routes do not have it."""
        if self.disk is None:
            raise UnavailableError("this bookie shows no files")
        return self.disk
