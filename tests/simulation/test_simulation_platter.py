"""``Platter.holds_durably`` returns the same as a full search, whatever happened to the disk before."""

# covers: dlog/testing/platter.py

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given

from dlog.testing.platter import NEAR_BYTES, Inode, Platter
from tests.simulation.clockwork import Timeline
from tests.simulation.trace import Trace
from tests.strategies import SEEDS

PATHS = [f"/{directory}/{name}" for directory in ("a", "b") for name in ("1", "2", "3")]


def new_platter(rng: random.Random) -> Platter:
    timeline = Timeline(0)
    return Platter("b0", timeline, rng, Trace(timeline.now, keep=False), Counter())


def holds_durably(platter: Platter, token: bytes) -> bool:
    """The twin: a full search without a cache."""
    return any(
        token in inode.durable
        for inode in platter.durable_names.values()
        if any(other is inode for other in platter.names.values())
    )


def some_tokens(rng: random.Random) -> list[bytes]:
    """Payloads as writers make them; some share their first bytes, and some have no mark."""
    heads = [b"|log0-w%d/%d/%d|" % (rng.randrange(2), rng.randrange(2), n) for n in range(4)]
    heads += [b"|" + b"x" * 40, b"no mark", b"a mark | inside"]
    return [head + rng.randbytes(rng.choice([0, 0, 3, 60, 600])) for head in heads for _ in range(2)]


class Story:
    """A random sequence of operations on a disk."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.platter = new_platter(rng)
        self.tokens = some_tokens(rng)
        self.copy = self.platter.snapshot()

    def go_on(self) -> None:
        platter, rng = self.platter, self.rng
        path = rng.choice(PATHS)
        inode = platter.names.get(path)
        match rng.randrange(14):
            case 0 | 1 | 2 | 3 | 4 if inode is not None:
                self._write_token(path)
            case 5 if inode is not None:
                inode.sync()
            case 6 | 7:
                platter.synced_names()
            case 8 if inode is not None:
                platter.change_names((path, None), (rng.choice(PATHS), inode))
            case 9 if inode is not None:
                platter.change_names((path, None))
            case 10:
                platter.flip_bit(lambda path: True, rng)
            case 11:
                platter.cut_power()
            case 12:
                self._copy()
            case 13 if rng.random() < 0.2:
                platter.lose_directory(Path(path).parent)
            case _:
                other = platter.names.get(rng.choice(PATHS))  # a second name of a file, or a new file
                platter.change_names((path, other or Inode()))

    def _write_token(self, path: str) -> None:
        rng, inode = self.rng, self.platter.names[path]
        data = rng.choice(self.tokens) + bytes(rng.choice([0, 0, 30, 2 * NEAR_BYTES]))
        offset = rng.choice([0, len(inode.now), rng.randrange(len(inode.now) + 100)])
        at = rng.randrange(len(data) + 1) if rng.random() < 0.5 else len(data)
        for part, where in ((data[:at], offset), (data[at:], offset + at)):
            inode.write(part, where)
            if rng.random() < 0.3:
                inode.sync_last()

    def _copy(self) -> None:
        if self.rng.random() < 0.5:
            self.copy = self.platter.snapshot()
        else:
            self.platter.restore(self.copy)


@given(seed=SEEDS)
def test_durable_bytes_are_found_as_by_a_full_search(seed: int) -> None:
    rng = random.Random(seed)
    story = Story(rng)
    for _ in range(80):
        story.go_on()
        for token in rng.sample(story.tokens, rng.choice([0, 1, 3])):
            expected = holds_durably(story.platter, token)
            assert story.platter.holds_durably(token) == expected


@pytest.mark.slow
def test_the_stories_keep_some_payloads_and_lose_others() -> None:
    answers: Counter[bool] = Counter()
    for seed in range(20):
        story = Story(random.Random(seed))
        for _ in range(80):
            story.go_on()
            answers.update(holds_durably(story.platter, token) for token in story.tokens)
    assert min(answers[True], answers[False]) > 2000


def test_a_flipped_bit_may_make_bytes_match() -> None:
    platter, inode = new_platter(random.Random(0)), Inode()
    platter.change_names((PATHS[0], inode))
    platter.synced_names()
    inode.write(b"}log0", 100)
    inode.sync()
    assert not platter.holds_durably(b"|log0")
    inode.flip(100, ord("|") ^ ord("}"))
    assert platter.holds_durably(b"|log0")
