"""The repair after a bookie's death: from the kill until every replica is there again.

Inside: the data, the kill, the check of all replicas.
Not inside: the look from outside (``watching``), the processes that restore (``recoverers``), the writer
beside them (``load``), the floor (``copying``).
Always: every ledger has a replica of each entry on the bookie that dies, so all systems restore the same
number of entries. After the repair each of three bookies is asked for its list of entries, and a replica
that is missing is an error.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import attrs
import trio

from dlog.cluster import process
from dlog.cluster.layout import LEDGERS_ROOT, bookie_id
from ledger.catalog.availability import Availability
from ledger.client import LedgerClient, open_ledger_client
from ledger.config import ClientConfig
from ledger.fragments.entry_lists import EntryLists
from ledger.ledger_spec import LedgerSpec
from ledger.metadata_store.store import MetadataStore
from ledger.metadata_store.zookeeper import open_zookeeper_store
from ledger.replication import current_auditor
from ledger.transport.dial import dial_tcp
from tests.bench.operate.load import Load, open_load
from tests.bench.operate.recoverers import Open, RepairCluster
from tests.bench.operate.watching import POLL_S, RepairLooks, RepairTimes
from tests.bench.work.link import BenchError

REPLICAS = 3
ELECTED_S = 60.0
APPEND_BYTES = 4 << 20  # of one append_many
LISTS_IN_FLIGHT = 8


@attrs.frozen(kw_only=True)
class RepairOptions:
    """The data of one repair, and its limits."""

    bookies: int  # at least REPLICAS + 1
    ledgers: int
    entries: int  # of each ledger
    size: int  # payload bytes of an entry
    session_timeout_ms: int  # after which a dead bookie is noticed
    steady_s: float  # of the writer before the kill and after the repair
    limit_s: float  # of the repair, before it is given up

    @property
    def lost_bytes(self) -> int:
        """Payload bytes that the lost bookie had: what a repair copies."""
        return self.ledgers * self.entries * self.size


def options_for(mib: int, *, size: int, ledgers: int, **more: float) -> RepairOptions:
    """Entries for this many MiB on the lost bookie, at least one for each ledger."""
    entries = max(1, (mib << 20) // size // ledgers)
    return RepairOptions(ledgers=ledgers, entries=entries, size=size, **more)  # type: ignore[arg-type]


async def measure_repair(
    system: str, opened: Open, directory: Path, options: RepairOptions, *, with_load: bool
) -> dict[str, object]:
    """Fill a new cluster, kill a bookie and wait for the repair; return the row of the table.

    If cancelled, all processes end.

    Raises:
        BenchError: The repair took longer than ``limit_s``, its process ended, or a replica is missing.
        dlog.cluster.ClusterError: The cluster did not start.
    """
    async with (
        opened(
            directory, bookie_count=options.bookies, session_timeout_ms=options.session_timeout_ms
        ) as place,
        open_zookeeper_store(place.cluster.zookeeper_hosts) as store,
        open_ledger_client(store, dial_tcp, ClientConfig(), root=LEDGERS_ROOT) as client,
    ):
        await _wait_elected(place, store)
        bookies = [bookie_id(member) for member in place.cluster.state.bookies]
        lost, survivors = bookies[0], bookies[1:]
        ledgers = await _fill(client, lost, survivors, options)
        async with _running_load(client, survivors[:REPLICAS] if with_load else None) as load:
            before = await _steady_rate(load, options.steady_s)
            cpu_before_s = place.recoverer_cpu_s()
            times = await _kill_and_watch(place, store, client, lost, ledgers, load, options.limit_s)
            cpu_after_s = place.recoverer_cpu_s()
            after = await _steady_rate(load, options.steady_s)
        found = await count_replicas(client, ledgers, options.entries)
    repair_s = times.healed_s - times.noticed_s
    steady = None if before is None or after is None else (before + after) / 2
    return {
        "system": system,
        "writer": with_load,
        "ledgers": options.ledgers,
        "entries": options.ledgers * options.entries,
        "bytes": options.lost_bytes,
        "replicas": found,
        "noticed_s": round(times.noticed_s, 3),
        "marked_s": None if times.marked_s is None else round(times.marked_s, 3),
        "healed_s": round(times.healed_s, 3),
        "repair_s": round(repair_s, 3),
        "mb_per_s": round(options.lost_bytes / repair_s / 1e6, 2),
        "cpu_s": None
        if cpu_before_s is None or cpu_after_s is None
        else round(cpu_after_s - cpu_before_s, 2),
        "before_per_s": _rounded(before),
        "during_per_s": _rounded(times.load_per_s),
        "after_per_s": _rounded(after),
        "share_kept": round(times.load_per_s / steady, 3)
        if times.load_per_s is not None and steady
        else None,
    }


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 1)


async def _wait_elected(place: RepairCluster, store: MetadataStore) -> None:
    with trio.move_on_after(ELECTED_S):
        while process.is_alive(place.recoverer):
            if await current_auditor(store, LEDGERS_ROOT) is not None:
                return
            await trio.sleep(POLL_S)
    raise BenchError(f"no auditor was elected within {ELECTED_S:g} s; see {place.log}")


async def _fill(
    client: LedgerClient, lost: str, survivors: Sequence[str], options: RepairOptions
) -> list[int]:
    """Write and close the ledgers; the other replicas go to all pairs of survivors in turn."""
    pairs = itertools.cycle(itertools.combinations(survivors, REPLICAS - 1))
    payloads = [os.urandom(options.size) for _ in range(min(options.entries, 64))]
    step = max(1, APPEND_BYTES // max(1, options.size))
    ledgers = []
    for _, pair in zip(range(options.ledgers), pairs, strict=False):
        async with await client.create_from(LedgerSpec(bookies=(lost, *pair), ack_quorum=REPLICAS)) as writer:
            for first in range(0, options.entries, step):
                stop = min(options.entries, first + step)
                await writer.append_many([payloads[n % len(payloads)] for n in range(first, stop)])
        ledgers.append(writer.ledger_id)
    return ledgers


@contextlib.asynccontextmanager
async def _running_load(client: LedgerClient, bookies: Sequence[str] | None) -> AsyncIterator[Load | None]:
    if bookies is None:
        yield None
        return
    load = await open_load(client, bookies)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(load.run)
        yield load
        nursery.cancel_scope.cancel()
    await load.handle.close()


async def _steady_rate(load: Load | None, seconds: float) -> float | None:
    if load is None:
        return None
    interval = load.begin()
    await trio.sleep(seconds)
    return await interval.per_s()


async def _kill_and_watch(
    place: RepairCluster,
    store: MetadataStore,
    client: LedgerClient,
    lost: str,
    ledgers: Sequence[int],
    load: Load | None,
    limit_s: float,
) -> RepairTimes:
    looks = RepairLooks(store, client, lost, ledgers, load, lambda: process.is_alive(place.recoverer))
    place.cluster.kill(0)
    with trio.move_on_after(limit_s):
        times = await looks.watch()
        if times is None:
            raise BenchError(f"the process that restores replicas ended; see {place.log}")
        return times
    raise BenchError(
        f"{looks.unrestored} of {len(ledgers)} ledgers were not restored within {limit_s:g} s; give a"
        f" smaller --mib, or see {place.log}"
    )


async def count_replicas(client: LedgerClient, ledgers: Sequence[int], entries: int) -> int:
    """The number of replicas that the bookies of the ensembles list; each ledger has this many ``entries``.

    Raises:
        BenchError: It is not ``REPLICAS`` for each entry.
    """
    lists = EntryLists(client.context, trio.CapacityLimiter(LISTS_IN_FLIGHT))
    found = 0
    for ledger_id in ledgers:
        metadata = await client.metadata(ledger_id)
        (ensemble,) = metadata.ensembles
        held = await lists.of_each(ledger_id, ensemble.bookies)
        found += sum(map(_length, held.values()))
    wanted = REPLICAS * len(ledgers) * entries
    if found != wanted:
        raise BenchError(f"after the repair there are {found} replicas of {wanted}")
    return found


def _length(held: Availability | None) -> int:
    return 0 if held is None else len(held)
