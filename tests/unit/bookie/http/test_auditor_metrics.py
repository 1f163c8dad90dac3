"""``/metrics`` of a bookie with auto-recovery inside."""

from __future__ import annotations

from pathlib import Path

from bookie.http.metrics import metrics_text
from ledger.replication import AuditorStats
from ledger.replication.placement_check import PlacementFindings
from ledger.replication.replicas_check import ReplicaFindings
from tests.unit.bookie.http.test_admin import serving


async def test_the_last_checks_of_the_auditor_have_apaches_names(tmp_path: Path) -> None:
    async with serving(tmp_path) as (admin, _):
        assert "replication_auditor" not in metrics_text(admin)
        admin.auditor = AuditorStats()
        assert "replication_auditor" not in metrics_text(admin)  # nothing was checked
        admin.auditor.placement = PlacementFindings(bad=3, overdue=4)
        admin.auditor.replicas = ReplicaFindings(without_replica=5, below_ack_quorum=6, below_write_quorum=7)
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
