"""Ledgers that no log needs: finding them, and deleting those that are certain never to be needed.

Inside: the origin of each unnamed ledger, the age bound, the proof before each deletion.
Not inside: which ledgers logs name (``ledger_references``), free space on the bookies (their garbage
collection follows the deletion).
Always: a ledger that a node of any namespace below the same binding names is never deleted; neither is one
that its creator could still put into a log, whatever the clocks say; one of unknown origin is deleted only if
the caller names it; one of another namespace never.

The proof (docs/metadata.md 16.13): a writer puts a new ledger into its log by a write to the log's
``allocation`` node, conditional on the version that it knew before it created the ledger. The ledger's custom
metadata hold this version. Once the node has a greater one, that write fails for ever. If it has not, this
module takes the log's lock and writes the node itself.

Source: our own; Apache's audit_ledgers only lists.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Iterable

import attrs

from dlog.errors import LogLockedError, LogNotFoundError, translated
from dlog.ownership import delete_ledger
from dlog.repair.ledger_references import (
    LedgerReferences,
    binding_scope,
    log_references,
    stable_references,
)
from dlog.write.opening import locked
from ledger.catalog.catalog import StoredLedger
from ledger.client import LedgerClient
from ledger.errors import MetadataFormatError, NoSuchLedgerError
from ledger.metadata_store.errors import BadVersionError, NoNodeError
from ledger.metadata_store.store import MetadataStore
from ledger.policy import LogMark
from ledger.runtime.tasks.task_errors import for_each
from namespace.log_metadata import LAYOUT_VERSION, allocation_stamp_of
from namespace.log_nodes import LogNodes
from namespace.node_reads import READS_AT_ONCE

SAFE_AGE_S = 86_400.0  # a younger ledger may be about to get into a log
MOVED = "its log was created, deleted or renamed meanwhile; try again"


class OrphanOrigin(enum.Enum):
    """Where a ledger that no log names comes from, as far as it can be proved."""

    THIS_NAMESPACE = "this namespace"  # made for a log of this namespace
    UNPROVEN = "unproven"  # made for a log of a namespace with this path, but that log is gone
    UNKNOWN = "unknown"  # no mark: Apache's writers, an older release, another application
    OTHER_NAMESPACE = "another namespace"  # made for a log of a namespace with another path


@attrs.frozen
class OrphanLedger:
    """A ledger that no log names and no log's allocation holds."""

    ledger_id: int
    origin: OrphanOrigin
    log: str | None  # the log that it was made for; None if the origin is unknown
    namespace: str | None  # the path of that log's namespace
    age_s: float
    length_bytes: int  # 0 unless it was closed
    is_closed: bool


@attrs.frozen
class OrphanOutcome:
    """The result of deleting one ledger."""

    ledger_id: int
    is_deleted: bool
    reason: str  # why it was kept; empty if it was deleted


@attrs.frozen
class OrphanSearch:
    """The namespace and the choices of a search, for each of its steps."""

    store: MetadataStore
    client: LedgerClient
    namespace_path: str
    client_id: str
    now_ms: int
    older_than_s: float = SAFE_AGE_S
    on_progress: Callable[[int, int], None] = lambda _done, _total: None  # ledgers looked at, of all

    def nodes(self, name: str) -> LogNodes:
        """The nodes of a log of the namespace."""
        return LogNodes(self.store, self.namespace_path, name)


@attrs.frozen
class _Candidate:
    orphan: OrphanLedger
    stored: StoredLedger
    root: str | None  # the node of the log that it was made for


async def find_orphans(search: OrphanSearch) -> list[OrphanLedger]:
    """The ledgers that no log names and that are older than the bound, ascending. Changes nothing.

    Raises:
        LogMetadataError: A node does not parse, so the ledgers that it names are not known.
        LogUnavailableError: Logs came or went during every attempt.
    """
    with translated(None, "looking for orphan ledgers"):
        candidates, _ = await _candidates(search, None)
    return [each.orphan for each in candidates.values()]


async def delete_orphans(search: OrphanSearch, ledger_ids: Iterable[int]) -> list[OrphanOutcome]:
    """Look again for orphans, and delete those of these ids that still are.

    If the call is cancelled or fails, some may be deleted. Repeating it is safe.

    Raises: what ``find_orphans`` raises; then nothing was deleted.
    """
    wanted = sorted(set(ledger_ids))
    outcomes = []
    with translated(None, "deleting orphan ledgers"):
        candidates, references = await _candidates(search, frozenset(wanted))
        for ledger_id in wanted:
            reason = "a log names it, or it does not exist, or it is not old enough"
            if ledger_id in candidates:
                reason = await _delete(search, references, candidates[ledger_id])
            outcomes.append(OrphanOutcome(ledger_id, not reason, reason))
    return outcomes


async def _candidates(
    search: OrphanSearch, only: frozenset[int] | None
) -> tuple[dict[int, _Candidate], LedgerReferences]:
    # The ledgers first: one that is created later is not a candidate.
    listed = [each for each in await search.client.ledger_ids() if only is None or each in only]
    scope, is_shared = await binding_scope(search.store, search.namespace_path)
    references = await stable_references(search.store, scope, without=search.client.root)
    unnamed = [each for each in listed if each not in references.ledger_ids]
    found: dict[int, _Candidate] = {}

    async def look(ledger_id: int) -> None:
        try:
            stored = await search.client.stored(ledger_id)
        except (NoSuchLedgerError, MetadataFormatError):
            return  # deleted meanwhile; or written by a release that knows more than this one
        age_s = (search.now_ms - stored.created_ms) / 1000
        if age_s >= search.older_than_s:
            found[ledger_id] = await _candidate(search, stored, age_s, is_shared)

    for start in range(0, len(unnamed), READS_AT_ONCE):
        search.on_progress(start, len(unnamed))
        await for_each(look, unnamed[start : start + READS_AT_ONCE])
    search.on_progress(len(unnamed), len(unnamed))
    return dict(sorted(found.items())), references


async def _candidate(search: OrphanSearch, stored: StoredLedger, age_s: float, is_shared: bool) -> _Candidate:
    metadata = stored.metadata
    try:
        mark = LogMark.of(metadata.custom)
    except MetadataFormatError:
        mark = None
    root = None
    if mark is None:
        origin = OrphanOrigin.UNKNOWN
    elif mark.namespace != search.namespace_path:
        origin = OrphanOrigin.OTHER_NAMESPACE
    else:
        log = search.nodes(mark.log)
        root = log.root_path
        origin = OrphanOrigin.UNPROVEN
        stamp = allocation_stamp_of(metadata.custom)
        allocation = await search.store.exists(log.allocation_path)
        # Another ZooKeeper may hold a namespace of the same path whose ledgers are here, too. The creation
        # of the log's node tells the two apart. A directory has only one namespace.
        if not is_shared or (stamp and allocation and stamp[0] == allocation.created_ms):
            origin = OrphanOrigin.THIS_NAMESPACE
    orphan = OrphanLedger(
        ledger_id=stored.ledger_id,
        origin=origin,
        log=None if mark is None else mark.log,
        namespace=None if mark is None else mark.namespace,
        age_s=age_s,
        length_bytes=metadata.length_bytes,
        is_closed=metadata.is_closed,
    )
    return _Candidate(orphan, stored, root)


async def _delete(search: OrphanSearch, references: LedgerReferences, candidate: _Candidate) -> str:
    """Delete one ledger if it is proved that no log can need it; return the reason if it is not."""
    orphan, root = candidate.orphan, candidate.root
    if orphan.origin is OrphanOrigin.OTHER_NAMESPACE:
        return f"it belongs to the namespace {orphan.namespace}; open that one and look there"

    async def delete() -> str:
        claim = _Unnamed(search.store, candidate, None if root is None else references.logs.get(root))
        return await delete_ledger(search.client, orphan.ledger_id, claim) or ""

    if root is None or orphan.log is None:
        return await delete()
    created_ms = await _created_ms(search.store, root)
    # A log that came since the walk may have been renamed to here with its ledgers, or away with them.
    if created_ms != references.logs.get(root):
        return MOVED
    if created_ms is None or await _is_registration_impossible(search, orphan.log, candidate.stored):
        return await delete()
    return await _delete_under_lock(search, orphan.log, delete)


@attrs.frozen
class _Unnamed:
    """The claim to delete an orphan: nothing has changed since the search found it."""

    store: MetadataStore
    candidate: _Candidate
    created_ms: int | None  # of the log's root node during the search

    async def refusal(self, ledger: StoredLedger) -> str | None:
        """See ``dlog.ownership.Claim``."""
        root = self.candidate.root
        if root is not None and ledger.ledger_id in (await log_references(self.store, root) or ()):
            return "its log names it now"
        # The nodes just read may be missing, or those of another log: a rename took the log away, and
        # perhaps this ledger with it.
        if root is not None and await _created_ms(self.store, root) != self.created_ms:
            return MOVED
        if ledger.version != self.candidate.stored.version:
            return "another client has changed its metadata meanwhile"
        return None


async def _created_ms(store: MetadataStore, path: str) -> int | None:
    stat = await store.exists(path)
    return None if stat is None else stat.created_ms


async def _is_registration_impossible(search: OrphanSearch, log: str, stored: StoredLedger) -> bool:
    stamp = allocation_stamp_of(stored.metadata.custom)
    stat = await search.store.exists(search.nodes(log).allocation_path)
    return stamp is not None and stat is not None and stat.created_ms == stamp[0] and stat.version > stamp[1]


async def _delete_under_lock(search: OrphanSearch, log: str, delete: Callable[[], Awaitable[str]]) -> str:
    """Make the creator's registration impossible by a write to its condition, then delete."""
    nodes = search.nodes(log)
    try:
        async with locked(nodes, search.client_id, 0) as lock:
            try:
                layout = await lock.session.get(nodes.version_path)
                if layout.value != LAYOUT_VERSION:
                    return "its log is closed, as by a move; try again when that has ended"
                node = await lock.session.get(nodes.allocation_path)
                await lock.session.put(nodes.allocation_path, node.value, expected=node.stat.version)
            except (NoNodeError, BadVersionError):
                return "its log has changed meanwhile; try again"
            return await delete()
    except LogLockedError as exc:
        return f"its log has a writer ({exc.owner}), which may need it; try again after its next roll"
    except LogNotFoundError:
        return "its log was deleted meanwhile; try again"
