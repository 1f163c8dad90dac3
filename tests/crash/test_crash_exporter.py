"""`dlog exporter` as a process beside a real cluster, read by Prometheus' own checker."""

# covers: dlog/cli/operators/exporter.py

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import yaml

import dlog
from dlog.cluster.layout import bookie_id
from dlog.cluster.local import open_local_cluster
from dlog.cluster.ports import free_ports
from tests.places import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper, pytest.mark.slow]

EXAMPLES = ROOT / "examples" / "monitoring"


def scraped(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as reply:
        return str(reply.read(), "utf-8")


def check_metrics(text: str) -> None:
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=30
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", ""), text


def started(uri: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dlog.cli.main", "exporter", "--uri", uri]
    return subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0", "--interval", "1"], stderr=subprocess.PIPE, text=True
    )


async def until(url: str, line: str) -> str:
    """The text of the first scrape with the line; the test's own deadline ends the wait."""
    while True:
        text = await trio.to_thread.run_sync(scraped, url)
        if line in text.splitlines():
            return text
        await trio.sleep(0.2)


@contextmanager
def exporting(uri: str) -> Iterator[str]:
    """The address of the metrics of a process."""
    with started(uri) as process:
        try:
            assert process.stderr is not None
            lines = iter(process.stderr.readline, "")
            yield next(found[0] for line in lines if (found := re.findall(r"http://\S+", line)))
        finally:
            process.terminate()
            process.wait(20)


@contextmanager
def prometheus(directory: Path, targets: dict[str, list[str]]) -> Iterator[str]:
    """The address of a Prometheus with the jobs and alerts of the example, which scrapes each second."""
    config = yaml.safe_load((EXAMPLES / "prometheus.yml").read_text("utf-8"))
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(EXAMPLES / "alerts.yml")]
    assert {job["job_name"] for job in config["scrape_configs"]} == targets.keys()
    for job in config["scrape_configs"]:
        job["static_configs"] = [{"targets": targets[job["job_name"]]}]
    file = directory / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    (port,) = free_ports(1, random.Random(), host="127.0.0.1")
    options = [f"--config.file={file}", f"--storage.tsdb.path={directory / 'series'}"]
    with subprocess.Popen(
        ["prometheus", *options, f"--web.listen-address=127.0.0.1:{port}"], stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(20)


def results(url: str, query: str) -> list[Any]:
    try:
        text = scraped(f"{url}/api/v1/query?{urllib.parse.urlencode({'query': query})}")
    except OSError:  # Prometheus still starts
        return []
    found = json.loads(text)
    assert found["status"] == "success", query
    return list(found["data"]["result"])


async def test_prometheus_has_data_for_each_panel_of_the_dashboard(tmp_path: Path) -> None:
    dashboard = json.loads((EXAMPLES / "dlog-dashboard.json").read_text("utf-8"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(queries) >= 12
    series = tmp_path / "prometheus"
    series.mkdir()
    with trio.fail_after(180):
        async with open_local_cluster(
            tmp_path / "c", bookie_count=3, has_page=True, has_recovery=True
        ) as cluster:
            async with (
                dlog.open_namespace(cluster.uri) as namespace,
                namespace.open_writer("orders", create=True) as writer,
            ):
                await namespace.cursors("orders").set("billing", await writer.append(b"an order"))
            # Auto-recovery serves its metrics without being asked to.
            served = {each.name: f"127.0.0.1:{each.http_port}" for each in await cluster.status()}
            jobs = {
                "dlog-bookies": [served[f"bookie-{number}"] for number in (1, 2, 3)],
                "dlog-autorecovery": [served["autorecovery"]],
            }
            with (
                exporting(cluster.uri) as metrics,
                prometheus(series, jobs | {"dlog": [metrics.split("/")[2]]}) as url,
            ):
                for query in queries:
                    while not await trio.to_thread.run_sync(results, url, query):  # noqa: ASYNC110
                        await trio.sleep(0.2)
                # The alerts speak of names that there are. Two are there with a mark or a checkpoint.
                rules = yaml.safe_load((EXAMPLES / "alerts.yml").read_text("utf-8"))["groups"][0]["rules"]
                named = {
                    name.removesuffix("_bucket")
                    for rule in rules
                    for name in re.findall(r"(?:dlog|bookie|replication)_\w+", rule["expr"])
                }
                places = [metrics, *(f"http://{served[one]}/metrics" for one in ("bookie-1", "autorecovery"))]
                text = "".join([await trio.to_thread.run_sync(scraped, place) for place in places])
                there = set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))
                assert text.count("# HELP ") == text.count("# TYPE ")
                conditional = {"dlog_ledgers_under_replicated_oldest_age_seconds", "dlog_spark_lag_seconds"}
                assert named - there == conditional


async def test_a_lost_bookie_and_a_lag_are_scraped_and_promtool_finds_nothing(tmp_path: Path) -> None:
    with trio.fail_after(90):
        async with open_local_cluster(tmp_path, bookie_count=3, has_recovery=True) as cluster:
            async with dlog.open_namespace(cluster.uri) as namespace:
                async with namespace.open_writer("shop/orders", create=True) as writer:
                    await writer.append(b"an order")
                    position = await writer.append(b"another")
                await namespace.cursors("shop/orders").set("billing", position)
            with exporting(cluster.uri) as url:
                text = await until(url, 'dlog_bookies{state="writable"} 3')
                text = await until(url, 'dlog_cursor_lag_records{log="shop/orders",cursor="billing"} 1')
                assert "dlog_ledgers_under_replicated 0\n" in text
                assert "dlog_autorecovery_auditor 1.0\n" in text
                check_metrics(text)
                lost = bookie_id(cluster.state.bookies[2])
                cluster.kill(2)
                text = await until(url, f'dlog_bookie_up{{bookie="{lost}"}} 0.0')
                assert f'dlog_bookie_disk_free_bytes{{bookie="{lost}"}}' not in text
                check_metrics(text)
