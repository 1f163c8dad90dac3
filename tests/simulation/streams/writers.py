"""Writers of a log, which take it over from each other.

Inside: the ways to append (``Plan`` has the records that must be stored once), truncating, closing. Not
inside: the records' outcomes (``dlog.testing.recording``).
"""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import trio

from dlog.errors import (
    DLogError,
    LogNotFoundError,
    LogWriteError,
    PositionConflictError,
    RecordOutcome,
    TxidOutOfOrderError,
    WriteError,
    WriterClosedError,
)
from dlog.forwarding.shared_writer import SharedLogWriter
from dlog.namespace_handle import Namespace
from dlog.statistics_names import RECORDS_REPEATED
from dlog.testing.recording import WriterRecorder
from dlog.write.log_writer import LogWriter
from ledger.causes import cause_of
from namespace.dlsn import DLSN
from tests.simulation.clients import OperationEndedError
from tests.simulation.streams.large import PAYLOAD_BYTES_MAX, RECORD_BYTES_MAX, padding_bytes
from tests.simulation.streams.process import StreamProcess
from tests.simulation.streams.requests import truncate
from tests.simulation.streams.rules import (
    a_reopened_writer_has_told_every_outcome,
    a_reopened_writer_is_behind_every_durable_record,
    attributes_for,
)
from tests.simulation.streams.sharing import TXID, SharedRecorder

if TYPE_CHECKING:
    from tests.simulation.streams.world import StreamWorld

REOPENINGS_MAX = 4  # attempts, since another writer may have the lock


@attrs.define(eq=False)
class Plan:
    """The records that the writers of one log store once, in order. An application keeps it elsewhere."""

    life: int = 0  # of the log; a log created again begins a new plan
    number: int = 0  # of the record to store next
    last: DLSN | None = None  # conditional appends: the position of the last record


class LogWriterProcess(StreamProcess):
    """Becomes the log's writer, writes for a while, and begins again."""

    def __init__(self, world: StreamWorld, name: str, rng: random.Random, log: str) -> None:
        super().__init__(world, name, rng, log)
        self.written = 0
        self._is_idle = False

    def kick(self) -> None:
        """End the pause before the next session, if there is one."""
        if self._is_idle:
            self.wake.set()

    async def work(self, namespace: Namespace) -> None:
        self._is_idle = True
        await self.pause(self.rng.choice([0.02, 0.3, 1.0, 3.0]) * self.rng.random())
        self._is_idle = False
        if not self.world.is_ending:
            await self.do(f"write {self.log}", partial(self._write, namespace))

    async def _write(self, namespace: Namespace) -> None:
        rng, world = self.rng, self.world
        rule = world.shape.rule()
        async with namespace.open_writer(self.log, create=True, shared=world.shape.shares) as writer:
            life = self.life
            shared = writer if isinstance(writer, SharedLogWriter) else None
            recorder: Any = WriterRecorder(writer, life) if shared is None else SharedRecorder(shared, life)
            world.trace.note(self.name, f"writes {self.log}")
            world.counts["log writer"] += 1
            if rule is not None:
                world.requests_of(life).retains = True
                await self.do("set retention", partial(namespace.retention.set, self.log, rule))
            for _ in range(rng.randint(1, world.shape.rounds_max)):
                if world.is_ending or life.is_deleted:
                    break
                try:
                    match world.shape.mode:
                        case "once":
                            await self._append_once(writer)
                        case "conditional":
                            await self._append_after(writer, recorder)
                        case _:
                            await self._append(writer)
                except OperationEndedError as exc:
                    world.check_history()
                    if shared is not None:
                        world.counts["shared append that failed"] += 1
                        break
                    if world.shape.reopens and isinstance(cause_of(exc), WriteError):
                        if not await self._reopen(writer, recorder):
                            break
                    elif isinstance(cause_of(exc), DLogError) or rng.random() < 0.5:
                        break  # else: the writer goes on after a cancelled call
                world.check_history()
                if shared is not None:
                    world.counts["owner" if shared.is_owner else "forwarder"] += 1
                    world.counts["repeated record"] = max(world.counts["repeated record"], _repeated(shared))
                if rng.random() < world.shape.truncation / 10:
                    await truncate(self, writer.truncate)
                if rng.random() < 0.4:
                    await self.pause(rng.expovariate(1) * world.shape.pause_s)
            if shared is None:
                machine = writer._machine
                world.counts["segment on fewer bookies"] += machine.degraded_count
                is_whole = machine.in_use is not None and machine.in_use.asked is None
                world.counts["rolled to a full ensemble"] += (
                    is_whole and machine.degraded_count > 0 and machine.roll_count > 0
                )
            if rng.random() < 0.2:
                await self.pause(rng.uniform(0.2, 4))  # idle, perhaps until another writer takes over

    async def _reopen(self, writer: LogWriter, recorder: WriterRecorder) -> bool:
        """Reopen a writer that has stopped; True if it goes on in the same life of the log."""
        world, life = self.world, recorder.history
        for _ in range(REOPENINGS_MAX):
            await self.pause(self.rng.choice([0.0, 0.2, 2.0]) * self.rng.random())
            if world.is_ending or life.is_deleted:
                return False
            was_stopped = writer._machine.stopped is not None
            before = list(recorder.submissions)
            durable = [each.txid for each in life.submissions if each.outcome is RecordOutcome.DURABLE]
            try:
                await self.do(f"reopen {self.log}", writer.reopen)
            except OperationEndedError as exc:
                if isinstance(cause_of(exc), WriterClosedError | LogNotFoundError):
                    return False
                continue
            world.counts["writer reopened"] += was_stopped
            if not was_stopped or life is not self.life or life.is_deleted:
                return not was_stopped
            complaint = a_reopened_writer_has_told_every_outcome(before)
            if complaint is not None:
                world.violate(a_reopened_writer_has_told_every_outcome.__name__, f"{self.name}: {complaint}")
            complaint = a_reopened_writer_is_behind_every_durable_record(writer.last_txid, durable)
            if complaint is not None:
                world.violate(
                    a_reopened_writer_is_behind_every_durable_record.__name__, f"{self.name}: {complaint}"
                )
            return True
        return False

    async def _append(self, writer: LogWriter) -> None:
        rng = self.rng
        ids: dict[str, Any] = {"txid": TXID} if self.world.shape.shares else {}
        match rng.choice(["append", "append", "submit", "many", "flush"]):
            case "append":
                payload = self._payload()
                await self.do("append", partial(writer.append, payload, **ids, **_attributes(payload)))
                self._count_large(payload)
            case "submit":
                try:
                    for _ in range(rng.randint(1, 5)):
                        payload = self._payload()
                        writer.submit(payload, **ids, **_attributes(payload))
                except DLogError as exc:
                    self.world.trace.note(self.name, f"submit: {exc}"[:200])
                    raise OperationEndedError(str(exc)) from exc
                if rng.random() < 0.5:
                    await trio.sleep(rng.random() * 0.05)
            case "many":
                payloads = [self._payload() for _ in range(rng.randint(1, 6))]
                is_atomic = rng.random() < 0.5
                keys, headers = zip(*map(attributes_for, payloads), strict=True)
                await self.do(
                    "append many",
                    partial(
                        writer.append_many,
                        payloads,
                        txids=[TXID] * len(payloads) if ids else None,
                        atomic=is_atomic,
                        keys=keys,
                        headers=headers,
                    ),
                )
            case _:
                await self.do("flush", writer.flush)

    async def _append_once(self, writer: LogWriter) -> None:
        plan = self._plan()
        number = plan.number
        payload = b"|%s/%d/once %d|" % (self.log.encode(), plan.life, number)
        if self.world.shape.is_large:  # the same bytes in each attempt
            room_bytes = RECORD_BYTES_MAX - len(payload)
            payload += bytes(min(room_bytes, padding_bytes(random.Random(number), len(payload))))
        try:
            await self.do(
                f"append once {number}",
                partial(writer.append_once, payload, txid=number, **_attributes(payload)),
            )
        except OperationEndedError as exc:
            is_refused = isinstance(cause_of(exc), TxidOutOfOrderError)
            is_mine = plan is self._plan() and plan.number == number
            if is_refused and is_mine and self.log not in self.world.ruins:
                self.world.violate(
                    "a_record_that_is_not_stored_can_be_stored", f"{self.name}: {cause_of(exc)}"
                )
            raise
        self._count_large(payload)
        if plan is self._plan():
            plan.number = max(plan.number, number + 1)

    async def _append_after(self, writer: LogWriter, recorder: WriterRecorder) -> None:
        plan = self._plan()
        number, last = plan.number, plan.last
        payload = b"|%s/%d/after %s, %d|" % (self.log.encode(), plan.life, str(last).encode(), number)
        txid = max(number, writer.last_txid)
        recorder.once(payload, txid)
        result: DLSN | None = None
        try:
            result = await self.do(
                f"append after {last}",
                partial(writer.append_after, payload, last, txid=txid, **_attributes(payload)),
            )
        except OperationEndedError as exc:
            conflict = cause_of(exc)
            if not isinstance(conflict, PositionConflictError):
                raise
            assert conflict.actual is None or isinstance(conflict.actual, DLSN)
            result = conflict.actual  # an earlier attempt, or another writer
            self.world.counts["position conflict"] += 1
        if plan is self._plan() and plan.number == number:
            plan.number, plan.last = number + 1, result

    def _plan(self) -> Plan:
        plan, life = self.world.plans[self.log], self.world.life_number(self.log)
        if plan.life != life:
            plan = self.world.plans[self.log] = Plan(life)
        return plan

    def _payload(self) -> bytes:
        self.written += 1
        head = f"|{self.log}/{self.world.life_number(self.log)}/{self.name}/{self.lives}/{self.written}|"
        if self.world.shape.is_large:
            return head.encode() + self.rng.randbytes(padding_bytes(self.rng, len(head)))
        return head.encode() + self.rng.randbytes(self.rng.choice([0, 0, 40, 300, 1500]))

    def _count_large(self, payload: bytes) -> None:
        if self.world.shape.is_large and len(payload) > PAYLOAD_BYTES_MAX:
            self.world.counts["large record"] += 1
            if len(payload) > RECORD_BYTES_MAX:
                self.world.violate(
                    "a_record_beyond_the_limit_is_refused", f"{self.name}: {len(payload)} bytes"
                )

    def failed(self, what: str, problem: Exception) -> None:
        super().failed(what, problem)
        if isinstance(problem, LogWriteError):
            self.world.counts["write that failed"] += 1


def _repeated(writer: SharedLogWriter) -> int:
    return writer._forward.counters()[RECORDS_REPEATED]


def _attributes(payload: bytes) -> dict[str, Any]:
    key, headers = attributes_for(payload)
    return {"key": key, "headers": headers}
