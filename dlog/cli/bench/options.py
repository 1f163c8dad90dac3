"""What a benchmark was asked to do, and what it found."""

from __future__ import annotations

import os

import attrs

from dlog.cli.bench.latency import Latencies

PAYLOADS = 64


@attrs.frozen(kw_only=True)
class BenchOptions:
    """One benchmark. Records are entries at the ledger level."""

    workload: str  # append, tail or catchup
    level: str  # ledger or stream
    records: int
    size: int  # payload bytes of a record
    inflight: int  # records submitted and not yet acknowledged
    batch: int  # records of one append_many; 1 at the ledger level, where an entry is the unit

    @property
    def group(self) -> int:
        """Records that the floor syncs at once: as many as may wait for one sync here."""
        return min(self.inflight, self.records)

    @property
    def warm_up(self) -> int:
        """Records before the clock starts: connections are made, code is loaded."""
        return min(1000, max(1, self.records // 10))

    def payloads(self) -> list[bytes]:
        """Some different payloads that do not compress, to be used in turn."""
        return [os.urandom(self.size) for _ in range(PAYLOADS)]


@attrs.frozen
class Outcome:
    """What a workload measured: from first submit to last answer."""

    seconds: float
    latencies: Latencies
