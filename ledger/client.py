"""Creating, opening and deleting ledgers.

Inside: a client's parts put together, and the tasks that belong to it. Not inside: what handles do.
Always: leaving the client's block ends its handles; ledgers being written stay open, for a recovery.

Source: BookKeeper.java, LedgerCreateOp.java, LedgerOpenOp.java; reference sections 5.1, 6.8.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import attrs
import trio

from ledger.adv_handle import AdvWriteHandle
from ledger.background import open_background
from ledger.bookie_health import BookieHealth
from ledger.catalog import open_catalog
from ledger.cluster import Cluster
from ledger.config import ClientConfig
from ledger.digest import DigestType, EntryCodec
from ledger.errors import BookieError, WrongPasswordError
from ledger.membership import Membership, open_membership
from ledger.metadata import Ensemble, LedgerMetadata
from ledger.opening import query_lac, recover_ledger
from ledger.paths import Layout
from ledger.placer import Placer
from ledger.quorum import check_quorums
from ledger.read_handle import ReadHandle
from ledger.replica_copy import ReplicaCopy
from ledger.transport import Dial, open_transport
from ledger.wire.codes import Code
from ledger.wire.messages import BookieInfoReply, BookieInfoRequest
from ledger.write_handle import WriteHandle
from namespace.store import MetadataStore


@attrs.frozen
class BookieSpace:
    """How much room the disks of a bookie's ledgers have, as the bookie tells."""

    total_bytes: int
    free_bytes: int


class LedgerClient:
    """A program's access to the ledgers of one cluster. Made by ``open_ledger_client``."""

    def __init__(
        self,
        cluster: Cluster,
        nursery: trio.Nursery,
        wall_ms: Callable[[], int],
        on_deleted: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._cluster, self._nursery, self._wall_ms = cluster, nursery, wall_ms
        self._on_deleted = on_deleted
        self._writers: set[WriteHandle] = set()

    def __repr__(self) -> str:
        return (
            f"<LedgerClient of {self._cluster.catalog.root}, {self._cluster.membership!r},"
            f" {len(self._writers)} ledgers being written>"
        )

    @property
    def membership(self) -> Membership:
        """The bookies this client knows."""
        return self._cluster.membership

    async def create(
        self,
        *,
        ensemble_size: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        digest_type: DigestType = DigestType.CRC32C,
        password: bytes = b"",
        custom: Mapping[str, bytes] | None = None,
        ledger_id: int | None = None,
        deferred_sync: bool = False,
    ) -> WriteHandle:
        """Begin a ledger; return the handle of its only writer.

        Each entry is sent to ``write_quorum`` of ``ensemble_size`` bookies and is durable once ``ack_quorum``
        of them have it on disk. If cancelled, an empty open ledger may be left in the metadata.

        Args:
            digest_type: CRC32C finds damage; MAC also finds forgery by who does not know the password.
            ledger_id: The id to use; None for a new one.
            deferred_sync: Bookies acknowledge an entry before it is on disk, and ``WriteHandle.force`` makes
                durable what was acknowledged. No bookie can be replaced: any failure ends the handle.

        Raises:
            NotEnoughBookiesError: Fewer writable bookies than ``ensemble_size``; as ``PlacementError`` if not
                in the fault domains that ``PlacementConfig`` enforces.
            LedgerExistsError: The given id is taken.
            ValueError: The sizes do not fit together.
            namespace.errors.StoreError: The metadata store failed.
        """
        check_quorums(ensemble_size, write_quorum, ack_quorum)
        cluster = self._cluster
        bookies = await cluster.placer.choose_ensemble(ensemble_size, write_quorum, ack_quorum)
        metadata = LedgerMetadata(
            ensemble_size=ensemble_size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            ensembles=(Ensemble(0, bookies),),
            digest_type=digest_type,
            password=password,
            ctime_ms=self._wall_ms(),
            custom=dict(custom or {}),
        )
        add_version = 3 if deferred_sync else cluster.config.transport.add_version
        connections = {
            bookie: cluster.transport.connection_to(bookie, add_version=add_version) for bookie in bookies
        }
        current = await cluster.catalog.create(metadata, ledger_id)
        handle = WriteHandle(
            current,
            EntryCodec(digest_type, password),
            cluster,
            self._nursery,
            deferred_sync=deferred_sync,
            connections=connections,
        )
        self._writers.add(handle)
        self._nursery.start_soon(self._attend, handle)
        return handle

    async def create_adv(
        self,
        *,
        ensemble_size: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        digest_type: DigestType = DigestType.CRC32C,
        password: bytes = b"",
        custom: Mapping[str, bytes] | None = None,
        ledger_id: int | None = None,
        deferred_sync: bool = False,
    ) -> AdvWriteHandle:
        """Begin a ledger whose entries come with ids that the caller chooses, from 0 on, in any order.

        Arguments and errors are those of ``create``.
        """
        handle = await self.create(
            ensemble_size=ensemble_size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            digest_type=digest_type,
            password=password,
            custom=custom,
            ledger_id=ledger_id,
            deferred_sync=deferred_sync,
        )
        return AdvWriteHandle(handle, bytes_waiting_max=self._cluster.config.bytes_in_flight_max)

    async def open(self, ledger_id: int, *, password: bytes = b"", recover: bool = True) -> ReadHandle:
        """Open a ledger for reading; by default make sure first that nobody writes to it any more.

        Args:
            recover: Fence the ledger, find its end and close it, unless it is closed. With False the ledger
                stays as it is, and the handle shows what is confirmed; it may follow a live writer.

        If cancelled while recovering, the writer may be fenced already; open it again.

        Raises:
            NoSuchLedgerError: There is no such ledger.
            WrongPasswordError: It was created with another password.
            LedgerRecoveryError: Its end cannot be decided now: too few of its bookies answer.
            LedgerReadError: Without recovery: too few bookies told the LAC.
            namespace.errors.NamespaceError: The metadata store failed.
        """
        cluster = self._cluster
        current = await cluster.catalog.get(ledger_id)
        if not current.metadata.accepts_password(password):
            raise WrongPasswordError(ledger_id)
        codec = EntryCodec(current.metadata.digest_type, password)
        lac = -1
        if not current.metadata.is_closed:
            if recover:
                current = await recover_ledger(cluster, current, codec)
            else:
                lac = await query_lac(cluster, current, codec)
        handle = ReadHandle(current, codec, cluster, self._nursery, lac=lac)
        handle.start()
        return handle

    async def recover(self, ledger_id: int) -> None:
        """Fence a ledger, find its end and close it, unless it is closed; as its administrator, without being
        told its password. If cancelled, the writer may be fenced already; do it again.

        Raises:
            NoSuchLedgerError: There is no such ledger.
            WrongPasswordError: The metadata do not hold the password under which bookies have it.
            LedgerRecoveryError: Its end cannot be decided now: too few of its bookies answer.
            namespace.errors.NamespaceError: The metadata store failed.
        """
        current = await self._cluster.catalog.get_newest(ledger_id)
        metadata = current.metadata
        if not metadata.is_closed:
            codec = EntryCodec(metadata.digest_type, metadata.password or b"")
            await recover_ledger(self._cluster, current, codec)

    async def replica_copy(self, ledger_id: int, own: str) -> ReplicaCopy:
        """Access to the stored bytes of a ledger on all bookies but one, with its newest metadata.

        Args:
            own: The bookie that lacks them.

        Raises:
            NoSuchLedgerError, MetadataFormatError
            namespace.errors.NamespaceError: The metadata store failed.
        """
        return ReplicaCopy(await self._cluster.catalog.get_newest(ledger_id), self._cluster, own)

    async def delete(self, ledger_id: int) -> None:
        """Delete a ledger, whatever its state; bookies free its space later.

        Deleting one that does not exist is success. If cancelled, it may or may not be deleted.
        """
        await self._cluster.catalog.delete(ledger_id)
        self._on_deleted(ledger_id)

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        """A ledger's metadata as the store holds it now.

        Raises:
            NoSuchLedgerError, MetadataFormatError
        """
        return (await self._cluster.catalog.get(ledger_id)).metadata

    async def ledger_ids(self) -> list[int]:
        """The ids of all ledgers, ascending."""
        return await self._cluster.catalog.ledger_ids()

    async def bookie_space(self, bookie: str) -> BookieSpace:
        """Ask a bookie how much room it has.

        Raises:
            BookieError: It cannot be reached, did not answer in time, or has no answer to this.
        """
        reply = await self._cluster.transport.call(bookie, BookieInfoRequest())
        if not isinstance(reply, BookieInfoReply) or reply.code is not Code.OK:
            raise BookieError(bookie, f"{reply.code.name} for a question about its disks")
        if reply.total_disk_bytes is None or reply.free_disk_bytes is None:
            raise BookieError(bookie, "its answer about its disks leaves out what was asked for")
        return BookieSpace(reply.total_disk_bytes, reply.free_disk_bytes)

    async def _attend(self, handle: WriteHandle) -> None:
        try:
            await handle.run()
        finally:
            self._writers.discard(handle)
            handle.abandon()


@asynccontextmanager
async def open_ledger_client(
    store: MetadataStore,
    dial: Dial,
    config: ClientConfig | None = None,
    *,
    root: str = "/ledgers",
    rng: random.Random | None = None,
    layout: Layout | None = None,
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    on_deleted: Callable[[int], None] = lambda _: None,
) -> AsyncIterator[LedgerClient]:
    """Open a client; leaving the block closes its connections and ends its handles, without closing ledgers.

    Args:
        layout: How ledger ids become nodes; None for what the root says, or else the default.
        wall_ms: Epoch milliseconds, for the creation time in ledger metadata.
        on_deleted: Told of each ledger deleted through this client.

    Raises:
        MetadataFormatError: The root has a LAYOUT that does not parse, or another one than ``layout``.
        namespace.errors.StoreError: The metadata store failed.
    """
    config = config or ClientConfig()
    catalog = await open_catalog(store, root, layout, rng=rng)
    rng = rng or random.Random()
    async with (
        open_membership(store, root, health=BookieHealth(config.placement, rng)) as membership,
        open_transport(dial, membership.resolve, config.transport) as transport,
        open_background() as nursery,
    ):
        placer = Placer(membership, transport, config.placement, rng)
        nursery.start_soon(placer.run)
        cluster = Cluster(transport, catalog, membership, rng, config, placer)
        client = LedgerClient(cluster, nursery, wall_ms, on_deleted)
        yield client
