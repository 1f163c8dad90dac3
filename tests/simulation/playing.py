"""Playing one world from its first start to its last comparison.

Inside: ``play`` and the result of a world. Not inside: the course of a world (``world``), many worlds
(``runs``).
Always: playing leaves nothing behind: neither logging nor garbage collection nor trio's scheduler is changed.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Mapping

import attrs

from tests.simulation.clockwork import run_repeatably
from tests.simulation.faults import Fault, enabled
from tests.simulation.shape import Shape
from tests.simulation.world import World


@attrs.frozen
class Outcome:
    """The result of one world."""

    seed: int
    violation: str | None  # the checker's name and its complaint
    digest: str
    virtual_s: float
    cpu_s: float
    counts: Mapping[str, int]
    confirmed: int
    lines: tuple[str, ...]
    plan: tuple[Fault, ...]


def play(
    seed: int,
    *,
    switches: Mapping[str, bool] | None = None,
    plan: tuple[Fault, ...] | None = None,
    shape: Shape | None = None,
    keep: bool = False,
    prepare: Callable[[World], None] | None = None,
    world_type: type[World] | None = None,
) -> Outcome:
    """Play one world to its end.

    Args:
        switches: Kinds of faults to switch on or off; the others have their defaults.
        plan: Use these faults instead of drawing them from the seed.
        shape: Use this shape instead of drawing it from the seed.
        keep: Keep the trace's lines.
        prepare: Called with the world before it begins. Known bugs and tests change the world there.
        world_type: The kind of world; its ``draw_shape`` draws the shape.
    """
    world_type = world_type or World
    began = time.process_time()
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    collects = gc.isenabled()
    gc.disable()  # the collector takes a seventh of the time; it runs once, afterwards
    try:
        kinds = enabled(switches or {})
        shape = shape or world_type.draw_shape(seed, kinds)
        outcome = _run(world_type(shape, plan, kinds, keep=keep, prepare=prepare))
    finally:
        logging.disable(disabled)
        if collects:
            gc.enable()
    if collects:
        gc.collect(0)  # the world is unreachable now and is freed as a whole
    return attrs.evolve(outcome, cpu_s=time.process_time() - began)


def _run(world: World) -> Outcome:
    """Run a world and return its outcome; ``play`` adds the CPU time."""
    try:
        run_repeatably(world.timeline, world.run)
    except BaseExceptionGroup as group:
        world.violate("no_process_ends_by_a_bug", f"the world itself: {group!r}")
        if world.timeline.failure is None and any(not isinstance(e, Exception) for e in group.exceptions):
            raise
    if world.timeline.failure is not None:
        world.violate("no_process_ends_by_a_bug", _failure_text(world.timeline.failure))
    return Outcome(
        seed=world.shape.seed,
        violation=world.violation,
        digest=world.trace.digest,
        virtual_s=world.now(),
        cpu_s=0.0,
        counts=dict(world.counts),
        confirmed=world.confirmed,
        lines=tuple(world.trace.lines),
        plan=world.plan,
    )


def _failure_text(error: BaseException) -> str:
    import traceback

    return "".join(traceback.format_exception(error))[-1500:]
