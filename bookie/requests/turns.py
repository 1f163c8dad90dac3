"""Turns: all connections together do a bounded amount of work in one step of the loop.

Trio runs every task that is ready before it looks for events and timers again. Work that is cheap on one
connection is expensive on a hundred of them. So each piece of work is charged, in units, to one budget. When
the budget of a step is spent, other connections wait for the next steps, in the order in which they came.

Inside: the budget of a step, the order of waiting tasks, the cost of each kind of work. Not inside: the work
(``connection``, ``deferred_work``, ``long_polls``).
Always: one step does at most ``units_max`` units and one more piece of work. Tasks get their turns in the
order in which they began to wait, so no connection waits for ever. Without a shortage, work costs one
addition, and no clock, task or event.
"""

from __future__ import annotations

import heapq
import itertools

import trio

# A unit is what one plain add or plain read takes: 1 to 3 microseconds on one core of a small machine.
STEP_UNITS = 4096
SLOW_FRAME_UNITS = 16  # any other request, and the reply to a long poll
READ_UNITS = 16  # a read that waits for the disk, or finds that it need not
UNIT_BYTES = 4096  # received bytes are copied and compared
HANDSHAKE_UNITS = 256  # received bytes of a TLS handshake: a signature, 0.5 to 1 ms
CLOSE_UNITS = 128  # the end of a connection: its tasks, 0.1 to 0.3 ms


class Turns:
    """See the module. On the loop."""

    def __init__(self, units_max: int = STEP_UNITS) -> None:
        self.lists = trio.Semaphore(1)  # lists of entries are made one after the other, in a thread
        self.is_spent = False  # call ``wait`` before any work; also while other tasks wait for their turn
        self.step = 0  # increases with each shortage, and with each step of one
        self._units_max = units_max
        self._used_units = 0
        self._waiting: dict[int, tuple[int, trio.lowlevel.Task]] = {}  # by ticket: units, task
        self._order: list[int] = []  # a heap of tickets; those of cancelled tasks are left in it
        self._tickets = itertools.count(1)
        self._next_step: _NextStep | None = None  # while it watches the loop

    def __repr__(self) -> str:
        return f"<Turns, {self._used_units} of {self._units_max} units used, {len(self._waiting)} waiting>"

    def charge(self, units: int) -> None:
        """Count work that was done, or is done in this step."""
        # The units of several steps add up until a task waits: so no step needs to be watched without a
        # shortage. The price is a wait of one step for each budget.
        self._used_units = used_units = self._used_units + units
        if used_units >= self._units_max and not self.is_spent:
            self.is_spent = True
            self.step += 1

    async def take(self, units: int) -> None:
        """Charge work that is done next, in a later step if the budget of this one is spent.

        A cancelled call has charged nothing.
        """
        turn = 0
        while self.is_spent and not self.has_turn(turn):
            turn = await self.wait(units)
        self.charge(units)

    def has_turn(self, turn: int) -> bool:
        """True if the task that got this turn may continue without waiting."""
        return turn == self.step and self._used_units < self._units_max

    async def wait(self, units: int) -> int:
        """Let the loop continue; return when it is this task's turn, in a later step.

        A cancelled call has no effect.

        Args:
            units: What the work costs at least.

        Returns:
            The turn, for ``has_turn``.
        """
        ticket = next(self._tickets)

        def leave(_raise_cancel: object) -> trio.lowlevel.Abort:
            del self._waiting[ticket]
            return trio.lowlevel.Abort.SUCCEEDED

        while True:
            self._waiting[ticket] = units, trio.lowlevel.current_task()
            heapq.heappush(self._order, ticket)
            self.is_spent = True
            if self._next_step is None:
                self._next_step = _NextStep(self)
                trio.lowlevel.add_instrument(self._next_step)
            self._keep_awake()
            await trio.lowlevel.wait_task_rescheduled(leave)
            # If another task has used more than it announced, this one keeps its ticket.
            if self._used_units < self._units_max:
                return self.step

    def _keep_awake(self) -> None:
        """While tasks wait for a turn, the loop must not wait for events."""
        if self._waiting:
            # In each step again: a call that runs later in this step does not wake the loop for the next one.
            trio.lowlevel.current_trio_token().run_sync_soon(self._keep_awake, idempotent=True)

    def _begin_step(self) -> None:
        """A step begins: give turns to as many tasks as have work for it."""
        self.step += 1
        self._used_units = 0
        left = self._units_max
        while self._waiting and left > 0:
            waiting = self._waiting.pop(heapq.heappop(self._order), None)
            if waiting is not None:
                left -= waiting[0]
                trio.lowlevel.reschedule(waiting[1])
        if not self._waiting:
            self._order.clear()
            self.is_spent = False
            assert self._next_step is not None  # it is the caller
            trio.lowlevel.remove_instrument(self._next_step)
            self._next_step = None


class _NextStep(trio.abc.Instrument):
    """Calls ``Turns`` between two steps of the loop, while it is needed."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def after_io_wait(self, timeout: float) -> None:
        self._turns._begin_step()
