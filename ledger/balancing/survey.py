"""The facts for a plan: how full the bookies are, and the closed ledgers with their sizes.

Inside: reading metadata and disks, the sizes of replicas; the check that nothing is missing. Not inside: the
choice of moves (``plan``).
Always: it changes nothing. There are facts only of a whole cluster: no ledger is marked as under-replicated,
each bookie that a ledger names is registered, and each registered bookie replies.

Source: our own; docs/running.md.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import aclosing

import attrs

from ledger.balancing.plan import BookieUse, ClosedLedger, Segment
from ledger.catalog.catalog import LedgerCatalog
from ledger.client import BookieSpace, LedgerClient
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
from ledger.replication.marks import UnderReplicatedLedgers
from ledger.runtime.tasks.task_errors import for_each

ENTRY_BYTES = 40  # of the header, the digest and the length of an entry in an entry log
READS_AT_ONCE = 16


@attrs.frozen
class Survey:
    """The cluster at one moment."""

    uses: tuple[BookieUse, ...]
    ledgers: tuple[ClosedLedger, ...]
    open_ledgers: int  # neither counted nor moved: their sizes are not known yet
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
    closed, open_ledgers, unknown = [], 0, 0
    left = iter(await catalog.ledger_ids())

    async def lane(_: int) -> None:
        nonlocal open_ledgers, unknown
        for ledger_id in left:  # the lanes share it
            try:
                metadata = (await catalog.get(ledger_id)).metadata
            except NoSuchLedgerError:
                continue
            except LedgerError:
                unknown += 1
                continue
            _check_registered(ledger_id, metadata, registered.all)
            if metadata.is_closed:
                closed.append(_closed(ledger_id, metadata))
            else:
                open_ledgers += 1

    await for_each(lane, range(READS_AT_ONCE))
    spaces = await _spaces(client, registered.all)
    uses = [
        BookieUse(bookie, space.total_bytes, space.free_bytes, bookie in registered.writable)
        for bookie, space in sorted(spaces.items())
    ]
    closed.sort(key=lambda one: one.ledger_id)
    return Survey(tuple(uses), tuple(closed), open_ledgers, unknown)


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


def _closed(ledger_id: int, metadata: LedgerMetadata) -> ClosedLedger:
    entries = metadata.last_entry_id + 1
    stored_bytes = metadata.length_bytes + ENTRY_BYTES * entries
    segments = []
    for fragment in fragments_of(metadata, metadata.last_entry_id):
        count = max(0, fragment.last - fragment.first + 1)
        # The share of the entries, since the metadata have the length of the whole ledger only.
        replicas = stored_bytes * count * metadata.write_quorum
        size = replicas // (entries * metadata.ensemble_size) if entries else 0
        segments.append(Segment(fragment.first, fragment.bookies, size))
    return ClosedLedger(ledger_id, metadata.write_quorum, metadata.ack_quorum, tuple(segments))


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
