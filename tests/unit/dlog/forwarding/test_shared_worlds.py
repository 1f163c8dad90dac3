"""Shared writers in worlds: the power fails, a program dies, and each record is stored once."""

# covers: dlog/forwarding/meeting.py

from __future__ import annotations

from collections import Counter

import pytest
import trio

import dlog
from dlog.testing import World, open_world
from tests.effort import sampled

pytestmark = pytest.mark.slow


PROGRAMS, RECORDS = 3, 25


async def write(uri: str, name: str, acknowledged: list[bytes], stop: trio.Event) -> None:
    """Append records one after another; if ``stop`` is set the program dies without closing anything."""
    with trio.CancelScope() as scope:

        async def die() -> None:
            await stop.wait()
            scope.cancel()

        async with (
            trio.open_nursery() as nursery,
            dlog.open_namespace(uri) as namespace,
            namespace.open_writer("log", create=True, shared=True) as writer,
        ):
            nursery.start_soon(die)
            for number in range(RECORDS):
                payload = f"{name} {number}".encode()
                await writer.append(payload)
                acknowledged.append(payload)
            nursery.cancel_scope.cancel()


async def write_together(uri: str, acknowledged: list[bytes], dies_after: int | None = None) -> None:
    """Several programs; the first one dies when this many records are acknowledged."""
    stops = [trio.Event() for _ in range(PROGRAMS)]
    # The program that opened the namespace first has the bookie, and stays.
    async with dlog.open_namespace(uri), trio.open_nursery() as nursery:
        for number, stop in enumerate(stops):
            nursery.start_soon(write, uri, f"p{number}", acknowledged, stop)
        if dies_after is not None:
            while len(acknowledged) < dies_after:  # noqa: ASYNC110
                await trio.sleep(0.001)
            stops[0].set()


async def create(uri: str) -> None:
    async with dlog.open_namespace(uri) as namespace:
        await namespace.create_log("log")


def check(world: World, acknowledged: list[bytes]) -> list[bytes]:
    """Once, in the order of each program, nothing acknowledged is missing; return the records."""
    world.history.check()
    stored = [record.payload for record in world.records("log")]
    assert [payload for payload, times in Counter(stored).items() if times > 1] == []
    assert set(acknowledged) <= set(stored)
    for name in (b"p%d" % number for number in range(PROGRAMS)):
        numbers = [int(each.split()[1]) for each in stored if each.startswith(name)]
        assert numbers == list(range(len(numbers)))
    return stored


def test_all_programs_of_a_world_write_one_log() -> None:
    with open_world(1) as world:
        acknowledged: list[bytes] = []
        world.run(write_together, world.uri, acknowledged)
        assert len(check(world, acknowledged)) == PROGRAMS * RECORDS


@pytest.mark.parametrize("dies_after", sampled(range(0, 40, 2)))
def test_a_program_that_dies_at_any_moment_costs_no_other_program_a_record(dies_after: int) -> None:
    with open_world(dies_after) as world:
        acknowledged: list[bytes] = []
        world.run(write_together, world.uri, acknowledged, dies_after)
        stored = check(world, acknowledged)
        assert len([each for each in stored if not each.startswith(b"p0")]) == (PROGRAMS - 1) * RECORDS


@pytest.mark.parametrize("step", sampled(range(1, 240, 6)))
def test_after_a_power_cut_at_any_step_the_log_has_what_was_acknowledged_once(step: int) -> None:
    with open_world(step) as world:
        acknowledged: list[bytes] = []
        world.run(create, world.uri)
        with world.power_cut_after(step):
            world.run(write_together, world.uri, acknowledged)
        check(world, acknowledged)
        world.run(write_together, world.uri, [])
        payloads = [record.payload for record in world.records("log")]
        assert len(payloads) >= PROGRAMS * RECORDS
