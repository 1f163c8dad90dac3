"""A writer beside failing ledgers, lost replies of the metadata store, and a second writer that takes over.

The ledgers are scripted: they acknowledge in order and late, fail at any moment, and a recovery keeps any
prefix of the entries that were not acknowledged. Metadata is in the in-memory store, which loses replies. The
test checks the whole promise: the outcome that a caller got for each record is true of the log at the end.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import attrs
import trio
import trio.testing
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import dlog
from dlog.namespace_handle import Namespace
from ledger.errors import (
    LedgerClosedError,
    LedgerError,
    LedgerFencedError,
    LedgerRecoveryError,
    LedgerWriteError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
)
from namespace.errors import ConnectionLostError
from namespace.memory import MemoryStore, MemoryTree
from namespace.store import Operation, Stat
from tests.effort import examples
from tests.strategies import SEEDS


@attrs.define(eq=False)
class ScriptedLedger:
    """One ledger as its bookies hold it."""

    entries: list[bytes] = attrs.Factory(list)
    carried: list[int] = attrs.Factory(list)  # the LAC in each entry
    lac: int = -1
    closed_at: int | None = None
    is_fenced: bool = False
    writer: ScriptedWriteHandle | None = None


class ScriptedWriteHandle:
    """Stands in for ``ledger.handle.WriteHandle``."""

    def __init__(self, world: World, ledger_id: int) -> None:
        self.ledger_id, self.bytes_in_flight = ledger_id, 0
        self._world, self._ledger = world, world.ledgers[ledger_id]
        self._ledger.writer = self
        self._callbacks: list[Callable[[int, BaseException | None], None]] = []
        self._error: LedgerError | None = None
        self._pushed = -1
        self.poke = trio.Event()

    def submit(self, payload: bytes) -> int:
        if self._error is not None:
            raise self._error
        assert self._ledger.closed_at is None or self._ledger.is_fenced, "a closed ledger gets no entry"
        if not self._ledger.is_fenced:
            self._ledger.entries.append(payload)
            self._ledger.carried.append(self._ledger.lac)
        self._pushed += 1
        self.poke.set()
        return self._pushed

    def on_confirmed(self, callback: Callable[[int, BaseException | None], None]) -> None:
        self._callbacks.append(callback)

    def abandon(self) -> None:
        self.end(LedgerClosedError(self.ledger_id, "abandoned"))

    def end(self, error: LedgerError) -> None:
        if self._error is None:
            self._error = error
            self.poke.set()
            for callback in self._callbacks:
                callback(self._ledger.lac, error)

    def _has_ended(self) -> bool:
        return self._error is not None

    async def serve(self) -> None:
        """The bookies' side: acknowledge several entries at once, and fail at times."""
        rng, ledger = self._world.rng, self._ledger
        while not self._has_ended():
            await self.poke.wait()
            self.poke = trio.Event()
            while not self._has_ended() and ledger.lac < self._pushed:
                await trio.sleep(rng.random() * 0.02)
                if self._has_ended():
                    return
                if ledger.is_fenced:
                    self.end(LedgerFencedError(self.ledger_id, "a bookie refused an add as fenced"))
                elif rng.random() < self._world.failure_rate:
                    self.end(LedgerWriteError(self.ledger_id, "no ack quorum"))
                else:
                    ledger.lac = rng.randint(ledger.lac + 1, self._pushed)
                    for callback in self._callbacks:
                        callback(ledger.lac, None)

    async def close(self) -> None:
        await trio.sleep(0.001)
        ledger = self._ledger
        if self._world.rng.random() < self._world.failure_rate:
            raise LedgerWriteError(self.ledger_id, "whether it is closed is unknown")
        if ledger.closed_at is None:
            if ledger.is_fenced:
                raise LedgerFencedError(self.ledger_id, "in recovery")
            ledger.closed_at = ledger.lac
        elif ledger.closed_at != ledger.lac:
            raise LedgerFencedError(self.ledger_id, "closed elsewhere")
        self.end(LedgerClosedError(self.ledger_id, "closed"))


class ScriptedReadHandle:
    """Stands in for ``ledger.handle.ReadHandle``."""

    def __init__(self, ledger_id: int, ledger: ScriptedLedger) -> None:
        self.ledger_id, self._ledger = ledger_id, ledger

    async def __aenter__(self) -> ScriptedReadHandle:
        return self

    async def __aexit__(self, *exc: object) -> None:
        pass

    @property
    def is_closed(self) -> bool:
        return self._ledger.closed_at is not None

    @property
    def last_confirmed(self) -> int:
        ledger = self._ledger
        if ledger.closed_at is not None:
            return ledger.closed_at
        return max(ledger.carried[: ledger.lac + 1], default=-1)

    async def read_last_confirmed(self) -> int:
        await trio.lowlevel.checkpoint()
        return self.last_confirmed

    async def read_payloads(self, first: int, last: int, *, size_bytes_max: int | None = None) -> list[bytes]:
        assert 0 <= first <= last <= self.last_confirmed
        await trio.lowlevel.checkpoint()
        return self._ledger.entries[first : min(last, first + 2) + 1]

    async def wait_last_confirmed_beyond(self, entry_id: int, *, timeout_s: float) -> int:
        with trio.move_on_after(timeout_s):
            while self.last_confirmed <= entry_id and not self.is_closed:  # noqa: ASYNC110
                await trio.sleep(0.003)
        return self.last_confirmed


class World:
    """Ledgers and metadata, shared by all clients, and the random numbers behind their failures."""

    def __init__(self, seed: int, failure_rate: float, lost_reply_rate: float) -> None:
        self.rng = random.Random(seed)
        self.failure_rate, self.lost_reply_rate = failure_rate, lost_reply_rate
        self.ledgers: dict[int, ScriptedLedger] = {}
        self._ledger_ids = itertools.count()
        self.tree = MemoryTree()
        self.nursery: trio.Nursery | None = None
        self._wall_ms = 1_000
        self.hash_chain = False  # of all writers

    def wall_ms(self) -> int:
        self._wall_ms += self.rng.randint(-3, 5)  # a clock may go backwards
        return self._wall_ms

    def calm(self) -> None:
        self.failure_rate = self.lost_reply_rate = 0

    # The methods of the ledger client.

    async def create(self, **_: object) -> ScriptedWriteHandle:
        await trio.sleep(self.rng.random() * 0.01)
        if self.rng.random() < self.failure_rate:
            raise NotEnoughBookiesError(3, 2)
        ledger_id = next(self._ledger_ids)
        self.ledgers[ledger_id] = ScriptedLedger()
        handle = ScriptedWriteHandle(self, ledger_id)
        assert self.nursery is not None
        self.nursery.start_soon(handle.serve)
        return handle

    async def open(self, ledger_id: int, *, password: bytes, recover: bool) -> ScriptedReadHandle:
        await trio.sleep(self.rng.random() * 0.01)
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            raise NoSuchLedgerError(ledger_id)
        if recover and ledger.closed_at is None:
            ledger.is_fenced = True
            await trio.sleep(self.rng.random() * 0.01)
            if self.rng.random() < self.failure_rate:
                raise LedgerRecoveryError(ledger_id, "too few bookies")
            if ledger.closed_at is None:
                end = self.rng.randint(ledger.lac, len(ledger.entries) - 1)
                ledger.closed_at, ledger.entries = end, ledger.entries[: end + 1]
        return ScriptedReadHandle(ledger_id, ledger)

    async def delete(self, ledger_id: int) -> None:
        await trio.lowlevel.checkpoint()
        ledger = self.ledgers.pop(ledger_id, None)
        if ledger is not None and ledger.writer is not None:
            ledger.is_fenced = True


LOCK = "/ns/log/<default>/lock"


class FlakyStore(MemoryStore):
    """Loses the connection before or after it applies some writes."""

    world: World

    async def commit(self, operations: Sequence[Operation]) -> None:
        before, after = self._is_lost(), self._is_lost()
        if before:
            raise ConnectionLostError("/", "lost before")
        await super().commit(operations)
        if after:
            raise ConnectionLostError("/", "lost after")

    async def put(self, path: str, value: bytes, *, expected: int = -1) -> Stat:
        before, after = self._is_lost(), self._is_lost()
        if before:
            raise ConnectionLostError(path, "lost before")
        stat = await super().put(path, value, expected=expected)
        if after:
            raise ConnectionLostError(path, "lost after")
        return stat

    def _is_lost(self) -> bool:
        return self.world.rng.random() < self.world.lost_reply_rate


def namespace_in(world: World, name: str) -> tuple[FlakyStore, Namespace]:
    store = FlakyStore(world.tree)
    store.world = world
    config = dlog.NamespaceConfig(
        reader=dlog.ReaderConfig(relist_interval_s=0.5),
        writer=dlog.WriterConfig(
            entry_bytes_target=120,
            segment_bytes_max=600,
            retry_timeout_s=5,
            close_timeout_s=20,
            retry_pause_s=0.01,
            bytes_in_flight_max=2_000,
            hash_chain=world.hash_chain,
        ),
    ).for_scheme("distributedlog")
    client: Any = world
    return store, Namespace(
        f"test:{name}", store, client, "/ns", config, client_id=name, wall_ms=world.wall_ms
    )


@attrs.define
class KnownOutcome:
    """The outcome of one record as its caller got it."""

    payload: bytes
    outcome: dlog.RecordOutcome
    dlsn: dlog.DLSN | None = None


async def appender(
    world: World, writer: dlog.LogWriter, name: str, outcomes: list[KnownOutcome], looking: Namespace
) -> None:
    """Submit records in each way that a writer offers; note each outcome."""
    rng = world.rng
    for number in range(rng.randint(1, 12)):
        payloads = [b"%s-%d-%d" % (name.encode(), number, i) for i in range(rng.randint(1, 6))]
        await trio.sleep(rng.random() * 0.03)
        pendings: list[tuple[bytes, dlog.Pending]] = []
        try:
            match rng.randrange(4):
                case 0:
                    dlsns = await writer.append_many(payloads)
                    assert len(dlsns) == len(payloads)
                    outcomes += [
                        KnownOutcome(p, dlog.RecordOutcome.DURABLE, d)
                        for p, d in zip(payloads, dlsns, strict=True)
                    ]
                case 1:
                    payload = payloads[0]
                    try:
                        outcomes.append(
                            KnownOutcome(payload, dlog.RecordOutcome.DURABLE, await writer.append(payload))
                        )
                    except dlog.WriteError as exc:
                        outcomes.append(KnownOutcome(payload, exc.outcome))
                        raise
                case _:
                    for payload in payloads:
                        pendings.append((payload, writer.submit(payload)))
                    if rng.random() < 0.3:
                        await writer.flush()
                        seen = await looking.last_dlsn("log")
                        assert seen is not None
                        assert seen >= pendings[-1][1].dlsn, "flushed records are visible"
                    for payload, pending in pendings:
                        outcomes.append(KnownOutcome(payload, dlog.RecordOutcome.DURABLE, await pending))
                    pendings = []
        except dlog.WriteError:
            for payload, pending in pendings:
                while pending.outcome is dlog.RecordOutcome.PENDING:  # noqa: ASYNC110
                    await trio.sleep(0.01)
                durable = pending.outcome is dlog.RecordOutcome.DURABLE
                outcomes.append(KnownOutcome(payload, pending.outcome, pending.dlsn if durable else None))
            return


async def run_world(
    seed: int, failure_rate: float, lost_reply_rate: float, *, takeover: str | None, hash_chain: bool = False
) -> World:
    world = World(seed, failure_rate, lost_reply_rate)
    world.hash_chain = hash_chain
    outcomes: list[KnownOutcome] = []
    # Virtual seconds. The limit ends a caller whose record never settles.
    with trio.fail_after(120):
        log, live = await run_writers(world, outcomes, takeover)
    check(log, live, outcomes)
    if takeover is None and max(failure_rate, lost_reply_rate) <= 0.1:
        # No failure lasts as long as the retry timeout. So every record is durable; the writer never stops.
        assert {each.outcome for each in outcomes} == {dlog.RecordOutcome.DURABLE}
    return world


async def run_writers(
    world: World, outcomes: list[KnownOutcome], takeover: str | None
) -> tuple[list[dlog.Record], list[dlog.Record]]:
    """Write, take over, recover. Return the final log, and the records that a following reader saw."""
    world_rates = world.failure_rate, world.lost_reply_rate
    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        world.nursery = nursery
        setup, looking = namespace_in(world, "setup")
        await setup.create("/ns")
        world.calm()
        first_store, first = namespace_in(world, "first")
        _, second = namespace_in(world, "second")
        stack.push_async_callback(setup.aclose)
        await first.create_log("log")
        live: list[dlog.Record] = []

        async def follow() -> None:
            async with second.open_reader("log") as reader:
                async for record in reader:
                    live.append(record)

        nursery.start_soon(follow)

        async def write(namespace: Namespace, name: str) -> None:
            try:
                async with namespace.open_writer("log") as writer:
                    world.failure_rate, world.lost_reply_rate = world_rates
                    async with trio.open_nursery() as appenders:
                        for index in range(3):
                            appenders.start_soon(appender, world, writer, f"{name}{index}", outcomes, looking)
            except (dlog.WriteError, dlog.LogUnavailableError, dlog.NamespaceLostError):
                pass  # the test checks the outcome of each record

        async with trio.open_nursery() as writers:
            writers.start_soon(write, first, "a")
            if takeover:
                await trio.sleep(world.rng.random() * 0.3)
                if takeover == "session":
                    first_store.expire()
                else:
                    # The first writer cannot reach the metadata, so it does not learn that its lock is lost.
                    first_store.suspend()
                    for name in (await setup.children(LOCK)).names:
                        await setup.delete(f"{LOCK}/{name}")
                await write(second, "b")
                if takeover == "lock":
                    await trio.sleep(world.rng.random())
                    first_store.resume()
        world.calm()
        # The next writer recovers the log. After that its records are final.
        async with second.open_writer("log") as writer:
            outcomes.append(KnownOutcome(b"last", dlog.RecordOutcome.DURABLE, await writer.append(b"last")))
        async with second.open_reader("log", follow=False) as reader:
            log = [record async for record in reader]
        if world.hash_chain:
            found = await second.verify_log("log")
            assert found.problem is None
            assert found.records == found.chained_records == len(log)
        with trio.fail_after(60):
            while len(live) < len(log):  # noqa: ASYNC110
                await trio.sleep(0.1)
        nursery.cancel_scope.cancel()
    return log, live


def check(log: list[dlog.Record], live: list[dlog.Record], outcomes: list[KnownOutcome]) -> None:
    where = {record.payload: record.dlsn for record in log}
    assert len(where) == len(log), "a record is in the log twice"
    for each in outcomes:
        if each.outcome is dlog.RecordOutcome.DURABLE:
            assert where.get(each.payload) == each.dlsn, f"{each} is not at its position"
        elif each.outcome is dlog.RecordOutcome.NOT_WRITTEN:
            assert each.payload not in where, f"{each} is in the log"
    dlsns = [record.dlsn for record in log]
    assert dlsns == sorted(dlsns)
    assert [record.txid for record in log] == sorted(record.txid for record in log)
    assert [record.sequence_id for record in log] == list(range(len(log)))
    for name in {record.payload.rpartition(b"-")[0].rpartition(b"-")[0] for record in log}:
        mine = [r.payload for r in log if r.payload.startswith(name + b"-")]
        assert mine == sorted(mine, key=lambda p: [int(part) for part in p.split(b"-")[1:]]), "out of order"
    assert live == log, "the following reader saw other records than the log holds"


# A smaller seed is not a simpler case.
UNSHRUNK = [Phase.explicit, Phase.reuse, Phase.generate]
rates = st.sampled_from([0.0, 0.02, 0.1, 0.3])


@settings(max_examples=examples(150), phases=UNSHRUNK)
@given(seed=SEEDS, failure_rate=rates, lost_reply_rate=rates, schedule=st.random_module())
def test_the_outcome_of_each_record_is_true(
    seed: int, failure_rate: float, lost_reply_rate: float, schedule: object
) -> None:
    clock = trio.testing.MockClock(autojump_threshold=0)
    trio.run(lambda: run_world(seed, failure_rate, lost_reply_rate, takeover=None), clock=clock)


@settings(max_examples=examples(150), phases=UNSHRUNK)
@given(
    seed=SEEDS,
    failure_rate=rates,
    lost_reply_rate=rates,
    takeover=st.sampled_from(["session", "lock"]),
    schedule=st.random_module(),
)
def test_the_outcome_of_each_record_is_true_when_another_writer_takes_over(
    seed: int, failure_rate: float, lost_reply_rate: float, takeover: str, schedule: object
) -> None:
    clock = trio.testing.MockClock(autojump_threshold=0)
    trio.run(lambda: run_world(seed, failure_rate, lost_reply_rate, takeover=takeover), clock=clock)


@settings(max_examples=examples(100), phases=UNSHRUNK)
@given(
    seed=SEEDS,
    failure_rate=rates,
    lost_reply_rate=rates,
    takeover=st.sampled_from([None, "session", "lock"]),
    schedule=st.random_module(),
)
def test_a_hash_chain_holds_over_failures_rolls_and_takeovers(
    seed: int, failure_rate: float, lost_reply_rate: float, takeover: str | None, schedule: object
) -> None:
    clock = trio.testing.MockClock(autojump_threshold=0)
    trio.run(
        lambda: run_world(seed, failure_rate, lost_reply_rate, takeover=takeover, hash_chain=True),
        clock=clock,
    )
