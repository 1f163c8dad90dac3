"""Calls of a local cluster on members in a state that they do not fit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dlog.cluster import process
from dlog.cluster.layout import encode_state, new_state
from dlog.cluster.local import ClusterError, LocalCluster


async def test_a_bookie_that_runs_is_not_started_again_and_one_that_does_not_is_not_killed(
    tmp_path: Path,
) -> None:
    cluster = LocalCluster(tmp_path)
    this = process.identify(os.getpid())
    state = new_state(2, [1, 2, 3]).with_process("bookie-1", this)
    cluster.paths.state.parent.mkdir(parents=True, exist_ok=True)
    cluster.paths.state.write_text(encode_state(state))
    with pytest.raises(ClusterError, match="bookie-1 still runs"):
        await cluster.restart(0)
    with pytest.raises(ClusterError, match="bookie-2 does not run"):
        cluster.kill(1)
