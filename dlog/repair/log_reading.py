"""Reading all nodes of a log as they are, and the ends of its ledgers.

Inside: a stable reading of the nodes, the last records of each completed segment's ledger.
Not inside: what is wrong (``findings``).
Always: nothing is written; a ledger is opened without recovery unless the caller asks for it; nodes that
changed during the reading are read again.

Source: DistributedLog, DistributedLogAdmin.java (checkLogSegment), ReadUtils.java.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from dlog.errors import (
    EntryFormatError,
    LogMetadataError,
    LogNotFoundError,
    LogUnavailableError,
    as_dlog_error,
)
from dlog.format.envelope import open_envelope
from dlog.format.record import FLAG_CONTROL, FLAG_END_OF_STREAM, FLAG_RECORD_SET, decode_records
from dlog.format.record_set import SetBudget, decode_record_set
from dlog.read.entries import SCAN_ENTRIES_FIRST, SCAN_ENTRIES_MAX, open_segment_ledger, read_entries
from dlog.repair.log_state import LastRecord, LedgerEnd, LogNode, LogState, SegmentNode
from dlog.write.opening import lock_owner
from ledger.client import LedgerClient
from ledger.errors import (
    BookieUnavailableError,
    CorruptEntryError,
    LedgerError,
    LedgerReadError,
    NoSuchLedgerError,
)
from ledger.handle import ReadHandle
from ledger.metadata_store.errors import NoNodeError
from ledger.metadata_store.store import Node
from ledger.replication_asked import AskedReplication
from ledger.runtime.tasks.task_errors import for_each
from namespace.dlsn import DLSN
from namespace.log_metadata import closed_by_move, initial_nodes
from namespace.log_nodes import LogNodes
from namespace.node_reads import read_nodes
from namespace.segments.segment import LogSegment, TruncationStatus, decode_segment, is_segment_name

ATTEMPTS_MAX = 20  # each is lost to a writer that changed a segment meanwhile
LEDGERS_AT_ONCE = 8


@attrs.frozen
class LogPlace:
    """Where a log is: its nodes and its ledgers."""

    log: LogNodes
    client: LedgerClient
    password: bytes | None = attrs.field(repr=False)


async def read_state(place: LogPlace) -> LogState:
    """The nodes of a log at one moment, without the ends of its ledgers.

    Raises:
        LogNotFoundError
        LogMovedError, LogMovingError: The log is closed.
        LogUnavailableError: Segments changed during every attempt.
    """
    log, store, parent = place.log, place.log.store, place.log.segments_path
    await store.sync(parent)
    own = [path for path, _ in initial_nodes(log)]
    for _ in range(ATTEMPTS_MAX):
        writer = await lock_owner(log)
        before = await read_nodes(store, own)
        try:
            children = await store.children(parent)
        except NoNodeError:
            raise LogNotFoundError(log.name) from None
        names = [name for name in children.names if is_segment_name(name)]
        nodes = await read_nodes(store, [f"{parent}/{name}" for name in names])
        after = await read_nodes(store, own)
        # The node above the segments shows each change of them by its version or that of its children.
        if None in nodes.values() or _versions(before) != _versions(after):
            continue
        layout = _stored(after[log.version_path])
        if (closed := closed_by_move(log.name, layout.value)) is not None:
            raise closed  # each repair would open it again
        return LogState(
            log=log.name,
            missing=tuple(path for path in own if after[path] is None),
            layout=layout,
            max_seqno=_stored(after[parent]),
            max_txid=_stored(after[log.max_txid_path]),
            segments=tuple(_segment_node(name, nodes[f"{parent}/{name}"]) for name in sorted(names)),
            ends={},
            writer=writer,
        )
    raise LogUnavailableError(
        f"log {log.name!r}: its segments changed during each of {ATTEMPTS_MAX} looks at them; try again"
    )


async def with_ends(
    place: LogPlace, state: LogState, on_progress: Callable[[int, int], None] = lambda _done, _total: None
) -> LogState:
    """The state, read again, with the ends of the ledgers of all segments that are not truncated.

    Raises:
        LogUnavailableError: Bookies are out of reach.
    """
    ends: dict[int, LedgerEnd] = {}
    wanted = [each for each in state.parsed if each.truncation is not TruncationStatus.TRUNCATED]

    async def look(segment: LogSegment) -> None:
        ends[segment.ledger_id] = await ledger_end(place, segment)

    for start in range(0, len(wanted), LEDGERS_AT_ONCE):
        on_progress(start, len(wanted))
        await for_each(look, wanted[start : start + LEDGERS_AT_ONCE])
    on_progress(len(wanted), len(wanted))
    # A segment that was completed or deleted meanwhile is not checked by the end that it had before.
    now = await read_state(place)
    seen = {each.stored.value for each in state.segments}
    kept = {each.segment.ledger_id for each in now.segments if each.segment and each.stored.value in seen}
    return attrs.evolve(now, ends={ledger_id: end for ledger_id, end in ends.items() if ledger_id in kept})


async def ledger_end(place: LogPlace, segment: LogSegment, *, recover: bool = False) -> LedgerEnd:
    """The end of a segment's ledger.

    Args:
        recover: Fence the ledger's writer, find the end, and close the ledger at it.

    Raises:
        LogUnavailableError: Bookies are out of reach.
    """
    try:
        handle = await open_segment_ledger(place.client, segment.ledger_id, place.password, recover=recover)
    except NoSuchLedgerError:
        return LedgerEnd(is_missing=True)
    except LedgerError as exc:
        raise as_dlog_error(exc, place.log.name, f"opening ledger {segment.ledger_id}") from None
    async with handle:
        bookies, asked = handle.metadata.ensemble_size, AskedReplication.of(handle.metadata.custom)
        if not handle.is_closed or (segment.in_progress and not recover):
            return LedgerEnd(is_closed=handle.is_closed, bookies=bookies, asked=asked)
        try:
            last, last_user = await _last_records(handle, segment)
        except (CorruptEntryError, EntryFormatError) as exc:
            return LedgerEnd(problem=str(exc))
        except LedgerReadError as exc:
            if any(isinstance(each, BookieUnavailableError) for each in exc.reasons.values()):
                raise as_dlog_error(exc, place.log.name, f"reading ledger {segment.ledger_id}") from None
            return LedgerEnd(problem=str(exc))
        except LedgerError as exc:
            raise as_dlog_error(exc, place.log.name, f"reading ledger {segment.ledger_id}") from None
    return LedgerEnd(last=last, last_user=last_user, bookies=bookies, asked=asked)


async def _last_records(
    handle: ReadHandle, segment: LogSegment
) -> tuple[LastRecord | None, LastRecord | None]:
    """The last record of any kind, and the last user record."""
    last: LastRecord | None = None
    stop, window = handle.last_confirmed + 1, SCAN_ENTRIES_FIRST
    while stop > 0:
        first = max(0, stop - window)
        entries = await read_entries(handle, first, stop - 1)
        for entry_id, entry in reversed(list(enumerate(entries, first))):
            of_any, of_user = _last_of_entry(entry, entry_id, segment)
            last = last or of_any
            if of_user is not None:
                return last, of_user
        stop, window = first, min(2 * window, SCAN_ENTRIES_MAX)
    return last, None


def _last_of_entry(
    entry: bytes, entry_id: int, segment: LogSegment
) -> tuple[LastRecord | None, LastRecord | None]:
    body, start, stop = open_envelope(entry) if segment.enveloped else (entry, 0, len(entry))
    slot, budget = 0, SetBudget()
    last: LastRecord | None = None
    last_user: LastRecord | None = None
    for flags, position, txid, payload in decode_records(body, start, stop):
        count = len(decode_record_set(payload, budget)) if flags & FLAG_RECORD_SET else 1
        slot += count
        if count:
            last = LastRecord(
                DLSN(segment.segment_seqno, entry_id, slot - 1), txid, position + count - 1 if position else 0
            )
            if not flags & (FLAG_CONTROL | FLAG_END_OF_STREAM):
                last_user = last
    return last, last_user


def _segment_node(name: str, node: Node | None) -> SegmentNode:
    stored = _stored(node)
    try:
        return SegmentNode(name, stored, decode_segment(stored.value, name))
    except LogMetadataError as exc:
        return SegmentNode(name, stored, None, str(exc))


def _stored(node: Node | None) -> LogNode:
    return LogNode(b"", -1) if node is None else LogNode(node.value, node.stat.version)


def _versions(nodes: dict[str, Node | None]) -> list[tuple[str, int, int, int]]:
    # Sorted: the order of the dictionary is that of the replies. The lock's members do not count.
    return sorted(
        (
            path,
            node.stat.version,
            node.stat.created_ms,
            node.stat.child_version if path.endswith("/ledgers") else 0,
        )
        for path, node in nodes.items()
        if node is not None
    )
