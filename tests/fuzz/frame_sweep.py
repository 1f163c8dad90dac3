"""``python -m tests.fuzz.frame_sweep``: requests of every shape, in every phase of a connection, to a bookie.

Inside: what is sent in which order, the batches, the report of a failure. Not inside: the requests
(``frame_cases``), the conversations (``frame_talk``), the bookie (``frame_world``).
Always: one seed gives the same conversations again; each shape comes once before any comes twice.

Exit codes: 0 nothing failed, 1 a conversation failed.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import attrs
import trio

from ledger.catalog.paths import Layout
from ledger.codes import Operation
from tests.fuzz.frame_cases import Case, Ending, Shape, draw_case, shapes
from tests.fuzz.frame_talk import UPGRADING, Mode, Phase, converse
from tests.fuzz.frame_world import World, open_world, place_of

BATCH_FRAMES = 1000  # of one bookie
OPEN_SHARE = 3  # batches of an open port for each one of another mode
ENDING_S = 20.0  # for a bookie that ends
_FIRST_LEDGER, _HONEST_LEDGERS = 1_000_000, 900_000
_LAYOUTS = (Layout.FLAT, Layout.HIERARCHICAL, Layout.LONG_HIERARCHICAL, Layout.LEGACY_HIERARCHICAL)
_MODES = (*(Mode.OPEN,) * OPEN_SHARE, Mode.AUTH, Mode.TLS, Mode.OPEN_TLS)


@attrs.frozen
class Conversation:
    """What one connection sends."""

    phase: Phase
    cases: tuple[Case, ...]


@attrs.frozen
class Batch:
    """What one bookie gets."""

    number: int
    mode: Mode
    layout: Layout
    flush: bool  # the ledgers are on disk before the first conversation
    conversations: tuple[Conversation, ...]

    @property
    def frames(self) -> int:
        return sum(len(one.cases) for one in self.conversations)

    def first(self, count: int) -> Batch:
        """The first conversations of the batch, with about so many frames."""
        totals = itertools.accumulate(len(one.cases) for one in self.conversations)
        kept = [one for one, total in zip(self.conversations, totals, strict=True) if total <= count]
        return attrs.evolve(self, conversations=tuple(kept))


def batches(seed: int, count: int) -> Iterator[Batch]:
    """At least ``count`` frames."""
    walk = _walk(seed)
    for number in itertools.count():
        if count <= 0:
            return
        batch = _batch(seed, number, walk, min(count, BATCH_FRAMES))
        count -= batch.frames
        yield batch


def _walk(seed: int) -> Iterator[Shape]:
    """All shapes, shuffled, again and again."""
    every = shapes()
    for turn in itertools.count():
        random.Random(f"{seed} shapes {turn}").shuffle(every)
        yield from list(every)


def _batch(seed: int, number: int, walk: Iterator[Shape], count: int) -> Batch:
    rng = random.Random(f"{seed} batch {number}")
    mode, ledger_ids = _MODES[(seed + number) % len(_MODES)], itertools.count(_FIRST_LEDGER)
    found: list[Conversation] = []
    while count > 0:
        phase = rng.choice(mode.phases)
        size = min(rng.randint(1, 8), count)
        cases = [draw_case(rng, next(walk), next(ledger_ids)) for _ in range(size)]
        count -= size
        if phase in UPGRADING:  # an empty first token may wait for TLS; the phase sends another one
            cases = [case for case in cases if case.shape.operation is not Operation.AUTH]
        found += [Conversation(phase, tuple(part)) for part in _parts(cases)]
    flush = number // len(_MODES) % 2 == 1
    return Batch(number, mode, _LAYOUTS[number % len(_LAYOUTS)], flush, tuple(found))


def _parts(cases: list[Case]) -> Iterator[list[Case]]:
    """The cases, cut after each that may close its connection: those after it would not be read."""
    part: list[Case] = []
    for case in cases:
        part.append(case)
        if case.ending in (Ending.CLOSES, Ending.ANY):
            yield part
            part = []
    if part:
        yield part


async def _run(batch: Batch, directory: Path, said: list[Conversation]) -> str | None:
    """Why the batch failed, or None. The last of ``said`` is the conversation that failed."""
    async with open_world(batch.mode, batch.layout, directory) as world:
        try:
            return await _talk(world, batch, said)
        except (AssertionError, OSError) as exc:  # an honest step failed: perhaps the bookie is ending
            with trio.move_on_after(ENDING_S):
                await trio.sleep_forever()  # its own error says more
            return f"an honest client is not served: {place_of(exc)}"


async def _talk(world: World, batch: Batch, said: list[Conversation]) -> str | None:
    cases = [case for one in batch.conversations for case in one.cases]
    await world.prepare(cases, flush=batch.flush)
    for conversation in batch.conversations:
        said.append(conversation)
        reason = await converse(
            world.address, batch.mode, conversation.phase, conversation.cases, world.context
        )
        reason = reason or world.fault() or await world.check()
        if reason is not None:
            return reason
    said.clear()
    return await world.check_batch(cases, _HONEST_LEDGERS + batch.number) or world.fault()


def run_batch(seed: int, batch: Batch) -> str | None:
    """The report of the batch's failure, or None."""
    said: list[Conversation] = []
    with tempfile.TemporaryDirectory(prefix="dlog-sweep-") as directory:
        try:
            reason = trio.run(_run, batch, Path(directory), said)
        except Exception as exc:  # an error of the bookie, which has ended
            reason = f"the bookie ended: {place_of(exc)}"
    if reason is None:
        return None
    number = batch.conversations.index(said[-1]) if said else None
    return _report(seed, batch, number, reason)


def _report(seed: int, batch: Batch, number: int | None, reason: str) -> str:
    lines = [f"FAILED frame_sweep: {reason}"]
    lines.append(
        f"  seed {seed}, batch {batch.number}, port with {batch.mode.value}, layout {batch.layout.value}"
    )
    command = f"python -m tests.fuzz.frame_sweep --seed {seed} --batch {batch.number}"
    if number is not None:
        command += f" --conversation {number}"
        lines.append(f"  connection {batch.conversations[number].phase.value}")
        lines += [f"  {case}" for case in batch.conversations[number].cases]
    return "\n".join([*lines, f"  replay: {command}"])


def sweep(seed: int, count: int) -> list[str]:
    """Send so many frames; the reports of what failed, at most one of each batch."""
    reports = (run_batch(seed, batch) for batch in batches(seed, count))
    return [report for report in reports if report is not None]


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.frame_sweep", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=20_000, help="frames to send (default 20,000)")
    parser.add_argument("--batch", type=int, help="only this batch")
    parser.add_argument("--conversation", type=int, help="only this conversation of the batch")
    options = parser.parse_args(arguments)
    if options.batch is None:
        reports = sweep(options.seed, options.count)
    else:
        every = batches(options.seed, (options.batch + 1) * BATCH_FRAMES)
        batch = next(one for one in every if one.number == options.batch)
        if options.conversation is not None:
            batch = attrs.evolve(batch, conversations=(batch.conversations[options.conversation],))
        report = run_batch(options.seed, batch)
        reports = [] if report is None else [report]
    print("\n".join(reports) or "every conversation passes")
    return 1 if reports else 0


if __name__ == "__main__":
    sys.exit(main())
