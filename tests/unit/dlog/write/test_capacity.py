"""When a caller that waits for capacity goes on: woken seldom, and never left waiting."""

from __future__ import annotations

from typing import Any, cast

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from dlog.errors import WriteError, WriterClosedError
from dlog.write.capacity import Capacity
from dlog.write.writer_machine import WriterMachine
from dlog.write.writer_state import Phase

BYTES_MAX = 100


class SlowLedger:
    """A ledger in use that keeps too many bytes for a slow replica until the test says otherwise."""

    def __init__(self) -> None:
        self.has_room = trio.Event()

    @property
    def handle(self) -> SlowLedger:
        return self

    async def wait_bytes_in_flight_below(self, bytes_max: int) -> None:
        assert bytes_max == 2 * BYTES_MAX
        await self.has_room.wait()


@attrs.define
class Machine:
    """What ``Capacity`` asks of the machine of a writer."""

    waiting_bytes: int = BYTES_MAX
    in_use: SlowLedger | None = None
    phase: Phase = Phase.RUNNING
    stopped: WriteError | None = None
    callers_wait: bool = False
    ledger_bytes_max: int = 2 * BYTES_MAX

    @property
    def is_full(self) -> bool:
        return self.waiting_bytes >= BYTES_MAX

    @property
    def is_over_limit(self) -> bool:
        return self.is_full or (self.in_use is not None and not self.in_use.has_room.is_set())


def capacity_of(machine: Machine) -> Capacity:
    return Capacity(cast("WriterMachine", cast("Any", machine)), BYTES_MAX)


async def test_a_caller_goes_on_once_half_of_the_limit_is_free() -> None:
    machine = Machine()
    capacity = capacity_of(machine)
    gone_on: list[int] = []

    async def wait() -> None:
        await capacity.wait()
        gone_on.append(machine.waiting_bytes)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        for free in (0, 1, 49, 50):
            await wait_all_tasks_blocked()
            machine.waiting_bytes = BYTES_MAX - free
            capacity.free()
    assert gone_on == [50]
    assert capacity.wait_count == 1


async def test_the_machine_knows_whether_any_caller_waits() -> None:
    machine = Machine()
    capacity = capacity_of(machine)
    async with trio.open_nursery() as nursery:
        scopes = [trio.CancelScope(), trio.CancelScope()]

        async def wait(scope: trio.CancelScope) -> None:
            with scope:
                await capacity.wait()

        for scope in scopes:
            nursery.start_soon(wait, scope)
        await wait_all_tasks_blocked()
        seen = [machine.callers_wait]
        for scope in scopes:
            scope.cancel()
            await wait_all_tasks_blocked()
            seen.append(machine.callers_wait)
    assert seen == [True, True, False]


async def test_without_a_need_to_wait_it_returns_at_once_and_is_not_counted() -> None:
    machine = Machine(waiting_bytes=BYTES_MAX - 1)
    capacity = capacity_of(machine)
    await capacity.wait()
    assert (capacity.wait_count, machine.callers_wait) == (0, False)


async def test_a_caller_waits_for_a_slow_replica_by_its_ledger() -> None:
    ledger = SlowLedger()
    machine = Machine(waiting_bytes=0, in_use=ledger)
    capacity = capacity_of(machine)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(capacity.wait)
        await wait_all_tasks_blocked()
        assert not machine.callers_wait, "confirmed entries of other replicas do not wake it"
        ledger.has_room.set()


@pytest.mark.parametrize("is_slow_replica", [False, True])
async def test_a_caller_that_waits_when_the_writer_stops_gets_the_reason(is_slow_replica: bool) -> None:
    machine = Machine(waiting_bytes=0, in_use=SlowLedger()) if is_slow_replica else Machine()
    capacity = capacity_of(machine)

    async def wait() -> None:
        with pytest.raises(WriterClosedError):
            await capacity.wait()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        machine.stopped = WriterClosedError("orders")
        capacity.release()
    assert not machine.callers_wait
