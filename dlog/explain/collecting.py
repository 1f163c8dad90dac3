"""Finding the facts of a log, a ledger or a bookie: in the metadata store, and from bookies.

Inside: reads. Not inside: conclusions.
Always: nothing is changed and no ledger is recovered. A bookie that does not reply costs at most
``BOOKIE_REPLY_S``, and its silence is a fact. Each call may be cancelled at any time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import TypeVar

import trio

from dlog.description import LogDescription, SegmentDescription
from dlog.errors import DLogError, translated
from dlog.explain.facts import BookieFacts, ClusterFacts, CursorFacts, LedgerFacts, LockMember, LogFacts
from dlog.namespace_handle import Namespace
from ledger.catalog.paths import underreplicated_lock_path
from ledger.client import BookieSpace, LedgerClient
from ledger.digest import EntryCodec
from ledger.errors import BookieError, CorruptEntryError, LocationError, NoSuchLedgerError
from ledger.fragments.registered import read_cookie_owners, read_registered
from ledger.metadata import LedgerMetadata
from ledger.metadata_store.errors import NoNodeError
from ledger.metadata_store.lock import in_order, member_owner
from ledger.metadata_store.store import MetadataStore
from ledger.replication.election import current_auditor
from ledger.replication.marks import UnderReplicatedLedgers
from ledger.runtime.clock import wall_ms
from ledger.transport.bookie_requests import read_lac
from namespace.access_control.entries import Denial
from namespace.log_nodes import LogNodes
from namespace.node_reads import read_nodes

BOOKIE_REPLY_S = 3.0
LEDGERS_MAX = 3  # of a log's newest segments that are looked at
CURSORS_MAX = 100

T = TypeVar("T")


async def collect_cluster(client: LedgerClient, *, is_directory: bool = False) -> ClusterFacts:
    """The bookies and the auto-recovery of the client's cluster.

    Args:
        is_directory: The ledgers are those of a directory, which has no auto-recovery.

    Raises:
        ledger.metadata_store.errors.MetadataError: The metadata store failed.
    """
    _check_client(client)
    store, root = client.context.catalog.store.current_session(), client.root
    if is_directory:
        return ClusterFacts(
            writable=client.membership.writable, readonly=client.membership.readonly, has_recovery=False
        )
    registered = await read_registered(store, root)
    marks = UnderReplicatedLedgers(store, root)
    return ClusterFacts(
        writable=registered.writable,
        readonly=registered.readonly,
        with_cookie=await read_cookie_owners(store, root),
        is_recovery_enabled=await marks.is_enabled(),
        auditor=await current_auditor(store, root),
        delay_s=(await marks.recovery_delay()).seconds,
    )


async def racks_of(client: LedgerClient, bookies: Collection[str]) -> dict[str, str]:
    """The racks of bookies, as far as they are known; none if the source of racks cannot be used."""
    try:
        return await client.context.placer.look_up(bookies)
    except LocationError:
        return {}


async def collect_ledger(client: LedgerClient, ledger_id: int, cluster: ClusterFacts) -> LedgerFacts:
    """The facts of one ledger.

    Raises:
        MetadataFormatError: Its metadata or its mark does not parse.
        ledger.metadata_store.errors.MetadataError: The metadata store failed.
    """
    _check_client(client)
    store, root = client.context.catalog.store.current_session(), client.root
    try:
        metadata = (await client.context.catalog.get_newest(ledger_id)).metadata
    except NoSuchLedgerError:
        return LedgerFacts(ledger_id=ledger_id, cluster=cluster, metadata=None)
    mark = None
    is_locked = False
    if cluster.has_recovery:
        mark = await UnderReplicatedLedgers(store, root).get(ledger_id)
        is_locked = await store.exists(underreplicated_lock_path(root, ledger_id)) is not None
    return LedgerFacts(
        ledger_id=ledger_id,
        cluster=cluster,
        metadata=metadata,
        lacs={} if metadata.is_closed else await _lacs(client, ledger_id, metadata),
        marked_missing=None if mark is None else mark.replicas,
        marked_ms=None if mark is None else mark.ctime_ms,
        is_being_restored=is_locked,
        now_ms=wall_ms(),
    )


async def collect_bookie(client: LedgerClient, bookie: str, cluster: ClusterFacts) -> BookieFacts:
    """The facts of one bookie.

    Raises:
        ledger.metadata_store.errors.MetadataError: The metadata store failed.
    """
    _check_client(client)
    found: BookieSpace | str | None = None
    if bookie in cluster.registered:
        found = (await bookie_spaces(client, [bookie]))[bookie]
    marked = 0
    if cluster.has_recovery:
        marks = UnderReplicatedLedgers(client.context.catalog.store.current_session(), client.root)
        marked = sum(bookie in each.mark.replicas for each in await marks.marked())
    space = found if isinstance(found, BookieSpace) else None
    return BookieFacts(
        bookie=bookie,
        cluster=cluster,
        rack=(await racks_of(client, {bookie} & cluster.registered)).get(bookie),
        total_bytes=None if space is None else space.total_bytes,
        free_bytes=None if space is None else space.free_bytes,
        silence=found if isinstance(found, str) else None,
        marked_ledgers=marked,
    )


async def bookie_spaces(client: LedgerClient, bookies: Iterable[str]) -> dict[str, BookieSpace | str]:
    """The disk space of each bookie, or why it did not say."""
    return await _requested(bookies, client.bookie_space)


async def collect_log(namespace: Namespace, name: str) -> LogFacts:
    """The facts of one log.

    Raises:
        LogNotFoundError, LogMetadataError, AccessDeniedError, InvalidLogNameError
        LogUnavailableError: The metadata store cannot be reached. Bookies out of reach are facts.
    """
    if not isinstance(namespace, Namespace):
        raise _wrong_face(namespace)
    store, path, client = namespace.context.store, namespace.context.path, namespace.context.client
    is_directory = namespace.uri.lower().startswith("file:")
    segments: tuple[SegmentDescription, ...] = tuple(await namespace.segments(name))
    described: LogDescription | None = None
    unread = None
    try:
        with trio.fail_after(BOOKIE_REPLY_S):
            described = await namespace.describe_log(name)
    except DLogError as exc:
        unread = str(exc)
    except trio.TooSlowError:
        unread = f"the bookies did not reply within {BOOKIE_REPLY_S:g} s"
    with translated(name, "explaining it"):
        moved_to = await namespace.context.location(name).moved_to()
        cluster = await collect_cluster(client, is_directory=is_directory)
        denied = (await namespace.context.access.entry_of(name)).denied
        members = await _lock_members(store, LogNodes(store, path, name).lock_path)
        ledgers = [await collect_ledger(client, each.ledger_id, cluster) for each in segments[-LEDGERS_MAX:]]
    config = namespace.config.for_scheme("file" if is_directory else "distributedlog")
    return LogFacts(
        name=name,
        cluster=cluster,
        segments=segments,
        first_dlsn=None if described is None else described.first_dlsn,
        last_dlsn=None if described is None else described.last_dlsn,
        lock=members,
        ensemble_size=config.ensemble_size,
        bookies_min=config.ack_quorum if config.writer.degraded_ensemble else config.ensemble_size,
        is_sealed=described is not None and described.is_sealed,
        moved_to=moved_to,
        denied=tuple(each.name.lower() for each in Denial if each in denied),
        cursors=await _cursors(namespace, name, is_readable=unread is None),
        ledgers=tuple(ledgers),
        unread=unread,
        now_ms=wall_ms(),
    )


def _check_client(client: object) -> None:
    if not isinstance(client, LedgerClient):
        raise _wrong_face(client)


def _wrong_face(given: object) -> TypeError:
    return TypeError(
        "dlog.explain is for programs on trio, and takes what dlog.open_namespace and ledger.open_client"
        f" give, not {given!r}"
    )


async def _cursors(namespace: Namespace, name: str, *, is_readable: bool) -> tuple[CursorFacts, ...]:
    cursors = namespace.cursors(name)
    found = []
    for each in (await cursors.list())[:CURSORS_MAX]:
        lag: int | None = None
        if is_readable:
            try:
                with trio.move_on_after(BOOKIE_REPLY_S):
                    lag = await cursors.lag(each)
            except DLogError:
                pass  # the reason of the log's own end says why
        found.append(CursorFacts(name=each.name, position=each.position, lag_records=lag))
    return tuple(found)


async def _lock_members(store: MetadataStore, path: str) -> tuple[LockMember, ...]:
    try:
        names = in_order((await store.children(path)).names)
    except NoNodeError:
        return ()
    nodes = await read_nodes(store, [f"{path}/{name}" for name in names])
    found = []
    for name in names:
        node = nodes[f"{path}/{name}"]
        if node is None:
            continue  # it has gone meanwhile
        owner = member_owner(name)
        found.append(
            LockMember(
                owner=node.value.decode("utf-8", "replace") if owner is None else owner[0],
                session_id=node.stat.ephemeral_owner or None,
                since_ms=node.stat.created_ms,
            )
        )
    return tuple(found)


async def _lacs(client: LedgerClient, ledger_id: int, metadata: LedgerMetadata) -> dict[str, int | str]:
    codec = EntryCodec(metadata.digest_type, metadata.password or b"")

    async def read(bookie: str) -> int:
        return await read_lac(client.context.transport, bookie, ledger_id, codec)

    return await _requested(metadata.last_ensemble.bookies, read)


async def _requested(bookies: Iterable[str], request: Callable[[str], Awaitable[T]]) -> dict[str, T | str]:
    """The reply of each bookie, in the order of ``bookies``, or why there is none."""
    found: dict[str, T | str] = dict.fromkeys(bookies, f"no reply within {BOOKIE_REPLY_S:g} s")

    async def one(bookie: str) -> None:
        try:
            found[bookie] = await request(bookie)
        except (BookieError, CorruptEntryError) as exc:
            found[bookie] = str(exc)

    with trio.move_on_after(BOOKIE_REPLY_S):
        async with trio.open_nursery() as nursery:
            for bookie in found:
                nursery.start_soon(one, bookie)
    return found
