"""Creating, opening and deleting ledgers.

Inside: putting the parts of a client together, and its background tasks.
Not inside: reading and writing through handles (``read``, ``write``).
Always: leaving the block of the client ends its handles. Ledgers that are being written stay open; a recovery
decides their end.

Source: BookKeeper.java, LedgerCreateOp.java, LedgerOpenOp.java; docs/protocol.md 5.1, 6.7.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial

import attrs
import trio

from ledger.catalog.catalog import CommitLedger, StoredLedger, Versioned, open_catalog
from ledger.catalog.paths import Layout
from ledger.catalog.store_errors import raises_ledger_errors
from ledger.codes import Code
from ledger.config import ClientConfig
from ledger.context import ClientContext, ClientSeams
from ledger.digest import DigestType, EntryCodec
from ledger.errors import SECURITY_HINT, BookieError, LedgerError, ReadOnlyError, WrongPasswordError
from ledger.ledger_spec import LedgerSpec
from ledger.metadata import LedgerMetadata
from ledger.metadata_store.errors import BadVersionError, StoreError
from ledger.metadata_store.store import MetadataStore
from ledger.pickling import ProcessBound
from ledger.placement.bookie_health import BookieHealth
from ledger.placement.membership import Membership, open_membership
from ledger.placement.placer import Placer
from ledger.read.handle import ReadHandle
from ledger.read.lac_query import query_lac
from ledger.read.replica_check import ReplicaCheck
from ledger.read.replica_copy import ReplicaCopy
from ledger.recovery.opening import recover_ledger
from ledger.runtime.statistics import Recorder, Statistics, names
from ledger.runtime.statistics.tracing import open_tracing
from ledger.runtime.tasks.background import open_background
from ledger.runtime.tasks.timers import Timers
from ledger.transport.transport import Dial, Transport, open_transport
from ledger.wire.messages import BookieInfoReply, BookieInfoRequest
from ledger.write.adv_handle import AdvWriteHandle
from ledger.write.handle import WriteHandle
from ledger.write.lac_hints import LacHints
from ledger.write.missed import MissedReplicas
from ledger.write.timed_handle import TimedWriteHandle

RANDOM_PASSWORD_BYTES = 32


@attrs.frozen
class BookieSpace:
    """The size and the free space of a bookie's ledger disks, as the bookie reports them."""

    total_bytes: int
    free_bytes: int


class LedgerClient(ProcessBound):
    """A program's access to the ledgers of one cluster. Made by ``open_ledger_client``.

    Each call that uses the metadata store raises ``MetadataUnavailableError`` while it is out of reach.
    """

    def __init__(
        self,
        context: ClientContext,
        nursery: trio.Nursery,
        seams: ClientSeams,
        read_only: bool = False,
    ) -> None:
        self.read_only = read_only
        self._context, self._nursery, self._wall_ms = context, nursery, seams.wall_ms
        self._secret_rng = seams.rng or random.SystemRandom()  # a password must not follow from other numbers
        self._on_deleted = seams.on_deleted
        self._writers: set[WriteHandle] = set()
        self._lost: Callable[[], LedgerError] | None = None  # why no bookie will answer any more
        self._missed = MissedReplicas(context.catalog, context.membership, seams.wall_ms)

    def __repr__(self) -> str:
        return (
            f"<LedgerClient of {self._context.catalog.root}, {self._context.membership!r},"
            f" {len(self._writers)} ledgers being written>"
        )

    @property
    def root(self) -> str:
        """The path of the node above all ledgers in the metadata store."""
        return self._context.catalog.root

    @property
    def context(self) -> ClientContext:
        """The parts that this client's handles share; for ``ledger.replication``, not for applications."""
        return self._context

    @property
    def recorder(self) -> Recorder:
        """Where this client counts; for the logs above it, not for applications."""
        return self._context.recorder

    @property
    def timers(self) -> Timers:
        """They call while this client is open; for the logs above it, not for applications."""
        return self._context.transport.timers

    def statistics(self) -> Statistics:
        """What this client has counted since it was opened, and what it has measured.

        Histograms are there only with ``ClientConfig.statistics``. Names are in docs/observability.md.
        """
        return self._context.recorder.statistics(names.COUNTERS, names.GAUGES, names.TIMINGS)

    @property
    def membership(self) -> Membership:
        """The bookies that this client knows."""
        return self._context.membership

    async def create(
        self,
        *,
        ensemble_size: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        digest_type: DigestType = DigestType.CRC32C,
        password: bytes | None = b"",
        custom: Mapping[str, bytes] | None = None,
        ledger_id: int | None = None,
        deferred_sync: bool = False,
    ) -> WriteHandle:
        """Create a ledger; return the handle of its only writer.

        Each entry is sent to ``write_quorum`` of the ``ensemble_size`` bookies. It is durable once
        ``ack_quorum`` of them have it on disk. If cancelled, an empty open ledger may stay in the metadata.

        Args:
            digest_type: CRC32C detects damage. MAC also detects forgery without the password.
            password: Bookies refuse writers with another one. None for a random one, which ``open`` finds in
                the ledger's metadata. The empty password, Apache's default, is public.
            ledger_id: The id of the ledger; None to have one generated.
            deferred_sync: Bookies acknowledge an entry before it is on disk; ``WriteHandle.force`` makes
                acknowledged entries durable. No bookie can be replaced: any failure ends the handle.

        Raises:
            NotEnoughBookiesError: There are fewer writable bookies than ``ensemble_size``. It is a
                ``PlacementError`` if they are not in the fault domains that ``PlacementConfig`` enforces.
            LedgerExistsError: The given id is in use.
            ReadOnlyError: The client is open for reading only, as in all calls that change ledgers.
            ValueError: The three sizes contradict each other.
            MetadataUnavailableError, MetadataStoreError: The metadata store failed.
        """
        spec = LedgerSpec(
            ensemble_size=ensemble_size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            digest_type=digest_type,
            password=password,
            custom=custom or {},
            ledger_id=ledger_id,
            deferred_sync=deferred_sync,
        )
        return await self.create_from(spec)

    @raises_ledger_errors
    async def create_from(self, spec: LedgerSpec, *, commit: CommitLedger | None = None) -> WriteHandle:
        """As ``create``, with all arguments as one value.

        ``LedgerSpec`` has two more. ``bookies`` is the first ensemble, for a test of these bookies. With
        ``may_be_smaller`` and fewer bookies, the ledger begins with an ensemble and a write quorum of those
        that are there, down to the ack quorum, which stays. Its custom metadata then say what was asked
        (``AskedReplication``).

        Args:
            commit: Creates the node of the ledger, together with nodes of the caller; its errors are raised.

        Raises:
            NotEnoughBookiesError: As in ``create``; with ``may_be_smaller`` there are fewer than
                ``ack_quorum``.
        """
        self._check_writable("creating a ledger")
        context = self._context
        password = (
            self._secret_rng.randbytes(RANDOM_PASSWORD_BYTES) if spec.password is None else spec.password
        )
        bookies = spec.bookies
        if bookies is None:
            bookies = await context.placer.choose_ensemble(
                spec.ensemble_size, spec.write_quorum, spec.ack_quorum, may_be_smaller=spec.may_be_smaller
            )
        metadata = spec.metadata(bookies, password, self._wall_ms())
        add_version = 3 if spec.deferred_sync else context.config.transport.add_version
        connections = {
            bookie: context.transport.connection_to(bookie, add_version=add_version) for bookie in bookies
        }
        with context.recorder.operation(names.LEDGER_CREATE):
            current = await context.catalog.create(metadata, spec.ledger_id, commit=commit)
        context.recorder.counts[names.LEDGERS_CREATED] += 1
        handle = self._handle_of(current, password, connections, deferred_sync=spec.deferred_sync)
        handle.note_missed = self._missed.note
        self._writers.add(handle)
        context.recorder.open_source(handle, partial(_counters, handle), partial(_gauges, handle))
        self._nursery.start_soon(self._serve_writer, handle)
        if self._lost is not None:
            handle.fail(self._lost)
        return handle

    def _handle_of(
        self,
        current: Versioned,
        password: bytes,
        connections: Mapping[str, int | None],
        *,
        deferred_sync: bool,
    ) -> WriteHandle:
        """The handle of a new ledger, with what the settings add to it: times, hints of the LAC."""
        context = self._context
        codec = EntryCodec(current.metadata.digest_type, password)
        timings = context.recorder.timings
        make = WriteHandle if timings is None else TimedWriteHandle
        handle = make(
            current, codec, context, self._nursery, deferred_sync=deferred_sync, connections=connections
        )
        if isinstance(handle, TimedWriteHandle) and timings is not None:
            handle.measure(timings[names.ADD_ENTRY])
        delay_s = context.config.lac_hint_delay_s
        if delay_s is not None and not deferred_sync:
            hints = LacHints(
                handle.ledger_id,
                codec,
                context,
                handle,
                lambda: handle.metadata.last_ensemble.bookies,
                delay_s,
            )
            handle.on_confirmed(hints.on_confirmed)
            handle.hint_now = hints.hint_now
        return handle

    async def create_adv(
        self,
        *,
        ensemble_size: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        digest_type: DigestType = DigestType.CRC32C,
        password: bytes | None = b"",
        custom: Mapping[str, bytes] | None = None,
        ledger_id: int | None = None,
        deferred_sync: bool = False,
    ) -> AdvWriteHandle:
        """Create a ledger whose caller chooses the entry ids, from 0 on, in any order.

        Arguments and errors are those of ``create``.
        """
        spec = LedgerSpec(
            ensemble_size=ensemble_size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            digest_type=digest_type,
            password=password,
            custom=custom or {},
            ledger_id=ledger_id,
            deferred_sync=deferred_sync,
        )
        handle = await self.create_from(spec)
        return AdvWriteHandle(handle, bytes_waiting_max=self._context.config.bytes_in_flight_max)

    @raises_ledger_errors
    async def open(self, ledger_id: int, *, password: bytes | None = b"", recover: bool = True) -> ReadHandle:
        """Open a ledger for reading. By default a ledger that is not closed is recovered first.

        If cancelled during a recovery, the writer may be fenced already; open the ledger again.

        Args:
            password: None for the one in the ledger's metadata: the right to read them is the right to open.
            recover: Unless the ledger is closed, fence its writer, find its end and close it. If False, the
                ledger does not change, and the handle reads confirmed entries; it may follow a live writer.

        Raises:
            NoSuchLedgerError: There is no such ledger.
            WrongPasswordError: The ledger was created with another password.
            AccessDeniedError: A bookie refuses the recovery.
            LedgerRecoveryError: The end cannot be decided now, since too few bookies reply.
            LedgerReadError: Without recovery: too few bookies returned the LAC.
            MetadataUnavailableError, MetadataStoreError: The metadata store failed.
        """
        context = self._context
        with context.recorder.operation(names.LEDGER_OPEN):
            handle = await self._opened(ledger_id, password, recover)
        handle.start()
        context.recorder.counts[names.LEDGERS_OPENED] += 1
        return handle

    async def _opened(self, ledger_id: int, password: bytes | None, recover: bool) -> ReadHandle:
        context = self._context
        current = await context.catalog.get(ledger_id)
        if password is None:
            password = current.metadata.password or b""
        elif not current.metadata.accepts_password(password):
            raise WrongPasswordError(ledger_id)
        codec = EntryCodec(current.metadata.digest_type, password)
        lac = -1
        if not current.metadata.is_closed:
            if recover:
                self._check_writable(f"opening ledger {ledger_id} with recovery (pass recover=False)")
                current = await recover_ledger(context, current, codec)
            else:
                lac = await query_lac(context, current, codec)
        return ReadHandle(current, codec, context, self._nursery, lac=lac)

    @raises_ledger_errors
    async def recover(self, ledger_id: int) -> None:
        """Fence a ledger, find its end and close it, unless it is closed.

        This is for administrators: the password comes from the metadata. If cancelled, the writer may be
        fenced already; call it again.

        Raises:
            NoSuchLedgerError: There is no such ledger.
            AccessDeniedError: A bookie refuses this client, or has the ledger under another password.
            LedgerRecoveryError: The end cannot be decided now, since too few bookies reply.
            MetadataUnavailableError, MetadataStoreError: The metadata store failed.
        """
        self._check_writable(f"recovering ledger {ledger_id}")
        current = await self._context.catalog.get_newest(ledger_id)
        metadata = current.metadata
        if not metadata.is_closed:
            codec = EntryCodec(metadata.digest_type, metadata.password or b"")
            await recover_ledger(self._context, current, codec)

    @raises_ledger_errors
    async def replica_copy(self, ledger_id: int, own: str) -> ReplicaCopy:
        """Access to the stored bytes of a ledger on all bookies but one, by its newest metadata.

        Args:
            own: The bookie that needs the bytes; it is not read from.

        Raises:
            NoSuchLedgerError, MetadataFormatError
            MetadataUnavailableError, MetadataStoreError: The metadata store failed.
        """
        return ReplicaCopy(await self._context.catalog.get_newest(ledger_id), self._context, own)

    @raises_ledger_errors
    async def replica_check(self, ledger_id: int, *, password: bytes = b"") -> ReplicaCheck:
        """Access to every replica of a ledger's entries, by its newest metadata. The ledger does not change.

        Args:
            password: Of a ledger whose metadata store none.

        Raises:
            NoSuchLedgerError, MetadataFormatError
            LedgerReadError: The ledger is not closed, and too few bookies returned the LAC.
            MetadataUnavailableError, MetadataStoreError: The metadata store failed.
        """
        current = await self._context.catalog.get_newest(ledger_id)
        metadata = current.metadata
        codec = EntryCodec(metadata.digest_type, password if metadata.password is None else metadata.password)
        if metadata.is_closed:
            return ReplicaCheck(current, codec, self._context, metadata.last_entry_id)
        return ReplicaCheck(current, codec, self._context, await query_lac(self._context, current, codec))

    @raises_ledger_errors
    async def delete(self, ledger_id: int) -> None:
        """Delete a ledger in any state; bookies free its space later.

        If the ledger does not exist, nothing happens. If cancelled, it may or may not be deleted.
        """
        self._check_writable(f"deleting ledger {ledger_id}")
        with self._context.recorder.operation(names.LEDGER_DELETE):
            await self._context.catalog.delete(ledger_id)
        self._forget(ledger_id)

    async def stored(self, ledger_id: int) -> StoredLedger:
        """The newest metadata of a ledger with their version and age in the store.

        Raises:
            NoSuchLedgerError, MetadataFormatError
        """
        return await self._context.catalog.stored(ledger_id)

    async def delete_unchanged(self, seen: StoredLedger) -> bool:
        """Delete a ledger only if its metadata are still those that were seen; return True if it is gone.

        False: another client changed them, and nothing was deleted. If cancelled, it may be deleted or not.
        """
        self._check_writable(f"deleting ledger {seen.ledger_id}")
        try:
            with self._context.recorder.operation(names.LEDGER_DELETE):
                await self._context.catalog.delete(seen.ledger_id, expected=seen.version)
        except BadVersionError:
            return False
        self._forget(seen.ledger_id)
        return True

    @raises_ledger_errors
    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        """The current metadata of a ledger in the store.

        Raises:
            NoSuchLedgerError, MetadataFormatError
        """
        return (await self._context.catalog.get(ledger_id)).metadata

    @raises_ledger_errors
    async def ledger_ids(self) -> list[int]:
        """The ids of all ledgers, ascending."""
        return await self._context.catalog.ledger_ids()

    async def bookie_space(self, bookie: str) -> BookieSpace:
        """Return the size and the free space of a bookie's disks.

        Raises:
            BookieError: The bookie cannot be reached, did not reply in time, or refused the request.
        """
        reply = await self._context.transport.call(bookie, BookieInfoRequest())
        if not isinstance(reply, BookieInfoReply) or reply.code is not Code.OK:
            hint = f". {SECURITY_HINT}" if reply.code is Code.UNAUTHORIZED else ""
            raise BookieError(bookie, f"{reply.code.name} for GET_BOOKIE_INFO{hint}")
        if reply.total_disk_bytes is None or reply.free_disk_bytes is None:
            raise BookieError(bookie, "its reply to GET_BOOKIE_INFO lacks the size or the free space")
        return BookieSpace(reply.total_disk_bytes, reply.free_disk_bytes)

    def is_in_session(self, session: MetadataStore) -> bool:
        """True if a transaction of this open session can create a ledger; see ``create``."""
        try:
            return self._context.catalog.store.current_session() is session
        except StoreError:
            return False

    def _check_writable(self, doing: str) -> None:
        if self.read_only:
            raise ReadOnlyError(doing)

    def _forget(self, ledger_id: int) -> None:
        self._context.recorder.counts[names.LEDGERS_DELETED] += 1
        self._on_deleted(ledger_id)

    def lose(self, make_error: Callable[[], LedgerError]) -> None:
        """End all handles that write, now and later: no bookie answers any more. For ``ledger.deploy``."""
        self._lost = make_error
        for handle in tuple(self._writers):
            handle.fail(make_error)

    async def _serve_writer(self, handle: WriteHandle) -> None:
        try:
            await handle.run()
        finally:
            self._writers.discard(handle)
            handle.abandon()
            self._context.recorder.close_source(handle)


def _counters(handle: WriteHandle) -> dict[str, int]:
    return {
        names.ENTRIES_SUBMITTED: handle.last_pushed + 1,
        names.ENTRIES_CONFIRMED: handle.lac + 1,
        names.BYTES_SUBMITTED: handle.length_bytes,
        names.CAPACITY_WAITS: handle.capacity_waits,
    }


def _gauges(handle: WriteHandle) -> dict[str, int]:
    return {names.WRITERS_OPEN: 1, names.PENDING_ADDS: handle.last_pushed - handle.lac}


def _of_transport(transport: Transport) -> dict[str, int]:
    return {
        names.CONNECTIONS_STARTED: transport.connections_started,
        names.CONNECTIONS_FAILED: transport.connections_failed,
        names.CONNECTIONS_LOST: transport.losses,
        names.REQUEST_TIMEOUTS: transport.request_timeouts,
        names.SPECULATIVE_READS: transport.speculative_reads,
    }


def _now(transport: Transport) -> dict[str, int]:
    return {names.CONNECTIONS_OPEN: transport.connections_open}


@asynccontextmanager
async def open_ledger_client(
    store: MetadataStore,
    dial: Dial,
    config: ClientConfig | None = None,
    *,
    root: str = "/ledgers",
    layout: Layout | None = None,
    read_only: bool = False,
    seams: ClientSeams | None = None,
) -> AsyncIterator[LedgerClient]:
    """Open a client. Leaving the block closes its connections and ends its handles; no ledger is closed.

    Args:
        layout: The mapping of ledger ids to nodes; None for that of the root, or the default of a new root.
        read_only: Refuse the calls that change ledgers. The store must refuse changes as well.
        seams: What the program around the client puts in.

    Raises:
        MetadataFormatError: The LAYOUT of the root cannot be parsed, or differs from ``layout``.
        ledger.metadata_store.errors.StoreError: The metadata store failed.
        TracingError: ``ClientConfig.tracing`` needs a library that is not installed.
    """
    config, seams = config or ClientConfig(), seams or ClientSeams()
    tracing = open_tracing() if config.tracing else None
    catalog = await open_catalog(store, root, layout, rng=seams.rng)
    rng = seams.rng or random.Random()
    async with (
        open_membership(store, root, health=BookieHealth(config.placement, rng)) as membership,
        (seams.open_transport or partial(open_transport, dial))(
            membership.resolve, config.transport
        ) as transport,
        open_background() as keeping,
        open_background() as nursery,  # the handles end before ``keeping`` does, and tell what they missed
    ):
        placer = Placer(membership, transport, config.placement, rng)
        nursery.start_soon(placer.run)
        recorder = Recorder(
            trio.lowlevel.current_clock().current_time if config.statistics else None, tracing
        )
        recorder.open_source(transport, partial(_of_transport, transport), partial(_now, transport))
        context = ClientContext(
            transport,
            catalog,
            membership,
            rng,
            config,
            placer,
            open_entry_log=seams.open_entry_log,
            why_read_only=seams.why_read_only,
            recorder=recorder,
        )
        client = LedgerClient(context, nursery, seams, read_only)
        if not read_only:
            keeping.start_soon(client._missed.run)
        yield client
