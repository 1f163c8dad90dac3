"""A ZooKeeper server for the duration of a block."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from dlog.cluster.zookeeper_process import ZookeeperProcess, start_zookeeper, stop_zookeeper


@asynccontextmanager
async def open_zookeeper_process(
    data_dir: Path,
    *,
    port: int | None = None,
    log_path: Path | None = None,
    settings: Mapping[str, str] | None = None,
    java_options: Sequence[str] = (),
) -> AsyncIterator[ZookeeperProcess]:
    """Start a server with ``start_zookeeper``; stop it at the end of the block."""
    server = await start_zookeeper(
        data_dir, port=port, log_path=log_path, settings=settings, java_options=java_options
    )
    try:
        yield server
    finally:
        with trio.CancelScope(shield=True):
            await stop_zookeeper(server.identity)
