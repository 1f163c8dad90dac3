"""A world for users' tests: power cuts, full, slow and damaged disks, and the history that finds a loss."""

# covers: dlog/testing/clock.py
# covers: dlog/testing/disk.py
# covers: dlog/testing/recording.py
# covers: dlog/testing/strategies.py

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

import dlog
import dlog.blocking
from bookie.journal.group_commit import WriteBatch
from bookie.journal.journal import Journal
from dlog.testing import HistoryViolationError, Rule, World, open_world
from dlog.testing.strategies import BATCHES, DLSNS, LOG_NAMES, NEAR_DLSNS
from namespace.log_name import check_log_name
from tests.effort import examples, sampled
from tests.places import ROOT


@pytest.fixture
def world() -> Iterator[World]:
    with open_world() as world:
        yield world


async def service(uri: str, payloads: tuple[bytes, ...] = (b"a", b"b", b"c")) -> None:
    async with dlog.open_namespace(uri) as namespace, namespace.open_writer("orders", create=True) as log:
        for payload in payloads:
            await log.append(payload)


async def read(uri: str, log: str = "orders") -> list[bytes]:
    async with dlog.open_namespace(uri) as namespace, namespace.open_reader(log, follow=False) as reader:
        return [record.payload async for record in reader]


def test_a_service_runs_on_a_world_as_on_a_directory(world: World) -> None:
    trio.run(service, world.uri)
    world.run(service, world.uri)
    assert world.run(read, world.uri) == [b"a", b"b", b"c"] * 2
    world.history.check()
    assert len(world.history.log("orders").submissions) == 6


async def answer(world: World, *, too_early: bool) -> None:
    async with (
        dlog.open_namespace(world.uri) as namespace,
        namespace.open_writer("orders", create=True) as log,
    ):
        pending = log.submit(b"a", txid=1)
        if too_early:
            world.acknowledge("orders", b"a", txid=1)
        await pending
        world.acknowledge("orders", b"a")


def test_an_answer_before_the_record_is_stored_is_found(world: World) -> None:
    trio.run(partial(answer, world, too_early=True))
    with pytest.raises(HistoryViolationError, match="acknowledged record b'a'") as caught:
        world.history.check()
    assert [problem.rule for problem in caught.value.problems] == [Rule.NOT_TOO_EARLY]


def test_an_answer_after_the_record_is_stored_is_right(world: World) -> None:
    trio.run(partial(answer, world, too_early=False))
    world.history.check()
    world.acknowledge("orders", b"a", txid=2)
    with pytest.raises(HistoryViolationError, match=r"record b'a' \(txid 2\)"):
        world.history.check()


def test_a_test_gets_the_records_that_a_program_finds_after_a_power_cut(world: World) -> None:
    trio.run(service, world.uri)
    world.cut_power()
    assert [record.payload for record in world.records("orders")] == [b"a", b"b", b"c"]
    with pytest.raises(dlog.LogNotFoundError):
        world.records("nothing")


@pytest.mark.slow
def test_a_power_cut_at_every_step_of_the_disk_loses_nothing_that_was_acknowledged(world: World) -> None:
    step, cut = 0, world.power_cut_after(1)
    while step == 0 or cut.was_cut:
        step += 1
        with world.power_cut_after(step) as cut:
            trio.run(service, world.uri)
        world.history.check()
    assert step > 30
    assert world.history.log("orders").last_acknowledged is not None


def test_power_cuts_at_some_steps_lose_nothing_that_was_acknowledged(world: World) -> None:
    for step in (1, 2, 9, 17, 18, 40):
        with world.power_cut_after(step) as cut:
            trio.run(service, world.uri)
        assert cut.was_cut
        world.history.check()


@pytest.mark.slow
def test_a_store_that_acknowledges_before_it_syncs_is_found(world: World) -> None:
    original = Journal.submit

    def submit(self: Journal, batch: WriteBatch) -> None:
        batch.sync = False
        original(self, batch)

    def cut_at_each_step() -> None:
        for step in range(10, 60):
            with world.power_cut_after(step):
                trio.run(service, world.uri)
            world.history.check()

    with patch.object(Journal, "submit", submit), pytest.raises(HistoryViolationError) as caught:
        cut_at_each_step()
    assert Rule.NO_LOSS in {problem.rule for problem in caught.value.problems}


async def test_a_power_cut_inside_a_running_loop_ends_the_block_alone(world: World) -> None:
    with world.power_cut_after(20) as cut:
        await service(world.uri)
        pytest.fail("the service goes on")
    assert cut.was_cut
    await service(world.uri, (b"d",))
    await world.judge()
    assert (await read(world.uri))[-1] == b"d"


def test_a_program_of_the_blocking_api_gets_errors_after_a_power_cut(world: World) -> None:
    def program() -> None:
        with (
            dlog.blocking.open_namespace(world.uri) as namespace,
            namespace.open_writer("orders", create=True) as log,
        ):
            for number in range(50):
                log.append(b"%d" % number)

    with world.power_cut_after(30) as cut:
        program()
    assert cut.was_cut
    program()
    world.history.check()


def test_a_program_that_ends_before_the_step_is_not_cut(world: World) -> None:
    with world.power_cut_after(10_000) as cut:
        trio.run(service, world.uri)
    assert not cut.was_cut
    with pytest.raises(ValueError, match="the first step is 1"):
        world.power_cut_after(0)


def test_an_assertion_of_the_test_comes_out_of_the_block(world: World) -> None:
    def program() -> None:
        with world.power_cut_after(5) as cut:
            try:
                trio.run(service, world.uri)
            finally:
                assert not cut.was_cut, "mine"

    with pytest.raises(AssertionError, match="mine"):
        program()


def test_a_full_disk_refuses_records_and_takes_them_again_later(world: World) -> None:
    world.run(service, world.uri)
    with world.full_disk(), pytest.raises((dlog.DLogError, ExceptionGroup)):
        world.run(service, world.uri, tuple(bytes(90_000) for _ in range(40)))
    world.run(service, world.uri, (b"later",))
    world.history.check()
    assert world.run(read, world.uri)[-1] == b"later"


async def append_each(writer: dlog.LogWriter, payloads: list[bytes]) -> None:
    for payload in payloads:
        await writer.append(payload)


async def is_taken(writer: dlog.LogWriter, payload: bytes) -> bool:
    try:
        await writer.reopen()
        await writer.append(payload)
    except dlog.DiskFullError:
        return False
    return True


def test_the_same_namespace_goes_on_when_a_full_disk_has_space_again(world: World) -> None:
    async def main() -> None:
        async with (
            dlog.open_namespace(world.uri) as namespace,
            namespace.open_writer("orders", create=True) as writer,
        ):
            await writer.append(b"0")
            with world.full_disk():
                with pytest.raises(dlog.DiskFullError):
                    await append_each(writer, [bytes(90_000)] * 40)
                assert await read(world.uri) == [b"0"]
            for _ in range(100):
                if await is_taken(writer, b"later"):
                    break
                await trio.sleep(0.1)

    world.run(main)
    world.history.check()
    assert world.run(read, world.uri)[-1] == b"later"


@pytest.mark.slow
@pytest.mark.parametrize("full_after", sampled([1, 2, 5, 9, 14, 20], 2))
def test_full_at_any_write_freed_in_small_steps_and_opened_twenty_times(full_after: int) -> None:
    with open_world(full_after) as world:
        world.run(service, world.uri)
        with world.full_disk(after_writes=full_after), suppress(dlog.DLogError, ExceptionGroup):
            world.run(service, world.uri, tuple(bytes(20_000) for _ in range(60)))
        for number in range(20):
            with world.full_disk(after_writes=number % 4):
                with suppress(dlog.DLogError, ExceptionGroup):
                    world.run(service, world.uri, (b"%d" % number,))
                world.run(read, world.uri)
        world.run(service, world.uri, (b"later",))
        world.history.check()
        assert world.run(read, world.uri)[-1] == b"later"


def test_a_slow_disk_takes_virtual_time(world: World) -> None:
    async def timed() -> float:
        began = trio.current_time()
        await service(world.uri)
        return trio.current_time() - began

    fast = world.run(timed)
    with world.slow_disk(30.0):
        assert world.run(timed) > fast + 10


def test_damage_is_an_error_of_the_reader_and_never_another_record(world: World) -> None:
    world.run(service, world.uri, (b"x" * 1000,) * 5)
    world.run(service, world.uri)  # the second start has flushed the first records
    for _ in range(60):
        assert world.damage() is not None
    with pytest.raises((dlog.DLogError, ExceptionGroup)):
        world.run(read, world.uri)
    assert world.history.problems == []


def test_a_log_deleted_and_created_again_begins_a_new_history(world: World) -> None:
    async def delete(uri: str) -> None:
        async with dlog.open_namespace(uri) as namespace:
            await namespace.delete_log("orders")

    world.run(service, world.uri)
    world.run(delete, world.uri)
    world.run(service, world.uri, (b"new",))
    world.history.check()
    assert [len(life.submissions) for life in world.history.logs["orders"]] == [3, 1]


@pytest.mark.slow
def test_the_example_of_a_dictionary_keeps_every_change_over_power_cuts(world: World) -> None:
    open_store = importlib.import_module("examples.write_ahead_log").open_store
    stored: dict[str, str] = {}

    async def change(first: int) -> None:
        async with open_store(world.uri) as store:
            for number in range(first, first + 5):
                await store.set(f"key {number}", "value")
                stored[f"key {number}"] = "value"

    async def values() -> dict[str, str]:
        async with open_store(world.uri) as store:
            found: dict[str, str] = store.values
            return found

    for step in (7, 23, 31, 44):
        with world.power_cut_after(step):
            trio.run(change, step)
        assert stored.items() <= world.run(values).items()
    world.history.check()


@settings(max_examples=examples(30))
@given(LOG_NAMES, BATCHES, st.lists(DLSNS | NEAR_DLSNS, min_size=2))
def test_strategies_draw_what_the_library_takes(
    name: str, batch: list[bytes], dlsns: list[dlog.DLSN]
) -> None:
    assert check_log_name(name) == name
    assert all(dlog.DLSN.from_text(dlsn.to_text()) == dlsn for dlsn in dlsns)
    assert batch


@pytest.mark.slow
def test_the_plugin_gives_the_fixture_and_imports_nothing_for_other_tests(tmp_path: Path) -> None:
    (tmp_path / "test_shop.py").write_text(
        "import sys\n\n"
        "def test_without_it():\n"
        "    assert not {'dlog', 'trio', 'bookie'} & set(sys.modules)\n\n"
        "def test_with_it(dlog_world):\n"
        "    assert dlog_world.uri.startswith('file:///')\n"
        "    dlog_world.history.check()\n"
    )
    (tmp_path / "dlog_pytest").symlink_to(ROOT / "dlog" / "testing" / "plugin" / "dlog_pytest")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "dlog_pytest", "-p", "no:cacheprovider", "test_shop.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
    )
    assert "2 passed" in run.stdout, run.stdout + run.stderr
