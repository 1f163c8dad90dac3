"""`dlog demo` as a program: its report and its exit code, embedded, on a cluster and with Spark."""

# covers: dlog/cli/demo/command.py
# covers: dlog/cli/demo/lines.py
# covers: dlog/cli/demo/spark_count.py
# covers: dlog/cli/demo/writer.py

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FIELDS = [
    "records",
    "bytes",
    "seconds",
    "records_per_s",
    "append_p50_ms",
    "append_p99_ms",
    "segments",
    "acknowledged_before_kill",
    "lost",
    "repeated",
    "reordered",
    "spark_records",
]
LINES = 20_000


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lines = tmp_path_factory.mktemp("demo") / "lines.txt"
    lines.write_bytes(b"".join(b"line %d of the input\n" % number for number in range(LINES)))
    return lines


def demo(file: Path, *options: str) -> dict[str, object]:
    command = [sys.executable, "-m", "dlog.cli.main", "demo", str(file), "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert list(report) == FIELDS
    assert report["records"] == LINES
    assert report["bytes"] == file.stat().st_size - LINES
    assert report["acknowledged_before_kill"] >= LINES // 2
    assert (report["lost"], report["repeated"], report["reordered"]) == (0, 0, 0)
    assert report["segments"] >= 1
    return report  # type: ignore[no-any-return]


@pytest.mark.slow
def test_embedded_every_line_survives_the_writers_death(file: Path) -> None:
    assert demo(file)["spark_records"] is None


@pytest.mark.cluster
@pytest.mark.zookeeper
@pytest.mark.slow
def test_on_a_cluster_every_line_survives_the_death_of_writer_and_bookie(file: Path) -> None:
    assert demo(file, "--cluster", "3")["spark_records"] is None


@pytest.mark.spark
@pytest.mark.slow
def test_spark_counts_the_same_lines(file: Path) -> None:
    assert demo(file, "--spark")["spark_records"] == LINES


@pytest.mark.slow
def test_a_file_with_one_line_is_rejected(tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_bytes(b"only one line\n")
    command = [sys.executable, "-m", "dlog.cli.main", "demo", str(short)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 1
    assert "at least 2" in done.stderr
    assert "Traceback" not in done.stderr
