"""The figures for Prometheus, on a directory and on a cluster without sockets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import trio
import trio.testing

import dlog
from dlog.errors import LogUnavailableError
from dlog.namespace_handle import Namespace
from dlog.page import exporter as module
from dlog.page.exporter import Exporter
from ledger.catalog.paths import cookie_path
from ledger.metadata_store.errors import ConnectionLostError
from ledger.replication.marks import UnderReplicatedLedgers
from tests.fakes.dict_bookies import open_cluster
from tests.fakes.dict_namespace import open_on

pytestmark = pytest.mark.slow

URI = "distributedlog://zk1:2181/ns"


def figures(exporter: Exporter) -> dict[str, float]:
    lines = [line for line in exporter.text().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


async def test_logs_cursors_bookies_and_marks_have_figures(autojump_clock: trio.testing.MockClock) -> None:
    async with open_cluster() as cluster, open_on(cluster) as opened:
        namespace, exporter = opened.namespace, Exporter(URI)
        async with namespace.open_writer("orders", create=True) as writer:
            await writer.append(b"x", txid=1)
            position = await writer.append(b"y", txid=2)
            await namespace.cursors("orders").set("billing", position)
        lost, *others = sorted(cluster.bookies)
        for bookie in cluster.bookies:
            await opened.store.create(cookie_path("/ledgers", bookie), parents=True)
        marks = UnderReplicatedLedgers(opened.store, "/ledgers")
        await marks.prepare()
        await exporter.collect(namespace)
        found = figures(exporter)
        assert found["dlog_ledgers_under_replicated"] == 0
        assert "dlog_ledgers_under_replicated_oldest_age_seconds" not in found
        assert found['dlog_bookies{state="away"}'] == 0
        await cluster.stop(lost)
        await marks.mark(7, [lost])
        await trio.sleep(100)
        await exporter.collect(namespace)
        found = figures(exporter)
    assert found['dlog_log_records{log="orders"}'] == 2
    assert found['dlog_log_idle_seconds{log="orders"}'] == pytest.approx(100, abs=10)
    assert found['dlog_cursor_lag_records{log="orders",cursor="billing"}'] == 1
    # The ids of this log are no times, so the exporter tells since when it saw the record.
    assert found['dlog_cursor_lag_seconds{log="orders",cursor="billing"}'] == pytest.approx(100, abs=10)
    assert 'dlog_log_last_record_age_seconds{log="orders"}' not in found
    assert found['dlog_log_last_transaction_id{log="orders"}'] == 2
    assert found['dlog_log_last_segment{log="orders"}'] == 1
    assert found['dlog_log_size_bytes{log="orders"}'] > 2
    assert found[f'dlog_bookie_up{{bookie="{lost}"}}'] == 0
    assert [found[f'dlog_bookie_up{{bookie="{each}"}}'] for each in others] == [1] * len(others)
    # What is not known of a bookie that is away is absent.
    assert not [name for name in found if lost in name and not name.startswith("dlog_bookie_up")]
    assert found['dlog_bookies{state="away"}'] == 1
    assert found["dlog_ledgers_under_replicated"] == 1
    assert "dlog_ledgers_under_replicated_oldest_age_seconds" in found
    assert not [name for name in found if name.startswith("dlog_exporter_errors") and found[name]]


async def test_a_part_that_fails_is_absent_and_counted_and_leaves_the_others(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_cluster() as cluster, open_on(cluster) as opened:
        exporter = Exporter(URI)
        await opened.namespace.create_log("orders")
        await exporter.collect(opened.namespace)
        assert 'dlog_bookies{state="writable"}' in figures(exporter)

        async def failing(*args: object, **options: object) -> object:
            raise ConnectionLostError("no reply")

        monkeypatch.setattr(module, "collect_cluster", failing)
        await trio.sleep(7)
        await exporter.collect(opened.namespace)
    found = figures(exporter)
    assert found['dlog_exporter_errors_total{part="bookies"}'] == 1
    assert found['dlog_exporter_errors_total{part="logs"}'] == 0
    assert not [name for name in found if name.startswith("dlog_bookie")]
    assert found['dlog_log_records{log="orders"}'] == 0
    # Its age tells since when nothing is known.
    assert found['dlog_exporter_age_seconds{part="bookies"}'] >= 7


async def test_a_log_that_cannot_be_read_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe = Namespace.describe_log

    async def describe_log(self: Namespace, name: str) -> dlog.LogDescription:
        if name == "bad":
            raise LogUnavailableError("its bookies do not reply")
        return await describe(self, name)

    async with dlog.open_namespace((tmp_path / "namespace").as_uri()) as namespace:
        for name in ("bad", "good"):
            await namespace.create_log(name)
        monkeypatch.setattr(Namespace, "describe_log", describe_log)
        exporter = Exporter(namespace.uri)
        await exporter.collect(namespace)
        found = figures(exporter)
    assert 'dlog_log_records{log="good"}' in found
    assert 'dlog_log_records{log="bad"}' not in found
    assert found['dlog_exporter_errors_total{part="logs"}'] == 1


async def test_logs_are_chosen_by_patterns_and_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOGS_MAX", 2)
    monkeypatch.setattr(module, "CURSORS_MAX", 1)
    async with dlog.open_namespace((tmp_path / "namespace").as_uri()) as namespace:
        for name in ("a1", "a2", "a3", "b"):
            await namespace.create_log(name)
        for name in ("x", "y"):
            await namespace.cursors("a1").set(name, dlog.DLSN(1, 0, 0))
        exporter = Exporter(namespace.uri, patterns=["a*"])
        await exporter.collect(namespace)
        text = exporter.text()
    assert re.findall(r'dlog_log_records{log="(\w+)"}', text) == ["a1", "a2"]
    assert re.findall(r'dlog_cursor_lag_records{.*cursor="(\w)"}', text) == ["x"]
    assert 'dlog_exporter_left_out{part="logs"} 2\n' in text


async def test_a_namespace_that_cannot_be_opened_is_counted_and_tried_again(tmp_path: Path) -> None:
    exporter = Exporter((tmp_path / "nothing").as_uri(), interval_s=0.01)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(exporter.run)
            while figures(exporter)['dlog_exporter_errors_total{part="namespace"}'] < 2:  # noqa: ASYNC110
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
