"""`dlog exporter` as a process beside a real cluster, read by Prometheus' own checker."""

# covers: dlog/cli/operators/exporter.py

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import trio

import dlog
from dlog.cluster.layout import bookie_id
from dlog.cluster.local import open_local_cluster

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper, pytest.mark.slow]


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


async def test_a_lost_bookie_and_a_lag_are_scraped_and_promtool_finds_nothing(tmp_path: Path) -> None:
    with trio.fail_after(90):
        async with open_local_cluster(tmp_path, bookie_count=3, has_recovery=True) as cluster:
            async with dlog.open_namespace(cluster.uri) as namespace:
                async with namespace.open_writer("shop/orders", create=True) as writer:
                    await writer.append(b"an order")
                    position = await writer.append(b"another")
                await namespace.cursors("shop/orders").set("billing", position)
            with started(cluster.uri) as process:
                try:
                    assert process.stderr is not None
                    lines = iter(process.stderr.readline, "")
                    url = next(found[0] for line in lines if (found := re.findall(r"http://\S+", line)))
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
                finally:
                    process.terminate()
                    process.wait(20)
            assert process.returncode in (0, -15, 143)
