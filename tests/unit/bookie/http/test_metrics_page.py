"""``/metrics``: the table of docs/http.md against what a bookie prints, and the numbers of requests."""

# covers: bookie/http/metrics.py
# covers: bookie/http/metric_help.py

from __future__ import annotations

import re
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import memory_stream_pair

from bookie.bookie import open_bookie
from bookie.disk.real_disk import RealDisk
from bookie.healing.damage_healing import HealingStats
from bookie.healing.integrity import IntegrityStats
from bookie.http.admin import RecoveryState
from bookie.http.metrics import auto_recovery_metrics_text, metrics_text
from bookie.latency import HISTOGRAM_BOUNDS_S
from bookie.ledger_record import UNKNOWN_KEY
from bookie.storage.config import StorageConfig
from bookie.storage.opening import open_storage
from ledger.codes import Code
from ledger.fragments.placement_check import PlacementFindings
from ledger.fragments.replicas_check import ReplicaFindings
from ledger.replication import AutoRecoveryStats
from ledger.runtime.tasks.failure_domain import failure_domain
from ledger.wire.messages import BatchReadReply, BatchReadRequest, ReadReply, ReadRequest
from tests.places import ROOT
from tests.unit.bookie.http.test_admin import serving
from tests.unit.bookie.server.test_server import Caller, add


async def all_metrics(tmp_path: Path) -> str:
    """The text with each metric that a bookie can have."""
    config = StorageConfig(journal_directories=(tmp_path / "oj",), ledger_directories=(tmp_path / "ol",))
    async with serving(tmp_path) as (admin, _), open_bookie(config) as other:
        admin.server = other.server  # only its count of connections is read
        admin.healing, admin.recovery = HealingStats(), RecoveryState(("b1:3181",))
        admin.integrity, admin.auto_recovery = IntegrityStats(), AutoRecoveryStats()
        admin.auto_recovery.auditor.placement = PlacementFindings()
        admin.auto_recovery.auditor.replicas = ReplicaFindings()
        return metrics_text(admin)


@pytest.mark.slow
async def test_each_metric_has_a_help(tmp_path: Path) -> None:
    lines = (await all_metrics(tmp_path)).splitlines()
    typed = [(at, line.split()[2]) for at, line in enumerate(lines) if line.startswith("# TYPE ")]
    assert len(typed) > 80
    assert [name for at, name in typed if not lines[at - 1].startswith(f"# HELP {name} ")] == []
    alone = auto_recovery_metrics_text(AutoRecoveryStats())
    assert alone.count("# HELP ") == alone.count("# TYPE ")


async def test_the_histograms_of_two_bookies_can_be_added(tmp_path: Path) -> None:
    name = "bookie_add_duration_seconds"
    async with serving(tmp_path) as (admin, _):
        added = admin.service.in_progress.added
        added.add(0.001, 0.0, count=3)
        added.add(30.0, 0.0)
        lines = [line for line in metrics_text(admin).splitlines() if line.startswith(name)]
    bounds = [line.partition('"')[2].partition('"')[0] for line in lines if "_bucket" in line]
    assert bounds == [*(repr(each) for each in HISTOGRAM_BOUNDS_S), "+Inf"]
    assert f'{name}_bucket{{le="0.0009765625"}} 0' in lines
    assert f'{name}_bucket{{le="0.001953125"}} 3' in lines
    assert f'{name}_bucket{{le="16.0"}} 3' in lines
    assert lines[-3:] == [f'{name}_bucket{{le="+Inf"}} 4', f"{name}_sum 30.003", f"{name}_count 4"]


async def test_copies_of_limbo_and_of_auto_recovery_are_counters(tmp_path: Path) -> None:
    async with serving(tmp_path) as (admin, _):
        admin.integrity, admin.auto_recovery = IntegrityStats(), AutoRecoveryStats()
        admin.integrity.entries_copied, admin.integrity.bytes_copied = 4, 400
        admin.integrity.entries_lost.update({7: 2, 8: 1})
        admin.auto_recovery.copies.entries_copied, admin.auto_recovery.copies.bytes_copied = 5, 500
        lines = metrics_text(admin).splitlines()
    for line in (
        "bookie_limbo_copied_entries_total 4",
        "bookie_limbo_copied_bytes_total 400",
        "bookie_limbo_lost_entries 3",
        "replication_replication_worker_copied_entries_total 5",
        "replication_replication_worker_copied_bytes_total 500",
    ):
        assert line in lines


@pytest.mark.slow
async def test_the_table_of_the_page_has_every_name_and_no_other(tmp_path: Path) -> None:
    printed = dict(re.findall(r"^# TYPE (\S+) (\w+)$", await all_metrics(tmp_path), re.MULTILINE))
    _, _, section = (ROOT / "docs" / "http.md").read_text("utf-8").partition("## Metrics")
    table = section.partition("Apache's other names")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ") and "`" in line]
    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    per_path = "bookie_ledger_dir_PATH_usage"
    names = {per_path if re.fullmatch(r"bookie_ledger_dir__\w+_usage", one) else one for one in printed}
    assert names == documented


@pytest.mark.slow
async def test_reads_that_wait_fences_and_long_polls_are_measured(tmp_path: Path) -> None:
    config = StorageConfig(journal_directories=(tmp_path / "j",), ledger_directories=(tmp_path / "l",))
    async with open_storage(RealDisk(), config) as storage:
        storage.enter_limbo(7, UNKNOWN_KEY, fenced=False)
        storage.enter_limbo(8, UNKNOWN_KEY, fenced=False)
        await storage.flush()
        assert storage.limbo_count == 2
        await storage.delete_ledger(8)
        assert storage.limbo_count == 1
    async with open_bookie(config) as bookie:
        assert bookie.storage.limbo_count == 1
        async with trio.open_nursery() as nursery:
            near, far = memory_stream_pair()
            nursery.start_soon(bookie.serve_stream, far)
            caller, work = Caller(near), bookie.service.in_progress

            async def ask(request: object, version: int = 3) -> object:
                await caller.send(request, version=version)  # type: ignore[arg-type]
                return await caller.reply()

            await ask(add(0))
            await ask(ReadRequest(1, 0))  # memory answers it at once
            assert work.deferred.reads[0].count == 0
            await ask(ReadRequest(1, 5))
            await ask(ReadRequest(1, 6), version=2)
            assert [one.count for one in work.deferred.reads] == [0, 2]
            fence = attrs.evolve(ReadRequest(1, -1), fence=True, master_key=add(0).master_key)
            assert isinstance(fenced := await ask(fence), ReadReply)
            assert fenced.code is Code.OK
            assert work.fenced.count == work.deferred.fencing_reads[0].count == 1
            for version in (2, 3):
                await ask(ReadRequest(7, 0), version=version)
                await ask(ReadRequest(7, -1), version=version)
            assert work.unknown_replies == 4
            poll = ReadRequest(1, -1, previous_lac=5, timeout_ms=1, piggyback_entry=True)
            await ask(poll)
            assert bookie.service.watches.ended_waits.count == 1
            nursery.cancel_scope.cancel()
        ledger = bookie.storage.ledger(7)
        assert ledger is not None
        bookie.storage.leave_limbo(ledger)
        assert bookie.storage.limbo_count == 0


async def test_bytes_of_reads_and_flushes_are_measured(tmp_path: Path) -> None:
    config = StorageConfig(journal_directories=(tmp_path / "oj",), ledger_directories=(tmp_path / "ol",))
    async with open_bookie(config) as bookie, trio.open_nursery() as nursery:
        near, far = memory_stream_pair()
        nursery.start_soon(bookie.serve_stream, far)
        caller = Caller(near)
        sizes = []
        for entry_id in range(3):
            await caller.send(add(entry_id))
            await caller.reply()
        for request, version in (
            (ReadRequest(1, 0), 2),
            (ReadRequest(1, 1), 3),
            (BatchReadRequest(1, 0, 7, 3, 10_000), 2),
        ):
            await caller.send(request, version=version)
            reply = await caller.reply()
            assert isinstance(reply, ReadReply | BatchReadReply)
            bodies = reply.bodies if isinstance(reply, BatchReadReply) else [reply.body or b""]
            sizes += [len(body) for body in bodies]
        assert len(sizes) == 5
        (store,) = bookie.storage.stores
        before = store.flushes.count
        await bookie.storage.flush()
        assert store.flushes.count > before
        assert bookie.storage.read_bytes == sum(sizes)
        nursery.cancel_scope.cancel()


async def test_contained_failures_are_counted_by_operation(tmp_path: Path) -> None:
    async with serving(tmp_path) as (admin, _):
        line = 'bookie_contained_failures_total{operation="a round of this test"} '
        assert line not in metrics_text(admin)
        with failure_domain("a round of this test"):
            raise ValueError("\n")
        assert line + "1\n" in metrics_text(admin)
