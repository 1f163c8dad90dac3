"""Where the distribution is installed, ``format("dlog")`` needs no registration."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dlog.blocking
from tests.spark.conftest import CONF

pytestmark = [pytest.mark.spark, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("bookie", "dlog", "ledger", "namespace", "spark_integration")

QUERY = """
import json, sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]")
for key, value in json.loads(sys.argv[1]).items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
rows = spark.read.format("dlog").option("uri", sys.argv[2]).option("stream", "s").load().collect()
print("FOUND", [bytes(row.payload).decode() for row in rows])
"""


def test_an_installed_distribution_is_found_by_name(tmp_path: Path) -> None:
    source, site = tmp_path / "source", tmp_path / "site"
    source.mkdir()
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target"]
    subprocess.run([*pip, str(site), str(source)], check=True, timeout=120, stdin=subprocess.DEVNULL)
    uri = f"file://{tmp_path / 'log'}"
    with dlog.blocking.open_namespace(uri) as namespace:
        namespace.create_log("s")
        with namespace.open_writer("s") as writer:
            writer.append_many([b"one", b"two"])
        told = subprocess.run(
            [sys.executable, "-c", QUERY, json.dumps(CONF), uri],
            env={**os.environ, "PYTHONPATH": str(site), "PYSPARK_PYTHON": sys.executable},
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert "FOUND ['one', 'two']" in told.stdout, told.stderr[-2000:]
