"""Clients of a world: writers that take logs over from each other, readers that follow the logs.

Inside: client processes (``ClientProcess``), the behaviour of a writer and of a reader, operations that may
be cancelled at any await and whose ends are recorded. Not inside: bookies, faults, judging.
Always: a client reports each result to the world at once. An error that the packages do not announce is
reported as a crash.

A log here is a minimal form of a DistributedLog stream: a node with the ids of its ledgers, in order. A
writer that takes the log over recovers the last ledger, creates a new one and appends its id by
compare-and-set.

Source: bookkeeper-tlaplus, LedgerChaining.
"""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeVar

import attrs
import trio

from ledger.client import LedgerClient, open_ledger_client
from ledger.config import ClientConfig
from ledger.context import ClientSeams
from ledger.errors import LedgerError
from ledger.metadata_store.errors import BadVersionError, ConnectionLostError, MetadataError
from ledger.metadata_store.store import MetadataStore, SessionState
from ledger.read.handle import ReadHandle
from ledger.transport.config import TransportConfig
from ledger.write.handle import WriteHandle
from tests.simulation.bookies import ROOT, describe_error, only_cause
from tests.simulation.history import Crashed, Ended, EntryRead
from tests.simulation.loop import OWNER
from tests.simulation.metadata import SimStore
from tests.simulation.network import Node

if TYPE_CHECKING:
    from tests.simulation.world import World

T = TypeVar("T")
RESTART_S = 1.0


def client_config(version: Literal[2, 3]) -> ClientConfig:
    """Short timeouts, since a world lasts for a minute."""
    return ClientConfig(
        transport=TransportConfig(
            add_version=version,
            connect_timeout_s=2.0,
            request_timeout_s=1.5,
            add_timeout_s=1.5,
        ),
        unavailable_timeout_s=6.0,
        retry_backoff_max_s=1.0,
        long_poll_max_s=2.0,
        speculative_poll_s=0.7,
        recovery_read_ahead=4,
        batch_read_bytes_max=16_384,
    )


class OperationEndedError(Exception):
    """The operation was cancelled, or failed with an error that the packages announce."""


@attrs.define(eq=False)
class Operation:
    """One operation of a client, while it runs."""

    client: str
    what: str
    began_at: float
    scope: trio.CancelScope


class ClientProcess:
    """A program that uses ledgers; it is killed and started again."""

    announced: tuple[type[Exception], ...] = (LedgerError, MetadataError)  # errors of its operations

    def __init__(self, world: World, name: str, rng: random.Random) -> None:
        self.world, self.name, self.rng = world, name, rng
        self._expected: tuple[type[Exception], ...] = (*self.announced, OperationEndedError, OSError)
        self.operation: Operation | None = None
        self.store: SimStore | None = None
        self.lives = 0
        self.wall_offset_ms = 0
        self.wake = trio.Event()  # ends the current ``pause``
        self._scope: trio.CancelScope | None = None
        self._is_dead = False
        self.away_s = 0.0  # before its next start, besides the usual pause

    def kill(self) -> None:
        """End the process at once."""
        if self._scope is not None and not self._is_dead:
            self.world.trace.note(self.name, "is killed")
            self._is_dead = True
            self.world.network.cut_off(self.world.network.nodes[self.name], silently=False)
            if self.store is not None:
                self.store.abandon()
            self._scope.cancel()

    def is_over(self) -> bool:
        """True if the program is not started again."""
        return self.world.is_ending

    async def live(self) -> None:
        """Run one process after the other until the world ends."""
        OWNER.set(self.name)
        world = self.world
        while not self.is_over():
            self._is_dead = False
            with trio.CancelScope() as self._scope:
                try:
                    await self._run()
                except* self._expected as group:
                    world.trace.note(self.name, f"gives up: {only_cause(group)!r}"[:300])
                except* Exception as group:
                    if not self._is_dead:
                        world.observe(Crashed(world.now(), self.name, describe_error(only_cause(group))))
            self._scope = None
            if self.store is not None:
                self.store.abandon()
            node = world.network.nodes[self.name]
            if node.is_up:
                world.network.cut_off(node, silently=False)
            self.operation = None
            away_s, self.away_s = self.away_s, 0.0
            await trio.sleep(self.rng.uniform(0.2, RESTART_S) + away_s)

    async def _run(self) -> None:
        world = self.world
        self.lives += 1
        node = world.network.join(self.name)
        async with self.open_store(node) as store, AsyncExitStack() as stack:
            opening = open_ledger_client(
                store,
                lambda address: world.network.dial(node, address),
                client_config(world.shape.add_version),
                root=ROOT,
                seams=ClientSeams(
                    rng=self.rng,
                    wall_ms=lambda: world.wall_ms() + self.wall_offset_ms,
                    open_entry_log=None if world.files is None else world.files.open,
                ),
            )
            try:
                client = await stack.enter_async_context(opening)
            except MetadataError as exc:
                # As ``dlog.open_namespace``: a program that cannot reach the store says so and ends.
                raise OperationEndedError from exc
            await self.behave(client, store)

    @asynccontextmanager
    async def open_store(self, node: Node) -> AsyncIterator[MetadataStore]:
        """The metadata store of the process; ``self.store`` is its present session."""
        self.store = self.world.new_session(node)
        yield self.store

    async def behave(self, client: LedgerClient, store: MetadataStore) -> None:
        raise AssertionError("a subclass defines this")

    async def do(self, what: str, work: Callable[[], Awaitable[T]]) -> T:
        """Run one operation, which a fault may cancel, and record its end.

        Raises:
            OperationEndedError: It was cancelled or failed.
        """
        world = self.world
        result: list[T] = []
        problem: Exception | None = None
        with trio.CancelScope() as scope:
            outer = self.operation
            self.operation = operation = Operation(self.name, what, world.now(), scope)
            world.operations[id(operation)] = operation
            try:
                result.append(await work())
            except self.announced as exc:
                problem = exc
            finally:
                if self.operation is operation:
                    self.operation = outer
                del world.operations[id(operation)]
        world.observe(Ended(world.now(), self.name, what, operation.began_at, world.faults_ended_at))
        if result:
            world.trace.note(self.name, f"{what}: done")
            return result[0]
        if problem is not None:
            self.failed(what, problem)
        reason = "cancelled" if problem is None else f"{type(problem).__name__}: {problem}"
        world.trace.note(self.name, f"{what}: {reason}"[:400])
        try:
            raise OperationEndedError(reason) from problem
        finally:
            del problem  # its traceback holds this frame: the two would form a cycle

    def failed(self, what: str, problem: Exception) -> None:
        """Called with the announced error of an operation. A subclass may find it wrong."""

    async def pause(self, seconds: float) -> None:
        """Sleep, but return early once ``wake`` is set: the world ends, or a writer is to take over."""
        self.wake = wake = trio.Event()
        if not self.world.is_ending:
            self.world.timeline.after(seconds, wake.set)
            await wake.wait()

    async def ledgers_of(self, store: MetadataStore, log: str) -> tuple[list[int], int]:
        """The ids of a log's ledgers, and the version of the node that lists them."""
        await store.sync(log_path(log))
        node = await store.get(log_path(log))
        return json.loads(node.value), node.stat.version


def log_path(log: str) -> str:
    return f"/logs/{log}"


class WriterProcess(ClientProcess):
    """Takes a log over, writes to it for a while, and begins again."""

    def __init__(self, world: World, name: str, rng: random.Random, log: str) -> None:
        super().__init__(world, name, rng)
        self.log = log
        self.written = 0
        self._is_idle = False

    def kick(self) -> None:
        """End the pause before the next take-over, if there is one."""
        if self._is_idle:
            self.wake.set()

    async def behave(self, client: LedgerClient, store: MetadataStore) -> None:
        rng, world = self.rng, self.world
        await self.pause(rng.uniform(0, 1.5))
        while not world.is_ending and store.state is not SessionState.EXPIRED:
            try:
                handle = await self.do(f"take over {self.log}", lambda: self._take_over(client, store))
                if handle is not None:
                    await self._write(client, store, handle)
            except OperationEndedError:
                pass
            self._is_idle = True
            await self.pause(
                rng.choice([0.02, 0.2, 1.0] if world.shape.storm else [0.02, 0.5, 3, 8]) * rng.random()
            )
            self._is_idle = False

    async def _take_over(self, client: LedgerClient, store: MetadataStore) -> WriteHandle | None:
        world, rng, shape = self.world, self.rng, self.world.shape
        ledger_ids, version = await self.ledgers_of(store, self.log)
        if ledger_ids:
            world.takes_over(self.name, ledger_ids[-1])
            async with await client.open(ledger_ids[-1], password=shape.password) as reader:
                world.saw_end(self.name, reader)
        if len(ledger_ids) > 3 and rng.random() < shape.truncation:
            victim = ledger_ids[0]
            world.deletes(victim)  # before the write, whose outcome may stay unknown
            await store.put(log_path(self.log), json.dumps(ledger_ids[1:]).encode(), expected=version)
            ledger_ids, version = ledger_ids[1:], version + 1
            await client.delete(victim)
        handle = await client.create(
            ensemble_size=shape.ensemble_size,
            write_quorum=shape.write_quorum,
            ack_quorum=shape.ack_quorum,
            digest_type=shape.digest_type,
            password=shape.password,
        )
        mine = [*ledger_ids, handle.ledger_id]
        try:
            await store.put(log_path(self.log), json.dumps(mine).encode(), expected=version)
        except BadVersionError:
            handle.abandon()
            return None
        except ConnectionLostError:
            # The log is ours if the write was applied and no other writer has taken over since.
            await trio.sleep(0.5)
            found, _ = await self.ledgers_of(store, self.log)
            if found != mine:
                handle.abandon()
                return None
        world.watch_writer(self.name, handle)
        return handle

    async def _write(self, client: LedgerClient, store: MetadataStore, handle: WriteHandle) -> None:
        rng, world, shape = self.rng, self.world, self.world.shape
        try:
            for _ in range(rng.randint(1, shape.entries_max * (8 if shape.storm == "ensemble" else 1))):
                if world.is_ending:
                    break
                for _ in range(1 if shape.storm == "ensemble" else rng.choice([1, 1, 2, 5])):
                    if rng.random() < 0.05:
                        await self.do("wait for capacity", handle.wait_capacity)
                    world.submit(self.name, handle, self._payload())
                fate = rng.random()
                if fate < (0.04 if shape.storm == "ensemble" else 0.35):
                    last = handle.last_pushed
                    await self.do(f"wait for {handle.ledger_id}:{last}", partial(handle.wait_confirmed, last))
                elif fate > 0.97:
                    await self.do("write explicit LAC", handle.write_explicit_lac)
                if rng.random() < 0.5:
                    await self.pause(rng.expovariate(1) * shape.pause_s)
            fate = rng.random()
            if fate < 0.2:
                await self.pause(rng.uniform(0.5, 8))  # idle, perhaps until another writer takes over
                if rng.random() < 0.5:
                    world.submit(self.name, handle, self._payload())
            if fate < 0.75:
                await self.do(f"close {handle.ledger_id}", handle.close)
                world.saw_closed(self.name, handle)
        except LedgerError as exc:
            world.trace.note(self.name, f"ledger {handle.ledger_id}: {type(exc).__name__}: {exc}"[:300])
        except OperationEndedError:
            # After a cancelled or failed wait the handle is still usable, or can be closed.
            if rng.random() < 0.5 and not world.is_ending:
                try:
                    await self.do(f"close {handle.ledger_id}", handle.close)
                    world.saw_closed(self.name, handle)
                except OperationEndedError:
                    pass
        finally:
            handle.abandon()

    def _payload(self) -> bytes:
        self.written += 1
        size = self.rng.choice([0, 0, 40, 300, 1500, 5000])
        return f"|{self.name}/{self.lives}/{self.written}|".encode() + self.rng.randbytes(size)


class ReaderProcess(ClientProcess):
    """Opens ledgers without recovery and follows them."""

    def __init__(self, world: World, name: str, rng: random.Random, log: str) -> None:
        super().__init__(world, name, rng)
        self.log = log

    async def behave(self, client: LedgerClient, store: MetadataStore) -> None:
        rng, world = self.rng, self.world
        while True:
            await self.pause(rng.uniform(0.2, 4))
            if world.is_ending or store.state is SessionState.EXPIRED:
                return
            try:
                await self._follow_one(client, store)
            except OperationEndedError:
                pass

    async def _follow_one(self, client: LedgerClient, store: MetadataStore) -> None:
        rng, world = self.rng, self.world
        ledger_ids, _ = await self.do("list ledgers", lambda: self.ledgers_of(store, self.log))
        if not ledger_ids:
            return
        ledger_id = ledger_ids[-1] if rng.random() < 0.7 else rng.choice(ledger_ids)
        reader = await self.do(
            f"open {ledger_id}", lambda: client.open(ledger_id, password=world.shape.password, recover=False)
        )
        async with reader:
            world.saw_lac(self.name, reader)
            at = 0
            for _ in range(rng.randint(1, 4)):
                at = await self._read(reader, at)
                if world.is_ending or reader.is_closed:
                    break
                seen = reader.last_confirmed
                await self.do(
                    f"wait for {ledger_id} beyond {seen}",
                    partial(reader.wait_last_confirmed_beyond, seen, timeout_s=1.5),
                )
                world.saw_lac(self.name, reader)
            if reader.is_closed:
                world.saw_end(self.name, reader)

    async def _read(self, reader: ReadHandle, at: int) -> int:
        rng, world = self.rng, self.world
        while at <= reader.last_confirmed:
            last = reader.last_confirmed
            what = f"read {reader.ledger_id}:{at} to {last}"
            if rng.random() < 0.5:
                entries = await self.do(what, partial(reader.read, at, last))
                payloads = [entry.payload for entry in entries]
            else:
                payloads = await self.do(what, partial(reader.read_payloads, at, last))
            world.saw_lac(self.name, reader)
            for payload in payloads:
                world.observe(EntryRead(world.now(), self.name, (reader.ledger_id, at), payload))
                at += 1
        return at
