"""The CPU time of a cluster that nobody uses: three bookies with HTTP and page, auto-recovery, ZooKeeper."""

from __future__ import annotations

from pathlib import Path

import trio

from dlog.cluster import LocalCluster, open_local_cluster, process
from dlog.cluster.layout import Member

BOOKIES = 3
SETTLE_S_MAX = 3.0  # after the start, which is no rest


async def measure_rest(directory: Path, seconds: float) -> list[dict[str, object]]:
    """One row for each process, ours first; ZooKeeper's, the yardstick, is the last."""
    async with open_local_cluster(
        directory, bookie_count=BOOKIES, has_page=True, has_recovery=True
    ) as cluster:
        await trio.sleep(min(SETTLE_S_MAX, seconds))
        first, started = _cpu_s(cluster), trio.current_time()
        await trio.sleep(seconds)
        elapsed_s = trio.current_time() - started
        last = _cpu_s(cluster)
    zookeeper = cluster.state.zookeeper.name
    names = [*(name for name in last if name != zookeeper), zookeeper]
    return [
        rest_row(name, last[name] - first[name], last[zookeeper] - first[zookeeper], elapsed_s)
        for name in names
    ]


def rest_row(name: str, cpu_s: float, yardstick_s: float, elapsed_s: float) -> dict[str, object]:
    """The CPU time of a process in per cent of a core, and its ratio to the yardstick's."""
    return {
        "process": name,
        "cpu_percent": round(cpu_s / elapsed_s * 100, 2),
        "ratio_to_zookeeper": round(cpu_s / yardstick_s, 2) if yardstick_s else None,
    }


def _cpu_s(cluster: LocalCluster) -> dict[str, float]:
    return {member.name: _cpu_of(member) for member in cluster.state.members}


def _cpu_of(member: Member) -> float:
    stats = None if member.process is None else process.stats(member.process)
    return 0.0 if stats is None else stats.cpu_s
