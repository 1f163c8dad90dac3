"""Worlds: equal seeds give equal runs; many seeds hold; known bugs are found; failures can be replayed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from tests.effort import IS_SAMPLE, sampled
from tests.places import ROOT
from tests.simulation.__main__ import main
from tests.simulation.faults import KINDS, Fault, Promise, enabled
from tests.simulation.known_bugs import KNOWN_BUGS
from tests.simulation.minimise import minimise
from tests.simulation.playing import play
from tests.simulation.replay_file import Replay, ReplayFileError, decode_replay, encode_replay
from tests.simulation.runs import Setting, find_known_bug, play_on
from tests.simulation.shape import Shape

SEEDS = 300  # `make soak ARGS='--worlds 2000'` plays more
JOBS = os.cpu_count() or 1
EFFECTS = (  # of faults: their own counts do not show whether they had any effect
    "bookie that knows of its damage",
    "deleted entry log read by a client",
    "limbo that ended",
    "lost watch",
    "message lost",
    "operation cancelled",
    "space again",
    "stale read",
    "start with ledgers in limbo",
    "store reply lost after the write",
    "struck at a step",
    "unsynced name",
)
# Where bugs show that do not show in the first seeds. A change of the code changes the run of a seed, so the
# search begins there and continues with the next ones.
FOUND_AT = {
    "ensemble change confirmed early": 7,
    "fencing by LAC read alone": 11,
    "no limbo after a wiped disk": 13,
    "old copy taken for the newest": 13,
    "fence lost with replaced bookies": 13,
    "limbo that ends too early": 15,
    "digest over the wrong range": 15,
    "recovery from LAC -1": 20,
    "torn journal tail accepted": 50,
    "overlapping ensemble changes": 51,
    "reader of files that trusts what it finds": 57,
}


@pytest.mark.slow
def test_some_seeds_hold() -> None:
    counts: dict[str, int] = {}
    for seed in sampled(range(30), 3):
        outcome = play(seed)
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}"
        for name, count in outcome.counts.items():
            counts[name] = counts.get(name, 0) + count
    # Worlds without faults would prove nothing.
    assert sum(count > 0 for count in counts.values()) >= (10 if IS_SAMPLE else 25)


@pytest.mark.slow
def test_three_hundred_seeds_hold_and_contain_every_fault() -> None:
    tally = play_on(JOBS, Setting(), range(SEEDS))
    assert tally.worlds == SEEDS
    assert tally.failed == []
    assert [name for name, kind in KINDS.items() if kind.on and not tally.counts[name]] == []
    assert [name for name in EFFECTS if not tally.counts[name]] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", list(KNOWN_BUGS))
def test_a_known_bug_is_found_when_it_is_put_back(name: str) -> None:
    assert find_known_bug(name, first=FOUND_AT.get(name, 0)) is not None


@pytest.mark.slow
def test_the_same_seed_is_the_same_run_to_the_byte() -> None:
    first, second, other = play(7), play(7, keep=True), play(8)
    assert first.digest == second.digest
    assert first.digest != other.digest
    assert (first.confirmed, first.virtual_s) == (second.confirmed, second.virtual_s)
    assert second.lines


@pytest.mark.slow
def test_the_run_is_the_same_in_another_process_with_another_hash_seed() -> None:
    digests = set()
    for hash_seed in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-m", "tests.simulation", "--seed", "11"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(next(line for line in run.stdout.splitlines() if line.startswith("trace hash")))
    assert digests == {f"trace hash {play(11).digest}"}


@pytest.mark.slow
def test_trio_schedules_as_before_after_a_world_has_ended() -> None:
    import trio

    before = trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING, trio._core._run._r.getstate()
    play(3)
    assert (trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING, trio._core._run._r.getstate()) == before


@pytest.mark.slow
def test_every_fault_has_a_switch() -> None:
    off = play(5, switches=dict.fromkeys(KINDS, False))
    assert off.plan == ()
    assert off.violation is None
    assert not any(off.counts.get(name) for name in KINDS)
    assert enabled({"old copy": True}) >= {"old copy"}
    with pytest.raises(ValueError, match="no fault is called 'earthquake'"):
        enabled({"earthquake": True})


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", sampled(sorted(name for name, kind in KINDS.items() if kind.weight and kind.on))
)
def test_every_kind_of_fault_takes_effect_and_is_survived(kind: str) -> None:
    shape = attrs.evolve(Shape.draw(1, enabled({}), bookies=4), horizon_s=8.0, writers=2, readers=1, storm="")
    target = {"client": "log0-w0", "none": ""}.get(KINDS[kind].targets, "b1:3181")
    faults = tuple(Fault(1.5 + 0.7 * n, kind, target, 1.0, n) for n in range(6))
    outcome = play(1, shape=shape, plan=faults)
    assert outcome.violation is None
    assert outcome.counts[kind] >= 1


def test_fewer_machines_than_an_ack_quorum_lose_data() -> None:
    promise = Promise(ack_quorum=2)
    assert promise.allows(set(), "b1")
    assert promise.allows({"b1"}, "b1")
    assert not promise.allows({"b1"}, "b2")
    assert not Promise(ack_quorum=1).allows(set(), "b1")


def test_a_failing_world_is_made_smaller_and_still_fails() -> None:
    shape = Shape.draw(1, enabled({}))
    plan = tuple(Fault(float(n), "power cut", "b1:3181", 1.0, n) for n in range(20))

    def fails(candidate: Shape, faults: tuple[Fault, ...]) -> bool:
        return {3, 17} <= {fault.number for fault in faults} and candidate.horizon_s > 1

    small, faults = minimise(attrs.evolve(shape, readers=2), plan, fails)
    assert {fault.number for fault in faults} == {3, 17}
    assert small.readers == 0
    assert fails(small, faults)


@pytest.mark.slow
def test_a_replay_file_is_played_as_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape = Shape.draw(12, enabled({}))
    outcome = play(12, shape=shape)
    replay = Replay(shape, outcome.plan, None, outcome.digest)
    assert decode_replay(encode_replay(replay)) == replay
    file = tmp_path / "seed-12.json"
    file.write_text(encode_replay(replay))
    assert main(["--replay", str(file)]) == 0
    shown = capsys.readouterr().out
    assert outcome.digest in shown
    assert "the code has changed" not in shown


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "shape": {}, "plan": []}'])
def test_a_file_that_is_no_replay_file_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ReplayFileError):
        decode_replay(text)
    file = tmp_path / "bad.json"
    file.write_text(text)
    assert main(["--replay", str(file)]) == 2


@pytest.mark.slow
def test_a_violation_is_printed_made_smaller_and_written_to_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--seed", "0", "--bug", "LAC beyond acknowledged", "--directory", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert "an_entry_carries_no_greater_lac_than_was_acknowledged" in shown
    assert "VIOLATION" in shown
    (file,) = tmp_path.iterdir()
    assert main(["--replay", str(file)]) == 1


def test_an_invalid_command_line_is_an_error() -> None:
    assert main(["--seed", "1", "--off", "earthquake"]) == 2
    with pytest.raises(SystemExit) as exit_info:
        main(["--seeds", "5:1"])
    assert exit_info.value.code == 2


def test_every_known_bug_is_documented() -> None:
    written = (Path(__file__).parent / "known_bugs.md").read_text("utf-8")
    assert [name for name in KNOWN_BUGS if f"**{name}**" not in written] == []
