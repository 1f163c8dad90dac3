"""CPU, memory and bytes to disk, of this process and of the bookies, between two moments.

Source: getrusage(2); proc(5).
"""

from __future__ import annotations

import resource
import time
from pathlib import Path

import attrs

from dlog.cluster import Figures, LocalCluster


@attrs.frozen
class Reading:
    """Everything at one moment."""

    moment_s: float
    client_cpu_s: float
    client_written_bytes: int
    bookies: tuple[Figures, ...] | None  # None: not of this machine, or in this process


@attrs.frozen
class Usage:
    """What was used between two readings."""

    client_cpu_s: float
    bookies_cpu_s: float | None
    bookie_rss_mib: float | None  # of the largest one, at the end
    written_bytes: int | None  # by all bookies; None if they are out of sight


class Meter:
    """Takes readings; ``embedded`` says that the bookie is in this very process."""

    def __init__(self, cluster: LocalCluster | None, *, embedded: bool) -> None:
        self._cluster, self._embedded = cluster, embedded

    def read(self) -> Reading:
        """Now."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        bookies = None
        if self._cluster is not None:
            bookies = tuple(figures for figures in self._cluster.figures() if figures is not None)
        return Reading(time.perf_counter(), usage.ru_utime + usage.ru_stime, _own_written_bytes(), bookies)

    def used(self, first: Reading, last: Reading) -> Usage:
        """Between two readings."""
        client = last.client_cpu_s - first.client_cpu_s
        if first.bookies is None or last.bookies is None:
            written = last.client_written_bytes - first.client_written_bytes
            return Usage(client, None, None, written if self._embedded else None)
        return Usage(
            client,
            sum(figures.cpu_s for figures in last.bookies) - sum(figures.cpu_s for figures in first.bookies),
            max(figures.rss_bytes for figures in last.bookies) / 2**20,
            sum(figures.written_bytes for figures in last.bookies)
            - sum(figures.written_bytes for figures in first.bookies),
        )


def _own_written_bytes() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["write_bytes"])
