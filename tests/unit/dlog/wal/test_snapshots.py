"""The log of snapshots keeps the newest one."""

from __future__ import annotations

from pathlib import Path

import pytest

import dlog
from dlog.wal.snapshots import read_last, write
from namespace.segments.segment import TruncationStatus
from tests.unit.dlog.wal.test_snapshot_format import snapshot


@pytest.mark.slow
async def test_the_log_keeps_the_newest_snapshot_and_refuses_an_older_one(tmp_path: Path) -> None:
    async with dlog.open_namespace(tmp_path.as_uri()) as namespace:
        assert await read_last(namespace, "s") is None
        for index in (1, 5):
            assert await write(namespace, "s", snapshot(index, b"state %d" % index))
        # A service that has lost the log takes its last snapshot late.
        assert not await write(namespace, "s", snapshot(3, b"late"))
        assert await read_last(namespace, "s") == snapshot(5, b"state 5")
        assert [
            each.first_txid
            for each in await namespace.segments("s")
            if each.truncation is not TruncationStatus.TRUNCATED
        ] == [5]
