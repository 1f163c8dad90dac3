"""The sweep of a bookie's port: all shapes, from a fixed seed; and that it notices a guard that is gone.

Fresh seeds: ``make soak``, or ``python -m tests.fuzz.frame_sweep --seed N``.
"""

from __future__ import annotations

import collections
import itertools
from unittest import mock

import attrs
import pytest

from bookie.requests.session import ClientSession
from bookie.server.gate import Gate
from tests.effort import IS_SAMPLE
from tests.fuzz.frame_cases import Case, Ending, shapes
from tests.fuzz.frame_sweep import BATCH_FRAMES, batches, main, run_batch
from tests.fuzz.frame_talk import Mode, Phase

SEED = 27
FRAMES = 9_000  # the fewest with every shape, phase and mode; make soak sends more
PARTS = 10  # so that the workers share them
SAMPLE_FRAMES = 300


def cases_of(seed: int, count: int) -> list[Case]:
    return [case for batch in batches(seed, count) for one in batch.conversations for case in one.cases]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(PARTS))
def test_a_bookie_answers_requests_of_every_shape_in_every_phase(number: int) -> None:
    every = batches(SEED, FRAMES)
    report = run_batch(SEED, next(itertools.islice(every, number, None)))
    assert report is None, report


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(Mode))
def test_a_bookie_answers_a_sample_of_requests(mode: Mode) -> None:
    batch = next(one for one in batches(SEED + 1, FRAMES) if one.mode is mode)
    count = SAMPLE_FRAMES if IS_SAMPLE else BATCH_FRAMES
    kept = batch.first(count)
    report = run_batch(SEED + 1, kept)
    assert report is None, report


@pytest.mark.slow
def test_the_frames_of_a_run_have_every_shape_and_phase_and_one_seed_gives_the_same_again() -> None:
    found = list(batches(SEED, FRAMES))
    cases = [case for batch in found for one in batch.conversations for case in one.cases]
    assert {case.shape for case in cases} == set(shapes())
    assert {one.phase for batch in found for one in batch.conversations} == set(Phase)
    assert {(batch.mode, batch.flush) for batch in found} == {
        (mode, flush) for mode in Mode for flush in (0, 1)
    }
    counts = collections.Counter(case.ending for case in cases)
    assert all(counts[ending] > FRAMES // 50 for ending in Ending), counts
    assert sum(case.codes is not None for case in cases) > FRAMES // 10
    assert cases_of(3, 700) == cases_of(3, 700) != cases_of(4, 700)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "gone", "phase"),
    [
        (
            ClientSession,
            "is_upgrading",
            property(lambda _: False, lambda *_: None),
            Phase.OPEN_WITH_START_TLS,
        ),
        (
            Gate,
            "takes_early_tokens",
            property(lambda gate: gate._auth is not None),
            Phase.LAST_TOKEN_WITH_START_TLS,
        ),
    ],
)
def test_the_sweep_fails_without_a_guard_of_start_tls(
    owner: type, name: str, gone: property, phase: Phase
) -> None:
    batch = next(
        batch for batch in batches(SEED, FRAMES) if any(one.phase is phase for one in batch.conversations)
    )
    kept = tuple(one for one in batch.conversations if one.phase is phase)[:1]
    batch = attrs.evolve(batch, conversations=kept)
    assert run_batch(SEED, batch) is None
    with mock.patch.object(owner, name, gone, create=True):
        report = run_batch(SEED, batch)
    assert report is not None
    assert "in clear text" in report


@pytest.mark.slow
def test_the_command_sends_one_batch_or_one_conversation_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "5", "--batch", "1", "--conversation", "2"]) == 0
    assert "passes" in capsys.readouterr().out
