"""Worlds with auto-recovery: seeds hold, known bugs are found, runs are repeatable."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.places import ROOT
from tests.simulation.faults import KINDS
from tests.simulation.healing.known_bugs import HEALING_BUGS
from tests.simulation.replay_file import Replay, decode_replay, encode_replay
from tests.simulation.runs import Setting, find_known_bug, play_seeds

HEALING = Setting(healing=True)
SEEDS = range(32)
BUG_SEEDS = 400  # the rarest shows in one of a hundred worlds
EFFECTS = (  # worlds without them would prove nothing
    "bookie removed",
    "ledger closed by a worker",
    "ledger deleted under its lock",
    "replicas moved",
    "session of auto-recovery renewed",
    "struck at a worker's step",
    "worker copied",
    "worker locked",
    "worker unmarked",
)
# Where each bug showed when it was put back first. A change of the code changes the run of a seed, so the
# search begins there and continues with the next ones.
FOUND_AT = {
    "fragment moved before it is copied": 1,
    "entry missing everywhere counts as copied": 44,
    "open end copied without a fence": 16,
    "new bookie that is in the ensemble already": 1,
    "mark removed although a fragment was left out": 14,
    "open ledger closed at its LAC": 34,
    "open ledger closed without the grace": 16,
    "open ledger closed without a replacement": 2,
    "entries above the LAC copied into a member": 4,
    "holes of a member that is back are left": 0,
    "what a bookie missed is forgotten": 12,
    "bookie forgotten that was lost while there was no auditor": 3,
    "worker that goes on after its session": 159,
    "lock taken again while it is being released": 170,
}


@pytest.mark.slow
def test_one_world_with_auto_recovery_holds() -> None:
    tally = play_seeds(HEALING, [13])
    assert tally.failed == []
    assert tally.confirmed > 0
    assert tally.counts["replicas moved"] > 0


@pytest.mark.slow
def test_worlds_with_auto_recovery_hold_and_contain_what_repairs_are_for() -> None:
    tally = play_seeds(HEALING, SEEDS)
    assert tally.failed == []
    assert [name for name in EFFECTS if not tally.counts[name]] == []
    kinds = [name for name, kind in KINDS.items() if kind.group == "healing"]
    assert [name for name in kinds if not tally.counts[name]] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", list(HEALING_BUGS))
def test_a_known_bug_of_auto_recovery_is_found_when_it_is_put_back(name: str) -> None:
    assert find_known_bug(name, BUG_SEEDS, first=FOUND_AT[name], healing=True) is not None


@pytest.mark.slow
def test_a_world_with_auto_recovery_is_the_same_run_in_another_process_with_another_hash_seed() -> None:
    digests = set()
    for hash_seed in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-m", "tests.simulation", "--healing", "--seed", "4"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(next(line for line in run.stdout.splitlines() if line.startswith("trace hash")))
    assert len(digests) == 1


def test_a_world_with_auto_recovery_survives_its_replay_file() -> None:
    replay = Replay(HEALING.shape(4), (), "no_mark_is_left: still marked", "abc")
    assert decode_replay(encode_replay(replay)) == replay
    assert replay.healing


def test_every_known_bug_of_auto_recovery_is_documented() -> None:
    written = (ROOT / "tests" / "simulation" / "known_bugs.md").read_text("utf-8")
    assert [name for name in HEALING_BUGS if f"**{name}**" not in written] == []
