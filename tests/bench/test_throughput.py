"""`append` and `catchup` with peers: chunks of records, rows and ratios."""

# covers: dlog/cli/bench/options.py
# covers: dlog/cli/bench/stream_level.py

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dlog
from dlog.cli.bench import stream_level
from dlog.cli.bench.latency import Latencies
from dlog.cli.bench.options import BenchOptions, Outcome
from tests.bench.throughput import Measured, job_of, peer_row
from tests.bench.work.job import decode_job
from tests.bench.work.throughput import chunks, options_of


def options(**changed: int) -> BenchOptions:
    settings = {"records": 2000, "size": 10, "inflight": 100, "batch": 1} | changed
    return BenchOptions(workload="append", level="stream", **settings)


@given(st.integers(0, 500), st.integers(1, 70))
def test_chunks_hold_the_payloads_in_turn_and_as_many_as_asked(records: int, size: int) -> None:
    payloads = [b"a", b"b", b"c"]
    found = list(chunks(payloads, records, size))
    assert [payload for chunk in found for payload in chunk] == [payloads[n % 3] for n in range(records)]
    assert all(len(chunk) == size for chunk in found[:-1])


@pytest.mark.parametrize("servers_s", [None, 0.5])
def test_the_ratio_is_dlogs_rate_to_the_peers(servers_s: float | None) -> None:
    latencies = Latencies([(0.001, 1), (0.003, 99)])
    row = peer_row("redis", 3, Measured(Outcome(2.0, latencies), 0.25, servers_s), 1000, rate=1500)
    assert row == {
        "system": "redis",
        "replicas": 3,
        "records_per_s": 500.0,
        "p50_ms": 3.0,
        "p99_ms": 3.0,
        "cpu_client_s": 0.25,
        "cpu_servers_s": servers_s,
        "rate_ratio": 3.0,
    }


def test_a_process_gets_the_numbers_of_the_command() -> None:
    job = decode_job(job_of(options(batch=7), "append", "redis", {"port": 1}).encoded())
    found = options_of(job)
    assert (found.records, found.size, found.inflight, found.batch) == (2000, 10, 100, 7)
    assert job.address == {"port": 1}


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 7])
@pytest.mark.parametrize("inflight", [7, 5000])
async def test_every_record_is_appended_and_has_one_latency(
    batch: int, inflight: int, tmp_path: Path
) -> None:
    numbers = options(records=500, batch=batch, inflight=inflight)
    async with dlog.open_namespace(tmp_path.as_uri()) as namespace:
        await namespace.create_log("measured")
        async with namespace.open_writer("measured") as writer:
            latencies = await stream_level.feed(writer, numbers, numbers.records)
        assert await namespace.count_records("measured") == 500
    assert sum(count for _, count in latencies.samples) == 500
    assert all(seconds >= 0 for seconds, _ in latencies.samples)
