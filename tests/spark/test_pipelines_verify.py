"""Real Spark verifies the logs of a real cluster, and names the damaged replica."""

# covers: spark_integration/commands/verify.py

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

import dlog
from dlog.cluster import open_local_cluster
from dlog.cluster.layout import bookie_id
from tests.fakes.damage import entries_of
from tests.spark.conftest import PipelineCommand

pytestmark = [
    pytest.mark.spark,
    pytest.mark.cluster,
    pytest.mark.zookeeper,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
TEST_TIMEOUT_S = 240
DAMAGED_ENTRY = 3


async def test_a_replica_damaged_on_disk_is_named_with_its_bookie_and_entry(
    pipeline: PipelineCommand, tmp_path: Path
) -> None:
    report = tmp_path / "report.jsonl"

    async def verify(uri: str) -> tuple[int, Any]:
        arguments = ["verify", "--uri", uri, "--report", str(report)]
        return await trio.to_thread.run_sync(pipeline, *arguments)

    with trio.fail_after(TEST_TIMEOUT_S):
        async with open_local_cluster(tmp_path / "cluster", session_timeout_ms=3000) as cluster:
            async with dlog.open_namespace(cluster.uri) as namespace:
                for log in ("orders", "payments"):
                    async with namespace.open_writer(log, create=True) as writer:
                        for number in range(10):
                            await writer.append(b"%s %d" % (log.encode(), number))
                (segment,) = await namespace.segments("orders")
            damaged = bookie_id(cluster.state.bookies[1])
            assert await cluster.terminate(1)
            damage(tmp_path / "cluster", cluster.state.bookies[1].name, segment.ledger_id)
            await cluster.restart(1)
            code, summary = await verify(cluster.uri)
            assert (code, summary["is_sound"], summary["faults"]) == (7, False, {"corrupt": 1})
            assert summary["records"] == 20
            lines = [json.loads(line) for line in report.read_text().splitlines()]
            (line,) = [each for each in lines if each["kind"] == "segment" and not each["is_sound"]]
            assert (line["log"], line["segment"], line["ledger"]) == ("orders", 1, segment.ledger_id)
            (fault,) = line["faults"]
            assert (fault["bookie"], fault["entry"], fault["fault"]) == (damaged, DAMAGED_ENTRY, "corrupt")
            cluster.kill(1)
            code, summary = await verify(cluster.uri)
            # The log that was found sound is not read again, so the bookie that is away is not missed there.
            assert (code, summary["segments_skipped"], set(summary["faults"])) == (6, 1, {"unreachable"})


def damage(cluster: Path, bookie: str, ledger_id: int) -> None:
    """Flip a bit of the payload of one entry in the files of a stopped bookie."""
    for path in sorted(cluster.rglob("*.log")):
        data = bytearray(path.read_bytes())
        if bookie not in path.parts or data[:4] != b"BKLO":
            continue
        for at, length, ledger, entry in entries_of(bytes(data)):
            if (ledger, entry) == (ledger_id, DAMAGED_ENTRY):
                data[at + 4 + length - 1] ^= 1
                path.write_bytes(data)
                return
    raise AssertionError("the entry is in no entry log")
