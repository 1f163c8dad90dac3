"""``python -m tests.fakes.limited_bookie DIRECTORY FILES [KEY=VALUE ...]``: a bookie with few descriptors.

The process may open FILES files. It is a whole bookie with its metadata in memory. Its log goes to stderr. It
ends with its standard input.
"""

from __future__ import annotations

import logging
import resource
import sys
import threading
from pathlib import Path

import trio

from bookie.config.bookie_config import parse_config
from bookie.config.classes import BookieConfig
from bookie.disk.descriptor_limit import raise_limit
from bookie.identity.address import Machine
from bookie.main import run_bookie
from ledger.metadata_store.memory import MemoryTree, open_memory_store


def config_of(directory: Path, more: list[str]) -> BookieConfig:
    lines = (
        "metadataServiceUri=zk+null://nowhere:1/ledgers",
        "listeningInterface=lo",
        "allowLoopback=true",
        "bookieId=limited",
        "bookiePort=0",
        "allowEphemeralPorts=true",
        "diskUsageThreshold=1",
        "diskUsageWarnThreshold=1",
        "journalMaxSizeMB=1",
        "journalPreAllocSizeMB=1",
        "flushInterval=100",
        f"journalDirectories={directory}/journal",
        f"ledgerDirectories={directory}/ledgers",
        *more,
    )
    return parse_config("\n".join(lines), "limited.conf")


async def run(config: BookieConfig) -> None:
    tree, stop = MemoryTree(), trio.Event()
    token = trio.lowlevel.current_trio_token()

    def wait_for_end() -> None:
        sys.stdin.buffer.read()
        token.run_sync_soon(stop.set)

    threading.Thread(target=wait_for_end, daemon=True).start()
    machine = Machine(lambda name: "127.0.0.1", lambda: "localhost", lambda host: "127.0.0.1")
    await run_bookie(config, open_store=lambda: open_memory_store(tree), stop=stop, machine=machine)


def main() -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    directory, files, *more = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(files) // 2, int(files)))
    assert raise_limit() == int(files)
    trio.run(run, config_of(Path(directory), more))


if __name__ == "__main__":
    main()
