"""``/metrics`` of a bookie with auto-recovery inside."""

from __future__ import annotations

from pathlib import Path

import trio

from bookie.http import serve_auto_recovery
from bookie.http.metrics import metrics_text
from ledger.fragments.placement_check import PlacementFindings
from ledger.fragments.replicas_check import ReplicaFindings
from ledger.replication import AutoRecoveryStats
from tests.unit.bookie.http.test_admin import send_request, serving


async def test_the_last_checks_of_the_auditor_have_apaches_names(tmp_path: Path) -> None:
    async with serving(tmp_path) as (admin, _):
        assert "replication_" not in metrics_text(admin)
        admin.auto_recovery = AutoRecoveryStats()
        assert "NUM_LEDGERS_HAVING" not in metrics_text(admin)  # nothing was checked
        auditor = admin.auto_recovery.auditor
        auditor.placement = PlacementFindings(bad=3, overdue=4)
        auditor.replicas = ReplicaFindings(without_replica=5, below_ack_quorum=6, below_write_quorum=7)
        lines = metrics_text(admin).splitlines()
        prefix = "replication_auditor_NUM"
        for line in (
            f"{prefix}_LEDGERS_NOT_ADHERING_TO_PLACEMENT_POLICY 3",
            f"{prefix}_UNDERREPLICATED_LEDGERS_ELAPSED_RECOVERY_GRACE_PERIOD 4",
            f"{prefix}_LEDGERS_HAVING_NO_REPLICA_OF_AN_ENTRY 5",
            f"{prefix}_LEDGERS_HAVING_LESS_THAN_AQ_REPLICAS_OF_AN_ENTRY 6",
            f"{prefix}_LEDGERS_HAVING_LESS_THAN_WQ_REPLICAS_OF_AN_ENTRY 7",
        ):
            assert line in lines


async def test_a_process_that_is_no_bookie_serves_its_metrics_without_the_prefix() -> None:
    stats = AutoRecoveryStats()
    stats.worker.ledgers_restored = 3
    stats.auditor.placement = PlacementFindings(bad=2)
    async with trio.open_nursery() as nursery:
        url = await nursery.start(serve_auto_recovery, stats, "127.0.0.1", 0)
        assert await send_request(url, "GET", "/heartbeat") == (200, b"OK\n")
        status, body = await send_request(url, "GET", "/metrics")
        assert status == 200
        lines = body.decode().splitlines()
        assert 'replication_worker_rereplicate_count{success="true"} 3' in lines
        assert "auditor_NUM_LEDGERS_NOT_ADHERING_TO_PLACEMENT_POLICY 2" in lines
        assert not [line for line in lines if "replication_replication" in line or "bookie_" in line]
        assert (await send_request(url, "GET", "/api/v1/autorecovery/status"))[0] in (401, 403, 404)
        foreign = await send_request(url, "GET", "/metrics", headers="Host: evil.example\r\n")
        assert foreign[0] == 421
        nursery.cancel_scope.cancel()


async def test_the_work_of_auditor_and_worker_has_apaches_names(tmp_path: Path) -> None:
    async with serving(tmp_path) as (admin, _):
        admin.auto_recovery = stats = AutoRecoveryStats()
        stats.auditor.audits, stats.auditor.audit_s, stats.auditor.audit_marks = 2, 0.5, 9
        stats.worker.ledgers_restored, stats.worker.restored_s = 3, 1.5
        stats.worker.attempts_unfinished = 1
        stats.worker.ledgers_copied = 2
        stats.copies.entries_copied, stats.copies.bytes_copied = 10, 1000
        lines = metrics_text(admin).splitlines()
        for line in (
            'replication_auditor_AUDIT_BOOKIES_TIME_sum{success="true"} 500.0',
            'replication_auditor_NUM_UNDER_REPLICATED_LEDGERS_count{success="true"} 2',
            'replication_auditor_NUM_UNDER_REPLICATED_LEDGERS_sum{success="true"} 9',
            'replication_replication_worker_rereplicate_count{success="true"} 3',
            'replication_replication_worker_rereplicate_sum{success="true"} 1500.0',
            'replication_replication_worker_rereplicate_count{success="false"} 1',
            "replication_replication_worker_NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED 2",
            "replication_replication_worker_NUM_ENTRIES_WRITTEN 10",
            'replication_replication_worker_NUM_BYTES_WRITTEN_sum{success="true"} 1000',
        ):
            assert line in lines
