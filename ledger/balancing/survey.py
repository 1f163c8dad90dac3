"""The facts for a plan: how full the bookies are, and the closed ledgers with their sizes.

Inside: reading metadata and disks, the sizes of replicas; the check that nothing is missing. Not inside: the
choice of moves (``plan``).
Always: it changes nothing. There are facts only of a whole cluster: no ledger is marked as under-replicated,
each bookie that a ledger names is registered, and each registered bookie replies.

Source: our own; docs/running.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from contextlib import aclosing

import attrs

from ledger.balancing.plan import BookieUse, ClosedLedger, Segment
from ledger.catalog.catalog import LedgerCatalog, Versioned
from ledger.client import BookieSpace, LedgerClient
from ledger.context import ClientContext
from ledger.digest import EntryCodec
from ledger.errors import (
    BookieTimeoutError,
    BookieUnavailableError,
    ClusterNotWholeError,
    LedgerError,
    NoSuchLedgerError,
)
from ledger.fragments.fragments import fragments_of
from ledger.fragments.registered import read_registered
from ledger.metadata import LedgerMetadata
from ledger.metadata_store.store import MetadataStore
from ledger.read.lac_query import query_lac
from ledger.read.replica_copy import ReplicaCopy
from ledger.replication.marks import UnderReplicatedLedgers
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tasks.task_errors import for_each

logger = get_logger(__name__)

ENTRY_BYTES = 40  # of the header, the digest and the length of an entry in an entry log
READS_AT_ONCE = 16


@attrs.frozen
class Survey:
    """The cluster at one moment."""

    uses: tuple[BookieUse, ...]
    ledgers: tuple[ClosedLedger, ...]
    open_ledgers: int  # counted by what is confirmed, and not moved
    unknown_ledgers: int  # their metadata do not parse


async def survey(client: LedgerClient, session: MetadataStore, marks: UnderReplicatedLedgers) -> Survey:
    """Read all metadata, and ask the bookies for the sizes of their disks.

    Raises:
        ClusterNotWholeError: A bookie is away, or a ledger is marked.
        BookieError: A bookie refuses to tell.
        ledger.metadata_store.errors.MetadataError: The metadata store failed.
    """
    await check_unmarked(marks)
    root = client.root
    registered = await read_registered(session, root)
    catalog = LedgerCatalog(session, root, client.context.catalog.layout)
    closed, unknown = list[ClosedLedger](), 0
    opened = list[Versioned]()
    left = iter(await catalog.ledger_ids())

    async def lane(_: int) -> None:
        nonlocal unknown
        for ledger_id in left:  # the lanes share it
            try:
                current = await catalog.get(ledger_id)
            except NoSuchLedgerError:
                continue
            except LedgerError:
                unknown += 1
                continue
            metadata = current.metadata
            _check_registered(ledger_id, metadata, registered.all)
            if metadata.is_closed:
                closed.append(_sized(current, metadata.last_entry_id, metadata.length_bytes))
            else:
                opened.append(current)

    await for_each(lane, range(READS_AT_ONCE))
    spaces = await _spaces(client, registered.all)
    others = await _bytes_of_open(client.context, opened)
    uses = [
        BookieUse(bookie, space.total_bytes, space.free_bytes, bookie in registered.writable, others[bookie])
        for bookie, space in sorted(spaces.items())
    ]
    closed.sort(key=lambda one: one.ledger_id)
    return Survey(tuple(uses), tuple(closed), len(opened), unknown)


async def check_unmarked(marks: UnderReplicatedLedgers) -> None:
    """Raise ``ClusterNotWholeError`` if a ledger is marked as under-replicated."""
    async with aclosing(marks.marked_ids()) as ledger_ids:
        async for ledger_id in ledger_ids:
            raise ClusterNotWholeError(
                f"ledger {ledger_id} lacks replicas, so none is moved; wait until auto-recovery has restored"
                " them (`dlog ledger underreplicated`), then run the command again"
            )


def _check_registered(ledger_id: int, metadata: LedgerMetadata, registered: Collection[str]) -> None:
    for ensemble in metadata.ensembles:
        for bookie in ensemble.bookies:
            if bookie not in registered:
                raise ClusterNotWholeError(
                    f"bookie {bookie}, which ledger {ledger_id} names, is away, so no replica is moved; start"
                    " it, or let `dlog autorecovery` restore its ledgers, then run the command again"
                )


def _sized(current: Versioned, last: int, length_bytes: int) -> ClosedLedger:
    metadata, entries = current.metadata, last + 1
    stored_bytes = length_bytes + ENTRY_BYTES * entries
    segments = []
    for fragment in fragments_of(metadata, last):
        count = max(0, fragment.last - fragment.first + 1)
        # The share of the entries, since the length is that of the whole ledger.
        replicas = stored_bytes * count * metadata.write_quorum
        size = replicas // (entries * metadata.ensemble_size) if entries else 0
        segments.append(Segment(fragment.first, fragment.bookies, size))
    return ClosedLedger(current.ledger_id, metadata.write_quorum, metadata.ack_quorum, tuple(segments))


async def _bytes_of_open(context: ClientContext, opened: Collection[Versioned]) -> Counter[str]:
    """The bytes of open ledgers on each bookie, up to what is confirmed."""
    found = Counter[str]()
    left = iter(opened)

    async def lane(_: int) -> None:
        for current in left:  # the lanes share it
            metadata = current.metadata
            codec = EntryCodec(metadata.digest_type, metadata.password or b"")
            try:
                last = await query_lac(context, current, codec)
                if last < 0:
                    continue
                (body,) = await ReplicaCopy(current, context, None).read(last, last, ENTRY_BYTES)
                length_bytes = codec.unpack(body, current.ledger_id, last).length_bytes
            except LedgerError as exc:
                logger.info(
                    "ledger %d is open and not counted: %s",
                    current.ledger_id,
                    exc,
                    extra=event("balance.uncounted", ledger=current.ledger_id, error=exc),
                )
                continue
            for segment in _sized(current, last, length_bytes).segments:
                found.update(dict.fromkeys(segment.bookies, segment.replica_bytes))

    await for_each(lane, range(READS_AT_ONCE))
    return found


async def _spaces(client: LedgerClient, bookies: Collection[str]) -> dict[str, BookieSpace]:
    found: dict[str, BookieSpace] = {}

    async def ask(bookie: str) -> None:
        try:
            found[bookie] = await client.bookie_space(bookie)
        except (BookieUnavailableError, BookieTimeoutError) as exc:
            raise ClusterNotWholeError(
                f"bookie {bookie} does not reply, so no replica is moved: {exc}"
            ) from None

    await for_each(ask, bookies)
    return found
