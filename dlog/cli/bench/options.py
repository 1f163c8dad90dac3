"""The options of a benchmark, and its outcome."""

from __future__ import annotations

import os

import attrs

from dlog.cli.bench.latency import Latencies

PAYLOADS = 64


@attrs.frozen(kw_only=True)
class BenchOptions:
    """One benchmark. At the ledger level a record is an entry."""

    workload: str  # append, tail or catchup
    level: str  # ledger or stream
    records: int
    size: int  # payload bytes of a record
    inflight: int  # records submitted and not yet acknowledged
    batch: int  # records of one append_many; 1 at the ledger level, which submits single entries

    @property
    def group(self) -> int:
        """Records that the floor syncs at once: as many as one sync may cover in the benchmark."""
        return min(self.inflight, self.records)

    @property
    def warm_up(self) -> int:
        """Records to write before the clock starts, so that connections exist and code is loaded."""
        return min(1000, max(1, self.records // 10))

    def payloads(self) -> list[bytes]:
        """Different payloads that do not compress; a workload uses them in turn."""
        return [os.urandom(self.size) for _ in range(PAYLOADS)]


@attrs.frozen
class Outcome:
    """The measurements of a workload, from the first submit to the last acknowledgement or record read."""

    seconds: float
    latencies: Latencies
