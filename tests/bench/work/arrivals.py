"""The counts of the consumer of `tail`: the latency of each record, its order, and the CPU time.

Pure, but for the clocks that it is given.
Always: the records arrive in order and once each; anything else ends the benchmark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dlog.cli.bench.latency import Latencies
from dlog.cli.bench.meter import cpu_s
from tests.bench.schedule import NS
from tests.bench.work.job import STAMP


class Arrivals:
    """Counts the records of one consumer."""

    def __init__(self, records: int, left_out: int, read_cpu_s: Callable[[], float] = cpu_s) -> None:
        self._records, self._left_out, self._cpu_s = records, left_out, read_cpu_s
        self._met = 0
        self._cpu_at_mark = 0.0
        self._measured_after_mark = 0
        self.latencies = Latencies()

    @property
    def complete(self) -> bool:
        """True if every record has arrived."""
        return self._met == self._records

    def add(self, payloads: Iterable[bytes | memoryview], now_ns: int) -> None:
        """Record that these records arrived at ``now_ns``.

        Raises:
            AssertionError: A record is missing, repeated or out of order.
        """
        before = self._met
        for payload in payloads:
            due_ns, number = STAMP.unpack_from(payload)
            if number != self._met:
                raise AssertionError(f"record {number} arrived, but the next one is {self._met}")
            self._met += 1
            if number >= self._left_out:
                self.latencies.add((now_ns - due_ns) / NS)
        if before < self._left_out <= self._met or (before == 0 and not self._left_out):
            self._cpu_at_mark = self._cpu_s()
            self._measured_after_mark = self._met

    def outcome(self) -> dict[str, float]:
        """The percentiles in ms, and the CPU time of each record after the mark in microseconds."""
        counted = max(1, self._met - self._measured_after_mark)
        return {
            **self.latencies.milliseconds(),
            "cpu_us": (self._cpu_s() - self._cpu_at_mark) / counted * 1e6,
        }
