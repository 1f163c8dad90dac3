"""A cluster of bookies made of dictionaries, with the parts of auto-recovery of one program."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import attrs
import trio

from ledger.client import LedgerClient
from ledger.config import ClientConfig
from ledger.metadata import LedgerMetadata
from ledger.metadata_store.memory import MemoryTree, open_memory_store
from ledger.metadata_store.sessions.renewing_store import RenewingStore
from ledger.metadata_store.store import MetadataStore
from ledger.replication.auditor import Auditor
from ledger.replication.config import ReplicationConfig
from ledger.replication.ledger_restorer import LedgerRestorer
from ledger.replication.marks import TakenLedger, UnderReplicatedLedgers
from ledger.replication.worker import ReplicationWorker
from tests.fakes.dict_bookies import DictCluster, open_cluster
from tests.fakes.dict_namespace import WatchedStore

PAYLOADS = [b"%d" % number * 20 for number in range(12)]


@attrs.frozen
class ReplicationWorld:
    """The parts, and the calls that most tests need."""

    cluster: DictCluster
    client: LedgerClient
    session: WatchedStore
    marks: UnderReplicatedLedgers
    restorer: LedgerRestorer
    worker: ReplicationWorker
    auditor: Auditor

    async def closed_ledger(self, *, ensemble_size: int = 3, write_quorum: int = 3) -> int:
        """A closed ledger of ``PAYLOADS``."""
        writer = await self.client.create(ensemble_size=ensemble_size, write_quorum=write_quorum)
        await writer.append_many(PAYLOADS)
        await writer.close()
        return writer.ledger_id

    async def lose(self, bookie: str) -> None:
        """Stop a bookie; return when the client has noticed it."""
        await self.cluster.stop(bookie)
        while bookie in self.client.membership.writable:
            await self.client.membership.wait_change()

    async def start(self, bookie: str) -> None:
        """Start a bookie; return when the client has noticed it."""
        await self.cluster.start(bookie)
        while bookie not in self.client.membership.writable:
            await self.client.membership.wait_change()

    async def locked(self, ledger_id: int) -> TakenLedger:
        """The lock of a ledger, as a worker takes it."""
        taken = await self.marks.take_unmarked(ledger_id)
        assert taken is not None
        return taken

    async def members(self, ledger_id: int) -> list[tuple[str, ...]]:
        """The ensembles of a ledger."""
        metadata: LedgerMetadata = await self.client.metadata(ledger_id)
        return [ensemble.bookies for ensemble in metadata.ensembles]

    async def payloads(self, ledger_id: int) -> list[bytes]:
        """The payloads of a ledger, without recovery."""
        async with await self.client.open(ledger_id, recover=False) as reader:
            return [entry.payload for entry in await reader.read(0, reader.last_confirmed)]

    def check_replicas(self, ledger_id: int, metadata: LedgerMetadata, last: int) -> None:
        """Check that each bookie has each entry of its place."""
        for entry_id in range(last + 1):
            bookies = metadata.ensemble_for(entry_id).bookies
            for turn in range(metadata.write_quorum):
                bookie = self.cluster.bookies[bookies[(entry_id + turn) % len(bookies)]]
                assert entry_id in bookie.ledgers[ledger_id].entries, (bookie.name, entry_id)


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Return when the condition holds; under a clock that jumps."""
    while not await holds():  # noqa: ASYNC110
        await trio.sleep(0.1)


@asynccontextmanager
async def open_world(
    bookies: int = 4,
    config: ReplicationConfig | None = None,
    *,
    seed: int = 1,
    client: ClientConfig | None = None,
) -> AsyncIterator[ReplicationWorld]:
    """A world whose client and session end with the block."""
    config = config or ReplicationConfig()
    async with open_cluster(bookies) as cluster, cluster.client(client) as opened:
        session = WatchedStore(cluster.tree)
        marks = UnderReplicatedLedgers(session, "/ledgers", host_name="w1", rng=random.Random(seed))
        await marks.prepare()
        restorer = LedgerRestorer(opened.context, session, config, lock_path=marks.lock_path)
        yield ReplicationWorld(
            cluster,
            opened,
            session,
            marks,
            restorer,
            ReplicationWorker(marks, restorer, config),
            Auditor(opened.context, session, marks, config, wall_ms=lambda: 1_700_000_000_000),
        )
        await session.aclose()


@asynccontextmanager
async def renewing(tree: MemoryTree) -> AsyncIterator[RenewingStore]:
    """A store that outlives its sessions, as a program in a cluster has it."""

    def open_session() -> AbstractAsyncContextManager[MetadataStore]:
        return open_memory_store(tree)

    async with open_session() as first, trio.open_nursery() as nursery:
        store = RenewingStore(first, open_session)
        nursery.start_soon(store.keep)
        yield store
        nursery.cancel_scope.cancel()
