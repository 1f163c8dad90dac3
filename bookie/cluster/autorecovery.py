"""Auto-recovery in the process of a bookie: a candidate for the auditor, and a worker.

Inside: its session and its client, the pauses after a failure. Not inside: auto-recovery itself
(``ledger.replication``), the time at which it begins (``bookie.main``).
Always: a failure of auto-recovery is logged and auto-recovery begins again; it never ends the bookie. Its
session is its own, so that the end of one session ends no other work.

Source: EmbeddedServer.java and AutoRecoveryService.java (auto-recovery starts after the bookie);
docs/autorecovery.md.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import attrs
import trio

from bookie.cluster.access import ClusterAccess
from ledger.config import ClientConfig
from ledger.errors import LedgerError
from ledger.metadata_store.errors import MetadataError
from ledger.placement.config import PlacementConfig
from ledger.replication import AutoRecovery, AutoRecoveryStats, ReplicationConfig
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tasks.failure_domain import report_contained
from ledger.runtime.tasks.task_errors import first_error

PAUSE_MIN_S = 1.0
PAUSE_MAX_S = 60.0

log = get_logger(__name__)


@attrs.frozen(kw_only=True)
class AutoRecoveryConfig:
    """How auto-recovery works in this process."""

    replication: ReplicationConfig = attrs.field(factory=ReplicationConfig)
    placement: PlacementConfig = attrs.field(factory=PlacementConfig)
    """How a bookie is chosen in place of a lost one."""


async def run_auto_recovery(
    cluster: ClusterAccess, bookie_id: str, config: AutoRecoveryConfig, stats: AutoRecoveryStats | None = None
) -> None:
    """Audit, if elected, and restore ledgers until cancelled. Call it when the bookie is announced.

    Before that, the bookie itself would count as lost. If cancelled, its locks and its vote are deleted.

    Args:
        bookie_id: The id in the vote for the auditor.
        stats: Counts the work, also over failures.
    """
    host_name, stats = socket.getfqdn(), stats or AutoRecoveryStats()
    cluster = attrs.evolve(cluster, client_config=partial(_client_config, cluster, config.placement))

    async def run_once() -> None:
        async with cluster.open_session() as (store, client):
            await AutoRecovery(
                client.context, store, bookie_id, config.replication, host_name, stats=stats
            ).run()

    await keep_running(run_once)


async def keep_running(run_once: Callable[[], Awaitable[None]]) -> None:
    """Call the function again whenever it fails, after a pause that doubles while it fails at once."""
    pause_s = PAUSE_MIN_S
    while True:
        began = trio.current_time()
        async with _logged(pause_s):
            await run_once()
        if trio.current_time() - began >= PAUSE_MAX_S:
            pause_s = PAUSE_MIN_S
        await trio.sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_MAX_S)


@asynccontextmanager
async def _logged(pause_s: float) -> AsyncIterator[None]:
    """Log a failure of the block; a cancellation passes, also one that comes together with a failure."""
    try:
        yield
    except* (LedgerError, MetadataError) as expected:
        cause = first_error(expected)
        log.warning("auto-recovery in this bookie failed; it begins again in %g s: %s", pause_s, cause)
    except* Exception as group:
        report_contained("auto-recovery", group)


def _client_config(cluster: ClusterAccess, placement: PlacementConfig) -> ClientConfig:
    return attrs.evolve(cluster.client_config(), placement=placement)
