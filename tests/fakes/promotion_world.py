"""A directory and a cluster in memory, and processes that promote a log from one to the other and crash.

Both sides have bookies made of dictionaries and a metadata tree of their own. Each process has its own
sessions and connections. A process may crash at its nth write of metadata, right before or right after the
store applied it, or lose the reply to it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import attrs

import dlog
from dlog.context import FixedLocation, LogLocation, NamespaceContext
from dlog.errors import LogMovedError, PromotionError
from dlog.promotion.location import PromotableLocation, promotable
from dlog.promotion.record import SourceRecord
from ledger.client import open_ledger_client
from ledger.metadata_store.errors import ConnectionLostError
from ledger.metadata_store.memory import MemoryStore
from ledger.metadata_store.store import ANY_VERSION, Operation, Stat
from namespace.binding import new_binding
from namespace.bindings import bind
from namespace.log_nodes import LogNodes
from namespace.logs import open_log
from tests.fakes.dict_bookies import DictCluster, open_cluster

SOURCE, TARGET = "file:///old", "distributedlog://zk1/shop"
HERE, THERE = "/dlog", "/shop"
LOG = "orders"
SMALL_SEGMENTS = dlog.WriterConfig(
    segment_bytes_max=400, entry_bytes_target=100, retry_timeout_s=30, visibility_delay_ms=1
)
CONFIG = dlog.NamespaceConfig(
    ensemble_size=1,
    write_quorum=1,
    ack_quorum=1,
    writer=SMALL_SEGMENTS,
    reader=dlog.ReaderConfig(relist_interval_s=1),
)


Locate = Callable[[NamespaceContext, str], LogLocation]


async def target_of(namespace: dlog.Namespace) -> dlog.Namespace:
    """The namespace at the target, as the same process sees it."""
    location = namespace.context.location(LOG)
    assert isinstance(location, PromotableLocation)
    return dlog.Namespace(await location.open_context(TARGET))


async def record_of(namespace: dlog.Namespace) -> SourceRecord | None:
    """What the directory stores about the promotion of the log."""
    location = namespace.context.location(LOG)
    assert isinstance(location, PromotableLocation)
    return await location.record()


def without_promotions(namespace: dlog.Namespace) -> dlog.Namespace:
    """The namespace, as a release sees it that knows nothing of promotions."""
    return dlog.Namespace(attrs.evolve(namespace.context, locate=FixedLocation))


def with_config(namespace: dlog.Namespace, **changes: Any) -> dlog.Namespace:
    """The namespace with other settings."""
    context = namespace.context
    return dlog.Namespace(attrs.evolve(context, config=attrs.evolve(context.config, **changes)))


class CrashError(Exception):
    """The process is dead from here on."""


@attrs.define
class Writes:
    """Counts the writes of metadata of one process, and ends or disturbs it at one of them."""

    crash_before: int | None = None
    crash_after: int | None = None
    lose_reply_of: int | None = None
    count: int = 0
    is_dead: bool = False
    stores: list[MemoryStore] = attrs.Factory(list)

    def before(self) -> int:
        self.count += 1
        if self.count == self.crash_before:
            self._die()
        return self.count

    def after(self, number: int) -> None:
        if number == self.crash_after:
            self._die()
        if number == self.lose_reply_of:
            raise ConnectionLostError("/", "the reply is lost")

    def _die(self) -> None:
        self.is_dead = True
        for store in self.stores:
            store.expire()
        raise CrashError


class ProcessStore(MemoryStore):
    """The session of a process that may crash at a write."""

    writes: Writes

    async def commit(self, operations: Sequence[Operation]) -> None:
        number = self.writes.before()
        await super().commit(operations)
        self.writes.after(number)

    async def put(self, path: str, value: bytes, *, expected: int = ANY_VERSION) -> Stat:
        number = self.writes.before()
        stat = await super().put(path, value, expected=expected)
        self.writes.after(number)
        return stat

    async def create(self, path: str, value: bytes = b"", **options: Any) -> str:
        number = self.writes.before()
        made = await super().create(path, value, **options)
        self.writes.after(number)
        return made

    async def delete(self, path: str, *, expected: int = ANY_VERSION) -> None:
        number = self.writes.before()
        await super().delete(path, expected=expected)
        self.writes.after(number)


@attrs.define
class PromotionWorld:
    """Both sides."""

    source: DictCluster
    target: DictCluster
    acknowledged: list[tuple[bytes, dlog.DLSN]] = attrs.Factory(
        list
    )  # records, in order, as writers got them
    config_there: dlog.NamespaceConfig = CONFIG

    @asynccontextmanager
    async def process(self, name: str, writes: Writes | None = None) -> AsyncIterator[dlog.Namespace]:
        """The namespace of the directory, as one process sees it; the target is reached through it."""
        writes = writes or Writes()
        async with AsyncExitStack() as stack:

            async def opened(
                cluster: DictCluster, uri: str, path: str, config: dlog.NamespaceConfig, locate: Locate
            ) -> NamespaceContext:
                store = ProcessStore(cluster.tree)
                store.writes = Writes()  # opening is no part of the count
                writes.stores.append(store)
                stack.push_async_callback(store.aclose)
                client = await stack.enter_async_context(open_ledger_client(store, cluster.dial))
                store.writes = writes
                config = config.for_scheme(uri.partition(":")[0])
                return NamespaceContext(uri, store, client, path, config, client_id=name, locate=locate)

            there = await opened(self.target, TARGET, THERE, self.config_there, FixedLocation)

            async def open_context(uri: str) -> NamespaceContext:
                assert uri == TARGET
                return there

            here = await opened(self.source, SOURCE, HERE, CONFIG, promotable(open_context))
            yield dlog.Namespace(here)

    async def append(self, writer: dlog.LogWriter, count: int) -> None:
        """Append records with numbers as payloads, and note what was acknowledged."""
        for _ in range(count):
            payload = b"%d" % len(self.acknowledged)
            self.acknowledged.append((payload, await writer.append(payload)))

    async def sides_that_take_records(self) -> list[str]:
        """The sides that a writer could write to now, by the nodes that each writer checks first."""
        sides = []
        for cluster, path, uri in ((self.source, HERE, SOURCE), (self.target, THERE, TARGET)):
            store = MemoryStore(cluster.tree)
            try:
                await open_log(LogNodes(store, path, LOG))
                sides.append(uri)
            except (dlog.LogNotFoundError, LogMovedError, PromotionError):
                pass
            await store.aclose()
        return sides


async def records_of(namespace: dlog.Namespace, log: str = LOG) -> list[tuple[bytes, dlog.DLSN]]:
    """All records, read from the beginning to the present end."""
    async with namespace.open_reader(log, follow=False) as reader:
        return [(record.payload, record.dlsn) async for record in reader]


@asynccontextmanager
async def open_world(
    *, ledgers_there: int = 0, there: dlog.NamespaceConfig = CONFIG
) -> AsyncIterator[PromotionWorld]:
    """A directory with a log of some segments, a cursor and a rule of retention; an empty target.

    Args:
        ledgers_there: Ids that the target has used. Without any, its ids are those of the directory.
        there: The settings of the target.
    """
    async with open_cluster(1) as source, open_cluster(1) as target:
        world = PromotionWorld(source, target, config_there=there)
        store = MemoryStore(source.tree)
        await store.create(HERE)
        await store.aclose()
        store = MemoryStore(target.tree)
        await bind(store, THERE, new_binding("zk1", "/ledgers"))
        await store.aclose()
        async with target.client() as client:
            for _ in range(ledgers_there):
                ledger = await client.create(ensemble_size=1, write_quorum=1, ack_quorum=1)
                ledger.abandon()
                await client.delete(ledger.ledger_id)
        async with world.process("first") as namespace:
            async with namespace.open_writer(LOG, create=True) as writer:
                await world.append(writer, 24)
            await namespace.cursors(LOG).set("billing", world.acknowledged[5][1])
            await namespace.retention.set(LOG, dlog.Retention(age_s=86_400))
        yield world
