"""CPU time, memory and bytes written to disk, of this process and of the bookies, between two moments.

Source: getrusage(2); proc(5).
"""

from __future__ import annotations

import resource
from pathlib import Path

import attrs

from dlog.cluster import LocalCluster, ProcessStats


def cpu_s() -> float:
    """User and system time of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


@attrs.frozen
class Reading:
    """The counters at one moment."""

    client_cpu_s: float
    client_written_bytes: int
    bookies: tuple[ProcessStats, ...] | None  # None: the bookies are remote, or run in this process


@attrs.frozen
class Usage:
    """The difference between two readings."""

    client_cpu_s: float
    bookies_cpu_s: float | None
    bookie_rss_mib: float | None  # of the largest bookie, at the end
    written_bytes: int | None  # by all bookies; None if the bookies are remote


class Meter:
    """Takes readings. ``embedded`` is True if the bookie runs in this process."""

    def __init__(self, cluster: LocalCluster | None, *, embedded: bool) -> None:
        self._cluster, self._embedded = cluster, embedded

    def read(self) -> Reading:
        """Take a reading now."""
        bookies = None
        if self._cluster is not None:
            bookies = tuple(stats for stats in self._cluster.stats() if stats is not None)
        return Reading(cpu_s(), _own_written_bytes(), bookies)

    def used(self, first: Reading, last: Reading) -> Usage:
        """The usage between two readings."""
        client = last.client_cpu_s - first.client_cpu_s
        if first.bookies is None or last.bookies is None:
            written = last.client_written_bytes - first.client_written_bytes
            return Usage(client, None, None, written if self._embedded else None)
        return Usage(
            client,
            sum(stats.cpu_s for stats in last.bookies) - sum(stats.cpu_s for stats in first.bookies),
            max(stats.rss_bytes for stats in last.bookies) / 2**20,
            sum(stats.written_bytes for stats in last.bookies)
            - sum(stats.written_bytes for stats in first.bookies),
        )


def _own_written_bytes() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["write_bytes"])
