"""The cost of auto-recovery while one of three bookies is away, and the time until all replicas are back.

Inside: many small ledgers on three bookies; a new process of auto-recovery; its processor time, log lines and
copies while its first checks run, while a bookie is away, after the return, and after a rolling restart.
Always: the ledgers are written while a bookie was killed and back, too, so that each of the last ones lacks
entries; at the end the bookies list every replica, or the benchmark fails.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import trio

from dlog.cluster import open_local_cluster, process
from dlog.cluster.guardian import open_guardian
from dlog.cluster.layout import LEDGERS_ROOT
from dlog.cluster.process import ProcessId
from ledger.client import LedgerClient, open_ledger_client
from ledger.config import ClientConfig
from ledger.metadata_store.zookeeper import open_zookeeper_store
from ledger.replication import UnderReplicatedLedgers
from ledger.transport.dial import dial_tcp
from ledger.write.handle import WriteHandle
from tests.bench.operate.repair import count_replicas
from tests.bench.work.link import BenchError

WRITERS = 16  # ledgers created at once
WRITTEN_MAX = 1000  # ledgers that are written while the bookie is away
PAYLOAD = b"x" * 100
ENTRIES = 3
BOOKIES = 3  # of a local cluster
LIMIT_S = 600.0
STOP_S = 5.0
POLL_S = 0.5
_COPIED = re.compile(r": (\d+) entries from ")  # a line of the worker for each fragment


async def measure_absence(directory: Path, ledgers: int, seconds: float) -> list[dict[str, object]]:
    """One row for each phase.

    Raises:
        BenchError: A replica is missing at the end.
    """
    logging.getLogger("ledger.write").setLevel(logging.ERROR)  # a bookie is killed on purpose
    async with (
        open_local_cluster(directory) as cluster,
        open_zookeeper_store(cluster.zookeeper_hosts) as store,
        open_ledger_client(store, dial_tcp, ClientConfig(), root=LEDGERS_ROOT) as client,
    ):
        written = min(ledgers, WRITTEN_MAX)
        closed = await _closed_ledgers(client, ledgers - written)
        handles = [await client.create() for _ in range(written)]
        await _append_each(handles)
        log = cluster.paths.log("autorecovery")
        service = f"zk://{cluster.zookeeper_hosts}{LEDGERS_ROOT}"
        command = [sys.executable, "-m", "dlog.cli.main", "autorecovery", "--service", service]
        with open_guardian() as group:
            started = process.start_detached(command, log, group=group)
            try:
                meter = _Meter(started, log)
                await trio.sleep(seconds)
                rows = [meter.row("first checks", ledgers)]
                cluster.kill(0)
                await trio.sleep(seconds / 2)
                await _append_each(handles)
                await trio.sleep(seconds / 2)
                rows.append(meter.row("one bookie away", ledgers))
                await cluster.restart(0)
                await _append_each(handles)
                for handle in handles:
                    await handle.close()
                marks = UnderReplicatedLedgers(store.current_session(), LEDGERS_ROOT)
                everything = [*closed, *(handle.ledger_id for handle in handles)]
                await _until_replicated(client, marks, everything[len(closed) :], ENTRIES)
                rows.append(meter.row("until all replicas are back", ledgers))
                handles = [await client.create() for _ in range(written)]
                await _append_each(handles)
                meter.row("", ledgers)
                for index in range(BOOKIES):
                    await cluster.terminate(index)
                    await _append_each(handles)
                    await cluster.restart(index)
                    await _append_each(handles)
                rows.append(meter.row("rolling restart", ledgers + written))
                for handle in handles:
                    await handle.close()
                await _until_replicated(client, marks, [one.ledger_id for one in handles], 1 + 2 * BOOKIES)
                rows.append(meter.row("until all replicas are there", ledgers + written))
                await count_replicas(client, everything, ENTRIES)
            finally:
                with trio.CancelScope(shield=True):
                    await process.stop(started, grace_s=STOP_S)
        return rows


class _Meter:
    """The processor time and the log lines of one process since the last row."""

    def __init__(self, measured: ProcessId, log: Path) -> None:
        self._process, self._log = measured, log
        self._began_s, self._cpu_s, self._lines = trio.current_time(), 0.0, 0
        self._copied = 0

    def row(self, phase: str, ledgers: int) -> dict[str, object]:
        stats = process.stats(self._process)
        if stats is None:
            raise BenchError(f"auto-recovery ended; see {self._log}")
        text = self._log.read_text()
        now_s, lines = trio.current_time(), len(text.splitlines())
        copied = sum(map(int, _COPIED.findall(text)))
        elapsed_s, cpu_s = now_s - self._began_s, stats.cpu_s - self._cpu_s
        found = {
            "phase": phase,
            "ledgers": ledgers,
            "elapsed_s": round(elapsed_s, 1),
            "cpu_percent": round(cpu_s / elapsed_s * 100, 1),
            "log_lines": lines - self._lines,
            "entries_copied": copied - self._copied,
        }
        self._began_s, self._cpu_s, self._lines, self._copied = now_s, stats.cpu_s, lines, copied
        return found


async def _closed_ledgers(client: LedgerClient, count: int) -> list[int]:
    numbers = iter(range(count))
    ledgers: list[int] = []

    async def write() -> None:
        for _ in numbers:  # the tasks share it
            async with await client.create() as handle:
                await handle.append_many([PAYLOAD] * ENTRIES)
            ledgers.append(handle.ledger_id)

    async with trio.open_nursery() as nursery:
        for _ in range(WRITERS):
            nursery.start_soon(write)
    return ledgers


async def _append_each(handles: Sequence[WriteHandle]) -> None:
    async with trio.open_nursery() as nursery:
        for handle in handles:
            nursery.start_soon(handle.append, PAYLOAD)


async def _until_replicated(
    client: LedgerClient, marks: UnderReplicatedLedgers, ledgers: Sequence[int], entries: int
) -> None:
    with trio.move_on_after(LIMIT_S):
        while True:
            if not await marks.marked():
                try:
                    await count_replicas(client, ledgers, entries)
                except BenchError:
                    pass
                else:
                    return
            await trio.sleep(POLL_S)
    raise BenchError(f"replicas are missing {LIMIT_S:g} s after the return")
