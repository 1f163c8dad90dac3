"""SIGKILL for a bookie's storage with two journals, two directories, either index, deletions and compaction.

``DLOG_STORAGE_KILLS`` sets the number of kills for each index. The test prints its seed;
``DLOG_STORAGE_SEED`` sets it. On a slow machine the victims may die before they have compacted anything. More
victims follow then, and each lot lives longer.
"""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pytest

from bookie.index.index_factory import IndexKind
from tests.crash.storage_victim import Promises, start

pytestmark = pytest.mark.slow
KILLS = int(os.environ.get("DLOG_STORAGE_KILLS", "6"))
LOTS_MAX = 5  # of ``KILLS`` victims, until one has compacted a log
LEDGERS_A_LIFE = 10_000


def start_and_kill(root: Path, number: int, kind: IndexKind, promises: Promises, rng: random.Random) -> None:
    """Start a victim, which checks all promises and then works, and kill it; record its promises."""
    victim = start(root, rng.randrange(1 << 30), 1 + number * LEDGERS_A_LIFE, kind, promises)
    assert victim.stdout is not None
    assert victim.stderr is not None
    # One victim in five dies while it starts or replays, the others at work.
    grace_s = rng.uniform(0.2, 0.6) if rng.random() < 0.2 else None
    killer = threading.Timer(grace_s or 60, victim.kill)
    killer.start()
    try:
        for line in victim.stdout:
            promises.add(line)
            if line.startswith("checked") and grace_s is None:
                killer.cancel()
                killer = threading.Timer(rng.uniform(0.05, 0.9) * (1 + number // KILLS), victim.kill)
                killer.start()
        victim.wait()
    finally:
        killer.cancel()
        victim.kill()
    errors = victim.stderr.read()
    victim.stdout.close()
    victim.stderr.close()
    assert victim.returncode == -9, f"victim {number} ended by itself: {errors[-2000:]}"


@pytest.mark.parametrize("kind", IndexKind, ids=lambda kind: kind.value)
def test_a_storage_killed_again_and_again_keeps_every_promise(tmp_path: Path, kind: IndexKind) -> None:
    seed = int(os.environ.get("DLOG_STORAGE_SEED", random.randrange(1 << 32)))
    print(f"DLOG_STORAGE_SEED={seed}")
    rng = random.Random(seed)
    promises = Promises()
    killed = 0
    while killed < KILLS or (not promises.compacted and killed < LOTS_MAX * KILLS):
        start_and_kill(tmp_path, killed, kind, promises, rng)
        killed += 1
    # The last victim checks the promises of all others.
    last = start(tmp_path, 0, 1 + killed * LEDGERS_A_LIFE, kind, promises)
    assert last.stdout is not None
    assert last.stderr is not None
    line = last.stdout.readline()
    last.kill()
    _, errors = last.communicate()
    assert line.startswith("checked"), errors[-2000:]
    print(f"{promises.rounds} rounds, {promises.compacted} logs compacted, {len(promises.deleted)} deleted")
    assert int(line.split()[1]) > 0
    assert promises.deleted
    assert promises.compacted
