"""Readers of a log, which follow it and commit cursors.

Inside: where they start, what they check of what they get. Not inside: comparing readers
(``dlog.testing.history``).
"""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING

from dlog.errors import DLogError, LogTruncatedError
from dlog.format.record import Record
from dlog.namespace_handle import Namespace
from dlog.read.log_reader import LogReader
from dlog.read.positioning import EARLIEST, LATEST, Start
from dlog.testing.history import LogHistory, ReaderHistory, Rule
from ledger.causes import cause_of
from namespace.dlsn import DLSN
from tests.simulation.clients import OperationEndedError
from tests.simulation.streams.process import StreamProcess
from tests.simulation.streams.rules import a_record_has_its_key_and_headers

if TYPE_CHECKING:
    from tests.simulation.streams.world import StreamWorld

CATCH_UP_S_MAX = 60.0  # after the records of the last writer are recovered


class LogReaderProcess(StreamProcess):
    """Follows the log for a while, and begins again where it was, or elsewhere."""

    def __init__(self, world: StreamWorld, name: str, rng: random.Random, log: str) -> None:
        super().__init__(world, name, rng, log)
        self.position: DLSN | None = None  # survives the process, as in a file
        self._history: ReaderHistory | None = None
        self._cursor: str | None = None  # of the present session
        self._has_caught_up = False
        self._deadline: float | None = None

    def is_done(self) -> bool:
        return self._has_caught_up

    async def work(self, namespace: Namespace) -> None:
        if self.world.is_ending:
            await self._catch_up(namespace)
            return
        await self.pause(self.rng.uniform(0, 1.0))
        await self.do(f"read {self.log}", partial(self._read, namespace, self.rng.randint(2, 25)))

    async def _catch_up(self, namespace: Namespace) -> None:
        world = self.world
        if not world.is_recovered:
            await self.do("wait for the last recovery", partial(world.timeline.sleep, 0.5))
            return
        if self._deadline is None:
            self._deadline = world.now() + CATCH_UP_S_MAX
        life = self.life
        is_there = await self.do("look for the log", partial(namespace.log_exists, self.log))
        if not is_there or self.log in world.ruins:
            self._has_caught_up = True
            return
        await self.do(f"read {self.log} to its end", partial(self._read, namespace, 0))
        last = life.last_acknowledged
        if last is None or (self.position is not None and self.position > last):
            self._has_caught_up = True
        elif world.now() > self._deadline:
            world.violate(
                "a_reader_gets_every_record_once_faults_stop",
                f"{self.name} is at {self.position}; {last} is acknowledged",
            )

    async def _read(self, namespace: Namespace, rounds: int) -> None:
        """Read for some rounds; 0: until everything acknowledged was read."""
        rng, world = self.rng, self.world
        self._forget_other_life()
        cursors = world.shape.cursors
        cursor = f"c{rng.randrange(cursors)}" if cursors and rng.random() < 0.6 and rounds else None
        self._cursor = cursor
        start: DLSN | int | Start = EARLIEST
        known = self.life.dlsns if world.shape.is_large and rounds else ()
        if known and rng.random() < 0.3:
            # Perhaps between the parts of a record: its position is that of its last part.
            at = rng.choice(known)
            start = DLSN(at.segment_seqno, max(0, at.entry_id - rng.randint(0, 3)), 0)
            world.counts["start before a record"] += 1
        elif self.position is not None and (rng.random() < 0.7 or not rounds):
            start = self.position
        elif rounds and rng.random() < 0.3:
            start = LATEST if rng.random() < 0.5 else self._some_txid()
        goes_on = start == self.position
        async with namespace.open_reader(self.log, start=start, cursor=cursor) as reader:
            if reader.cursor is not None:
                start, goes_on = reader.cursor.position, False
            history = self._history if goes_on else None
            first = None if isinstance(start, int) else reader.position
            count = 0
            while True:
                batch = await self.do("read batch", partial(reader.read_batch, rng.randint(1, 9), wait_s=0.7))
                for record in batch or ():
                    if history is None or self._is_of_a_ruin(history.log, record):
                        history = self._history_of(record, first)
                    self._check_life(history.log, record)
                    complaint = a_record_has_its_key_and_headers(record)
                    if complaint is not None:
                        world.violate(a_record_has_its_key_and_headers.__name__, f"{self.name}: {complaint}")
                    history.returned(record)
                    self._history, self.position = history, record.dlsn.next_slot()
                    world.counts["record read"] += 1
                if history is None and goes_on is False and reader.position is not None:
                    self.position = self.position or reader.position
                world.check_history()
                count += 1
                if cursor is not None and rng.random() < 0.5:
                    await self._commit(reader, cursor)
                if rounds:
                    if count >= rounds or world.is_ending:
                        return
                elif self._is_at_end(reader):
                    return
                if rng.random() < 0.2:
                    await self.pause(rng.expovariate(1) * world.shape.pause_s)

    def _is_at_end(self, reader: LogReader) -> bool:
        last = self.life.last_acknowledged
        if reader.position is not None and last is not None and reader.position > last:
            self.position = reader.position  # perhaps of a truncated log without a record
            return True
        assert self._deadline is not None
        return last is None or self.world.now() > self._deadline

    async def _commit(self, reader: LogReader, cursor: str) -> None:
        position = reader.position
        if position is None:
            return
        self.world.requests_of(self.life).commits.add((cursor, position))
        try:
            await self.do(f"commit {cursor} at {position}", reader.commit)
            self.world.counts["cursor commit"] += 1
        except OperationEndedError as exc:
            if isinstance(cause_of(exc), DLogError):
                self.world.counts["cursor commit refused"] += 1

    def _history_of(self, record: Record, start: DLSN | None) -> ReaderHistory:
        """A new history in the life that has the record: the log may have been created again meanwhile."""
        world = self.world
        for life in (self.life, *world.past_ruins[self.log], *reversed(world.logs_history.logs[self.log])):
            if life.has(record.txid, record.payload):
                return life.open_reader(self.name, start if life is self.life else None)
        return self.life.open_reader(self.name)

    def _is_of_a_ruin(self, life: LogHistory, record: Record) -> bool:
        """True if the record was submitted after the deletion of this life of the log began.

        A deletion that is interrupted leaves a log to which a writer may append. A reader goes on to its
        records.
        """
        key = record.txid, record.payload
        return not life.has(*key) and any(ruin.has(*key) for ruin in self.world.past_ruins[self.log])

    def _check_life(self, life: LogHistory, record: Record) -> None:
        if life.has(record.txid, record.payload) or self.log in self.world.ruins:
            return
        for other in self.world.logs_history.logs[self.log]:
            if other.has(record.txid, record.payload):
                life.complain(Rule.ONE_LOG, f"reader {self.name} returned {record.dlsn} of another life")
                return
        if self.world.shape.is_large and not self.world.shape.deletes:
            self.world.violate(
                "a_record_is_returned_whole",
                f"{self.name}: {record.dlsn} has {len(record.payload)} bytes that nobody submitted",
            )

    def _forget_other_life(self) -> None:
        if self._history is not None and self._history.log is not self.life:
            self._history = self.position = None

    def _some_txid(self) -> int:
        submissions = self.life.submissions
        return self.rng.choice(submissions).txid if submissions else 0

    def failed(self, what: str, problem: Exception) -> None:
        super().failed(what, problem)
        if isinstance(problem, LogTruncatedError):
            self._judge_truncation(problem)
        if isinstance(problem, DLogError):
            self._history = self.position = None

    def _judge_truncation(self, problem: LogTruncatedError) -> None:
        world, life = self.world, self.life
        requests = world.requests_of(life)
        world.counts["reader behind a truncation"] += 1
        if world.life_number(self.log) > 1 or life.is_deleted or requests.truncate is not None:
            return
        if not requests.retains:
            world.violate("nothing_is_truncated_without_a_request", f"{self.name}: {problem}")
        elif self._cursor is not None:
            # Another reader may have moved the cursor on, so that the records before it were given up.
            at = world.cursors_now(self.log).get(self._cursor)
            assert isinstance(problem.position, DLSN)
            if at is not None and problem.position >= at:
                world.violate(
                    "retention_leaves_every_cursor_readable", f"{self.name}, cursor {self._cursor}: {problem}"
                )
