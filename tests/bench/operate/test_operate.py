"""`dlog bench operate`: its rows, the settings of Apache's process, and the check of all replicas."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from bookie.config.properties import parse_properties
from tests.bench.operate.command import command
from tests.bench.operate.copying import copy_floor_s
from tests.bench.operate.first_paint import paint_rows
from tests.bench.operate.recoverers import SETTINGS, configuration, find_missing, release_of
from tests.bench.operate.repair import count_replicas, options_for
from tests.bench.operate.resting_cluster import rest_row
from tests.bench.work.link import BenchError
from tests.fakes.replication_world import PAYLOADS, open_world

LIMITS = {"bookies": 4, "session_timeout_ms": 1000, "steady_s": 1.0, "limit_s": 60.0}


def test_the_lost_bookie_has_the_bytes_that_were_asked_for() -> None:
    options = options_for(200, size=16_384, ledgers=16, **LIMITS)
    assert options.lost_bytes == 200 << 20
    assert options_for(1, size=1_000_000, ledgers=16, **LIMITS).entries == 1


def test_the_cpu_time_of_a_process_is_a_share_of_a_core_beside_zookeeper() -> None:
    row = rest_row("bookie-1", 0.3, 0.6, 30.0)
    assert row == {"process": "bookie-1", "cpu_percent": 1.0, "ratio_to_zookeeper": 0.5}
    assert rest_row("bookie-1", 0.3, 0.0, 30.0)["ratio_to_zookeeper"] is None


def test_the_paints_of_a_page_are_medians() -> None:
    times = [{"first_paint_ms": ms, "load_ms": 2 * ms} for ms in (30.0, 10.0, 20.0)]
    assert paint_rows({"dlog": times}) == [
        {"system": "dlog", "loads": 3, "first_paint_ms": 20.0, "load_ms": 40.0}
    ]


def test_apaches_process_gets_the_settings_of_ours(tmp_path: Path) -> None:
    found = parse_properties(configuration("127.0.0.1:2181", tmp_path, 6000))
    for key, value in SETTINGS.items():
        assert found[key].first == str(value)
    assert found["zkTimeout"].first == "6000"


def test_apaches_process_is_measured_only_with_its_jars(tmp_path: Path) -> None:
    assert find_missing(None) is not None
    assert find_missing(tmp_path) is not None
    (tmp_path / "bookkeeper-server-4.17.3.jar").touch()
    assert release_of(tmp_path) == "4.17.3"


def test_jars_without_the_peer_are_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(command, ["--apache-jars", str(tmp_path)])
    assert done.exit_code == 2
    assert "--peers apache" in done.output


def test_the_floor_of_a_repair_leaves_no_files(tmp_path: Path) -> None:
    assert copy_floor_s(tmp_path, 3_000_000) > 0
    assert list(tmp_path.iterdir()) == []


async def test_every_replica_is_counted_and_a_missing_one_fails_the_benchmark() -> None:
    async with open_world() as world:
        ledger_id = await world.closed_ledger()
        assert await count_replicas(world.client, [ledger_id], len(PAYLOADS)) == 3 * len(PAYLOADS)
        (ensemble,) = await world.members(ledger_id)
        del world.cluster.bookies[ensemble[0]].ledgers[ledger_id].entries[1]
        with pytest.raises(BenchError, match="replicas of"):
            await count_replicas(world.client, [ledger_id], len(PAYLOADS))
