"""Writers of some logs while one of three bookies is killed for a time, and while all restart in turn.

Inside: the appends, each at its time, and the longest of them; another log that is created while the bookie
is away; the time until the bookies list each replica. Not inside: the cost of auto-recovery (``absence``).
Always: at the end every replica of every ledger is read from its bookie, or the benchmark fails; an append
that fails fails the benchmark.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs
import trio

import dlog
from dlog.cluster import open_local_cluster
from dlog.cluster.layout import LEDGERS_ROOT
from ledger.catalog.catalog import Versioned
from ledger.client import LedgerClient, open_ledger_client
from ledger.codes import Code
from ledger.config import ClientConfig
from ledger.errors import BookieError
from ledger.fragments.entry_lists import EntryLists
from ledger.fragments.fragments import fragments_of
from ledger.fragments.replicas_check import ReplicaCount
from ledger.metadata_store.zookeeper import open_zookeeper_store
from ledger.quorum import write_set
from ledger.transport.dial import dial_tcp
from ledger.wire.messages import ReadRequest
from tests.bench.work.link import BenchError

LOGS = 5
PER_S = 40  # records of each log
PAYLOAD = b"x" * 200
BEFORE_S = 10.0
SETTLE_S = 5.0  # of a restart, before the next bookie restarts
LIMIT_S = 300.0
POLL_S = 1.0
READS_IN_FLIGHT = 64


@attrs.define
class _Appends:
    """Of all logs since the last row."""

    count: int = 0
    worst_s: float = 0.0

    async def write(self, writer: dlog.LogWriter, stop: trio.Event) -> None:
        due_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            while not stop.is_set():
                nursery.start_soon(self._append, writer)
                due_s += 1 / PER_S
                await trio.sleep_until(due_s)

    async def _append(self, writer: dlog.LogWriter) -> None:
        began_s = trio.current_time()
        await writer.append(PAYLOAD)
        self.count += 1
        self.worst_s = max(self.worst_s, trio.current_time() - began_s)

    def row(self, phase: str, **more: object) -> dict[str, object]:
        found = {"phase": phase, "appends": self.count, "worst_append_ms": round(self.worst_s * 1000)}
        self.count, self.worst_s = 0, 0.0
        return found | more


async def measure_steady_writers(directory: Path, away_s: float) -> list[dict[str, object]]:
    """One row for each phase.

    Raises:
        BenchError: A replica is missing at the end.
    """
    appends, stop = _Appends(), trio.Event()
    rows: list[dict[str, object]] = []
    async with (
        open_local_cluster(directory, has_recovery=True) as cluster,
        open_zookeeper_store(cluster.zookeeper_hosts) as store,
        open_ledger_client(store, dial_tcp, ClientConfig(), root=LEDGERS_ROOT) as client,
        dlog.open_namespace(cluster.uri) as namespace,
    ):
        async with trio.open_nursery() as nursery:
            for number in range(LOGS):
                nursery.start_soon(_write_log, namespace, f"log-{number}", appends, stop)
            await trio.sleep(BEFORE_S)
            rows.append(appends.row("all bookies there"))
            cluster.kill(0)
            await trio.sleep(away_s / 2)
            began_s = trio.current_time()
            async with namespace.open_writer("another", create=True) as writer:
                await writer.append(PAYLOAD)
                new_log_s = trio.current_time() - began_s
            await trio.sleep(away_s / 2)
            rows.append(appends.row("one bookie away", new_log_s=round(new_log_s, 2)))
            await cluster.restart(0)
            healed_s = await _until_replicated(client)
            rows.append(appends.row("after its return", replicated_s=healed_s))
            for index in range(len(cluster.state.bookies)):
                await cluster.terminate(index)
                await trio.sleep(SETTLE_S)
                await cluster.restart(index)
                await trio.sleep(SETTLE_S)
            rows.append(appends.row("rolling restart"))
            healed_s = await _until_replicated(client)
            rows.append(appends.row("after it", replicated_s=healed_s))
            stop.set()
        await _until_replicated(client)
        replicas, holes = await _read_all(client)
        if holes:
            raise BenchError(f"{len(holes)} of {replicas} replicas are missing, for example {holes[0]}")
        rows.append(appends.row("at the end", replicas_read=replicas))
    return rows


async def _write_log(namespace: dlog.Namespace, log: str, appends: _Appends, stop: trio.Event) -> None:
    async with namespace.open_writer(log, create=True) as writer:
        await appends.write(writer, stop)


async def _ledgers(client: LedgerClient) -> Sequence[tuple[Versioned, int]]:
    """All ledgers, each with its last entry that is known to be confirmed."""
    catalog, found = client.context.catalog, list[tuple[Versioned, int]]()
    async for part in catalog.ledger_ranges():
        for ledger_id in part.ledger_ids:
            async with await client.open(ledger_id, recover=False) as reader:
                found.append((await catalog.get(ledger_id), reader.last_confirmed))
    return found


async def _read_all(client: LedgerClient) -> tuple[int, list[str]]:
    """The number of replicas that ought to be there, and those that a bookie does not return."""
    limiter, holes, count = trio.CapacityLimiter(READS_IN_FLIGHT), list[str](), 0

    async def read(bookie: str, ledger_id: int, entry_id: int) -> None:
        async with limiter:
            try:
                reply = await client.context.transport.call(bookie, ReadRequest(ledger_id, entry_id))
                why = None if reply.code is Code.OK else reply.code.name
            except BookieError as exc:
                why = str(exc)
        if why is not None:
            holes.append(f"entry {entry_id} of ledger {ledger_id} on {bookie}: {why}")

    for current, last in await _ledgers(client):
        async with trio.open_nursery() as nursery:
            for entry_id in range(last + 1):
                bookies = current.metadata.ensemble_for(entry_id).bookies
                for index in write_set(entry_id, len(bookies), current.metadata.write_quorum):
                    nursery.start_soon(read, bookies[index], current.ledger_id, entry_id)
                    count += 1
    return count, holes


async def _until_replicated(client: LedgerClient) -> float:
    """Seconds until a look began at which the bookies listed each replica."""
    lists = EntryLists(client.context, trio.CapacityLimiter(READS_IN_FLIGHT))
    began_s = trio.current_time()
    with trio.fail_after(LIMIT_S):
        while True:
            look_s = trio.current_time()
            if all([await _is_whole(lists, current, last) for current, last in await _ledgers(client)]):
                return round(look_s - began_s, 1)
            await trio.sleep(POLL_S)


async def _is_whole(lists: EntryLists, current: Versioned, last: int) -> bool:
    fragments = fragments_of(current.metadata, last)
    found = await lists.of_each(current.ledger_id, {one for part in fragments for one in part.bookies})
    held = {bookie: one for bookie, one in found.items() if one is not None}
    if len(held) < len(found):
        return False
    count = ReplicaCount(fragments, current.metadata.ack_quorum, held)
    for part in count.ranges():
        count.count(*part)
    return not count.lacking
