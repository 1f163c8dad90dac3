"""Worlds with logs: seeds hold, known bugs are found, a client may crash at each step."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import attrs
import pytest

from tests.effort import sampled
from tests.places import ROOT
from tests.simulation.faults import KINDS, enabled
from tests.simulation.playing import play
from tests.simulation.replay_file import Replay, decode_replay, encode_replay
from tests.simulation.runs import Setting, find_known_bug, play_seeds
from tests.simulation.streams.known_bugs import HEALING, HEALING_FAULTS, STREAM_BUGS
from tests.simulation.streams.shape import StreamShape
from tests.simulation.streams.sweep import HEALER, SWEEPS, sweep
from tests.simulation.streams.world import StreamWorld

STREAMS = Setting(streams=True)
SEEDS = range(20)
BUG_SEEDS = 60
EFFECTS = (  # a world without them would prove nothing
    "cursor commit",
    "cursor commit refused",
    "large record",
    "log promoted",
    "log writer",
    "purged segment",
    "reader behind a truncation",
    "record read",
    "rolled to a full ensemble",
    "segment given up",
    "segment on fewer bookies",
    "truncation",
)
PROMOTER = "crash of a promoter"
LOST_SESSIONS = ("session expiry", "sleeping writer", "partition from the store")


@pytest.mark.slow
def test_one_world_of_logs_holds() -> None:
    tally = play_seeds(STREAMS, [3])
    assert tally.failed == []
    assert tally.confirmed > 0


@pytest.mark.slow
def test_worlds_of_logs_hold_and_contain_what_logs_are_for() -> None:
    tally = play_seeds(STREAMS, SEEDS)
    assert tally.failed == []
    assert [name for name in EFFECTS if not tally.counts[name]] == []


@pytest.mark.slow
def test_logs_are_deleted_and_created_again_while_they_are_used() -> None:
    deleted = 0
    for seed in range(4):
        shape = attrs.evolve(StreamShape.draw(seed, enabled({})), deletes=True, promotes=False, operators=2)
        outcome = play(seed, shape=shape, world_type=StreamWorld)
        assert outcome.violation is None
        deleted += outcome.counts.get("log deleted", 0)
    assert deleted > 0


@pytest.mark.slow
def test_promotions_are_interrupted_resumed_undone_and_purged_while_logs_are_used() -> None:
    counts: Counter[str] = Counter()
    for seed in range(8):
        shape = StreamShape.draw(seed, enabled({})).promoting()
        outcome = play(seed, shape=shape, world_type=StreamWorld)
        assert outcome.violation is None
        counts.update({name.removesuffix(", interrupted"): count for name, count in outcome.counts.items()})
    effects = ("promote", "resume promotion", "undo promotion", "purge promoted log", "log promoted")
    assert [name for name in effects if not counts[name]] == []


@pytest.mark.slow
def test_programs_share_a_writer_while_owners_die_hang_and_lose_the_store() -> None:
    counts: Counter[str] = Counter()
    for seed in (0, 1, 2, 3, 10, 24, 38, 42):  # a record is repeated in the last four
        shape = StreamShape.draw(seed, enabled({})).sharing()
        outcome = play(seed, shape=shape, world_type=StreamWorld)
        assert outcome.violation is None
        counts.update(outcome.counts)
    assert [name for name in ("owner", "forwarder", "repeated record") if not counts[name]] == []


@pytest.mark.slow
def test_segments_are_healed_while_logs_are_used_and_operators_die() -> None:
    counts: Counter[str] = Counter()
    switches = {kind: kind in HEALING_FAULTS for kind in KINDS}
    for seed in (16, 40, 49):  # in others no segment lacks bookies
        drawn = StreamShape.draw(seed, enabled(switches))
        shape = attrs.evolve(drawn, promotes=False, **HEALING)
        outcome = play(seed, shape=shape, switches=switches, world_type=StreamWorld)
        assert outcome.violation is None
        counts.update(outcome.counts)
    assert counts["segment healed"] > 0


@pytest.mark.slow
def test_writers_are_reopened_in_place_in_worlds_whose_sessions_expire() -> None:
    counts: Counter[str] = Counter()
    switches = {kind: kind in LOST_SESSIONS for kind in KINDS}
    for seed in (12, 14):  # in others no writer stops and is reopened
        drawn = StreamShape.draw(seed, enabled(switches))
        # A writer that is open for long meets the end of its session.
        shape = attrs.evolve(drawn, reopens=True, rounds_max=80, writers=2, pause_s=0.02)
        outcome = play(seed, shape=shape, switches=switches, world_type=StreamWorld)
        assert outcome.violation is None
        counts.update(outcome.counts)
    assert counts["session renewed"] > 0
    assert counts["writer reopened"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", list(STREAM_BUGS))
def test_a_known_bug_of_logs_is_found_when_it_is_put_back(name: str) -> None:
    assert find_known_bug(name, BUG_SEEDS, streams=True) is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled([name for name in SWEEPS if name not in (PROMOTER, HEALER)], 3))
def test_a_client_of_a_log_may_be_struck_at_every_299th_step(name: str) -> None:
    struck = [(step, outcome.violation) for step, outcome in sweep(name, 1, stride=299)]
    assert struck
    assert [each for each in struck if each[1] is not None] == []


@pytest.mark.slow
def test_an_operator_that_heals_may_be_struck_at_every_299th_step() -> None:
    # In this world the operator heals many segments and takes many steps.
    outcomes = [outcome for _, outcome in sweep(HEALER, 28, stride=299)]
    assert len(outcomes) >= 4
    assert [each.violation for each in outcomes if each.violation is not None] == []
    assert sum(each.counts.get("segment healed", 0) for each in outcomes) > 0


@pytest.mark.slow
def test_a_promoter_may_be_struck_at_every_97th_step() -> None:
    outcomes = [outcome for _, outcome in sweep(PROMOTER, 2, stride=97)]
    assert len(outcomes) >= 4
    assert [each.violation for each in outcomes if each.violation is not None] == []
    assert sum(each.counts.get("log promoted", 0) for each in outcomes) > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [5, 26], ids=["taken over", "shared"])
def test_a_world_of_logs_is_the_same_run_in_another_process_with_another_hash_seed(seed: int) -> None:
    assert StreamShape.draw(seed, enabled({})).shares is (seed == 26)
    digests = set()
    for hash_seed in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-m", "tests.simulation", "--streams", "--seed", str(seed)],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(next(line for line in run.stdout.splitlines() if line.startswith("trace hash")))
    assert len(digests) == 1


def test_a_world_of_logs_survives_its_replay_file() -> None:
    shape = STREAMS.shape(4)
    replay = Replay(shape, (), "no_loss: it was lost", "abc")
    assert decode_replay(encode_replay(replay)) == replay
    assert replay.streams
