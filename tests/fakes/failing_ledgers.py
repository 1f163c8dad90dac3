"""Ledgers and metadata that fail at any moment, for a writer of logs under test.

The ledgers are scripted: they acknowledge in order and late, and a recovery keeps any prefix of the entries
that were not acknowledged. Metadata is in the in-memory store, which loses replies.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import attrs
import trio
import trio.testing

import dlog
from dlog.context import NamespaceContext
from dlog.namespace_handle import Namespace
from ledger.catalog.catalog import CommitLedger
from ledger.catalog.store_errors import as_ledger_error
from ledger.errors import (
    LedgerClosedError,
    LedgerError,
    LedgerFencedError,
    LedgerRecoveryError,
    LedgerWriteError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
)
from ledger.ledger_spec import LedgerSpec
from ledger.metadata_store.errors import ConnectionLostError, MetadataError
from ledger.metadata_store.memory import MemoryStore, MemoryTree
from ledger.metadata_store.store import Create, Operation, Stat
from ledger.runtime.statistics import Recorder
from ledger.runtime.tasks.timers import Timers


@attrs.define(eq=False)
class ScriptedLedger:
    """One ledger as its bookies hold it."""

    entries: list[bytes] = attrs.Factory(list)
    carried: list[int] = attrs.Factory(list)  # the LAC in each entry
    lac: int = -1
    closed_at: int | None = None
    is_fenced: bool = False
    writer: ScriptedWriteHandle | None = None
    custom: dict[str, bytes] = attrs.Factory(dict)


class ScriptedWriteHandle:
    """Stands in for ``ledger.handle.WriteHandle``."""

    def __init__(self, world: World, ledger_id: int) -> None:
        self.ledger_id, self.bytes_in_flight = ledger_id, 0
        self.metadata = SimpleNamespace(custom={})
        self._world, self._ledger = world, world.ledgers[ledger_id]
        self._ledger.writer = self
        self._callbacks: list[Callable[[int, BaseException | None], None]] = []
        self._error: LedgerError | None = None
        self._pushed = -1
        self.poke = trio.Event()

    def submit(self, payload: bytes, *, hold: bool = False) -> int:
        if self._error is not None:
            raise self._error
        assert self._ledger.closed_at is None or self._ledger.is_fenced, "a closed ledger gets no entry"
        if not self._ledger.is_fenced:
            self._ledger.entries.append(payload)
            self._ledger.carried.append(self._ledger.lac)
        self._pushed += 1
        self.poke.set()
        return self._pushed

    def send_soon(self) -> None:
        pass

    def send_now(self) -> None:
        """Entries are sent when they are submitted."""

    def hint_now(self) -> None:
        """Readers of this ledger need no hint."""

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
        self._ended_waits = 0

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

    def take_recent(self, first: int, last: int) -> list[bytes]:
        return []

    def end_waits(self) -> None:
        self._ended_waits += 1

    async def wait_last_confirmed_beyond(self, entry_id: int, *, timeout_s: float) -> int:
        ended = self._ended_waits
        with trio.move_on_after(timeout_s):
            while (  # noqa: ASYNC110
                self.last_confirmed <= entry_id and not self.is_closed and self._ended_waits == ended
            ):
                await trio.sleep(0.003)
        return self.last_confirmed


class World:
    """Ledgers and metadata, shared by all clients, and the random numbers behind their failures."""

    def __init__(self, seed: int, failure_rate: float, lost_reply_rate: float) -> None:
        self.rng, self.recorder = random.Random(seed), Recorder()
        self.failure_rate, self.lost_reply_rate = failure_rate, lost_reply_rate
        self.ledgers: dict[int, ScriptedLedger] = {}
        self._ledger_ids = itertools.count()
        self.tree = MemoryTree()
        self.nursery: trio.Nursery | None = None
        self.timers = Timers()
        self._wall_ms = 1_000
        self.hash_chain = False  # of all writers
        self.seals = False  # at the end
        self.atomic: list[list[bytes]] = []  # the payloads of each atomic batch

    def begin(self, nursery: trio.Nursery) -> None:
        """Run the tasks of all clients in this nursery."""
        self.nursery = nursery
        nursery.start_soon(self.timers.run)

    def wall_ms(self) -> int:
        self._wall_ms += self.rng.randint(-3, 5)  # a clock may go backwards
        return self._wall_ms

    def calm(self) -> None:
        self.failure_rate = self.lost_reply_rate = 0

    # The methods of the ledger client.

    def is_in_session(self, session: object) -> bool:
        return isinstance(session, FlakyStore)

    async def create_from(
        self, spec: LedgerSpec, *, commit: CommitLedger | None = None
    ) -> ScriptedWriteHandle:
        await trio.sleep(self.rng.random() * 0.01)
        if self.rng.random() < self.failure_rate:
            raise NotEnoughBookiesError(3, 2)
        ledger_id = next(self._ledger_ids)
        self.ledgers[ledger_id] = ScriptedLedger()
        self.ledgers[ledger_id].custom = dict(spec.custom)
        if commit is not None:
            try:
                await commit(ledger_id, Create(f"/ledger-{ledger_id}"))
            except MetadataError as exc:
                raise as_ledger_error(exc) from exc
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

    async def stored(self, ledger_id: int) -> Any:
        """As ``LedgerClient.stored``: what a ledger's node says of its maker."""
        await trio.lowlevel.checkpoint()
        if ledger_id not in self.ledgers:
            raise NoSuchLedgerError(ledger_id)
        metadata = SimpleNamespace(custom=self.ledgers[ledger_id].custom)
        return SimpleNamespace(ledger_id=ledger_id, metadata=metadata, version=0, created_ms=0)

    async def delete_unchanged(self, seen: Any) -> bool:
        """As ``LedgerClient.delete_unchanged``."""
        await self.delete(seen.ledger_id)
        return True


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
            record_bytes_max=2**21,
        ),
        shared_with_java=False,
    ).for_scheme("distributedlog")
    client: Any = world
    return store, Namespace(
        NamespaceContext(f"test:{name}", store, client, "/ns", config, client_id=name, wall_ms=world.wall_ms)
    )
