"""`dlog bench` and `python -m tests.bench` as programs: each prints its figures. No test asserts a time."""

# covers: dlog/cli/bench/command.py
# covers: dlog/cli/bench/floor.py
# covers: dlog/cli/bench/ledger_level.py
# covers: dlog/cli/bench/lone_appends.py
# covers: dlog/cli/bench/meter.py
# covers: dlog/cli/bench/target.py
# covers: dlog/cli/terminal/scratch.py

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FIELDS = [
    "records_per_s",
    "mb_per_s",
    "p50_ms",
    "p99_ms",
    "cpu_client_s",
    "cpu_bookies_s",
    "bookie_rss_mib",
    "write_amplification",
    "floor_records_per_s",
    "ratio_to_floor",
    "options",
]


def bench(*options: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "dlog.cli.main", "bench", *options, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert list(document) == FIELDS
    assert document["records_per_s"] > 0
    assert document["p50_ms"] <= document["p99_ms"]
    return document  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.parametrize("workload", ["append", "tail", "catchup"])
@pytest.mark.parametrize("batch", ["1", "100"])
def test_a_stream_is_measured_embedded(workload: str, batch: str) -> None:
    found = bench(workload, "--records", "3000", "--size", "100", "--inflight", "500", "--batch", batch)
    assert found["options"]["records"] == 3000
    assert found["options"]["replicas"] == 1
    assert found["cpu_bookies_s"] is None


@pytest.mark.slow
@pytest.mark.parametrize("options", [["append"], ["catchup"], ["catchup", "--second-process"]])
def test_peers_do_the_same_work_in_the_same_run(options: list[str]) -> None:
    command = [sys.executable, "-m", "tests.bench", *options, "--records", "2000", "--peers", "sqlite"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert list(document) == [*FIELDS, "peers", "not_installed"]
    (peer,) = document["peers"]
    assert (peer["system"], peer["replicas"]) == ("sqlite", 1)
    ratio = document["records_per_s"] / peer["records_per_s"]
    assert peer["rate_ratio"] == pytest.approx(ratio, rel=0.01, abs=0.01)
    assert peer["cpu_client_s"] > 0


@pytest.mark.cluster
@pytest.mark.zookeeper
@pytest.mark.slow
def test_ledgers_and_streams_are_measured_on_a_cluster() -> None:
    for workload in ("append", "tail", "catchup"):
        found = bench(workload, "--level", "ledger", "--cluster", "3", "--records", "3000")
        assert found["bookie_rss_mib"] > 0
    found = bench("append", "--level", "stream", "--cluster", "3", "--records", "3000")
    assert found["write_amplification"] >= 1


@pytest.mark.slow
def test_lone_appends_are_measured_with_and_without_a_loop_beside_a_file() -> None:
    command = [sys.executable, "-m", "dlog.cli.main", "bench", "latency", "--records", "20", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["systems"]
    assert [(one["system"], one["level"]) for one in rows] == [
        ("dlog", "stream"),
        ("dlog", "blocking"),
        ("file", None),
    ]
    for one in rows:
        assert 0 < one["p50_ms"] <= one["p90_ms"] <= one["p99_ms"] <= one["p99_9_ms"] <= one["max_ms"]
        assert one["cpu_servers_us"] is None
        assert one["p50_ratio"] > 0


@pytest.mark.cluster
@pytest.mark.zookeeper
@pytest.mark.slow
def test_lone_appends_to_a_ledger_are_measured_with_their_bookies() -> None:
    command = [sys.executable, "-m", "dlog.cli.main", "bench", "latency", "--records", "20", "--cluster", "3"]
    done = subprocess.run(
        [*command, "--level", "ledger", "--json"], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    ledger, floor = json.loads(done.stdout)["systems"]
    assert (ledger["level"], ledger["replicas"], floor["replicas"]) == ("ledger", 3, 3)
    assert ledger["cpu_servers_us"] is not None
    assert floor["cpu_servers_us"] is None


@pytest.mark.slow
def test_every_part_of_a_storage_is_measured_and_leaves_no_files(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.bench", "storage", "--all", "--mib", "2", "--json"]
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stderr
    parts = json.loads(done.stdout)
    assert set(parts) >= {"adds", "writes", "reads", "replay", "rebuild", "compaction"}
    for measurement in parts.values():
        assert measurement["value"] > 0
        assert measurement["floor"] > 0
        assert isinstance(measurement["met"], bool)
    assert list((tmp_path / "dlog").iterdir()) == []


@pytest.mark.slow
def test_a_storage_benchmark_without_disk_space_writes_nothing(
    tmp_path: Path,
) -> None:
    mib = str(1 << 20)  # 1 TiB
    command = [sys.executable, "-m", "tests.bench", "storage", "--replay", "--mib", mib]
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 1
    assert "GiB are free" in done.stderr
    assert list((tmp_path / "dlog").iterdir()) == []


@pytest.mark.slow
def test_a_small_soak_finds_every_entry_and_stays_within_its_bounds(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.bench", "storage", "--soak", "0.05", "--json"]
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["wrong"] == []
    assert found["deleted_ledgers"] > 0
    assert found["compacted_logs"] > 0
    assert found["entries_checked"] > 0
    assert found["disk_mib_max"] <= found["disk_mib_allowed"]
    assert list((tmp_path / "dlog").iterdir()) == []
