"""Bugs of logs, put back one at a time.

Inside: ``STREAM_BUGS``: the name, the source, a patch of each bug, and the worlds in which it can show. Not
inside: descriptions (``tests/simulation/known_bugs.md``).
Always: the product contains none of this; leaving the ``with`` block removes the bug.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast
from unittest.mock import patch

import attrs
import trio

from dlog.context import NamespaceContext
from dlog.forwarding import shared_shell
from dlog.forwarding.window import ProducerWindow
from dlog.operations import administration
from dlog.promotion import nodes as promotion_nodes
from dlog.promotion import promoter, steps
from dlog.promotion.promoter import Promoter
from dlog.promotion.record import SourcePhase, SourceRecord, TargetRecord
from dlog.promotion.steps import Step
from dlog.read import entries, read_only_log
from dlog.read.read_ahead import ReadAhead, _Fetched
from dlog.repair import healing
from dlog.repair.log_reading import LogPlace
from dlog.testing.history import Rule
from dlog.write import segment_lifecycle, space
from dlog.write.log_writer import LogWriter
from dlog.write.writer_shell import WriterShell
from ledger.client import LedgerClient
from ledger.metadata import LedgerMetadata
from ledger.metadata_store.store import ANY_VERSION
from ledger.replication_asked import AskedReplication
from ledger.write.handle import WriteHandle
from namespace import cursor_nodes, segment_nodes
from namespace.cursor_nodes import Cursor
from namespace.dlsn import DLSN, INVALID_DLSN
from namespace.log_metadata import LogMetadata
from namespace.log_nodes import LogNodes
from namespace.segments import truncation
from namespace.segments.segment import LogSegment
from tests.simulation.faults import KINDS
from tests.simulation.known_bugs import KnownBug
from tests.simulation.streams import promotion, rules, sharing

STREAM_BUGS: dict[str, KnownBug] = {}
LARGE: Mapping[str, Any] = {
    "is_large": True,
    "promotes": False,
    "mode": "plain",
    "logs": 1,
    "writers": 2,
    "readers": 3,
    "operators": 0,
    "deletes": False,
    "truncation": 0.0,
    "retention": "",
    "cursors": 0,
    "pause_s": 0.02,
}
PROMOTING: Mapping[str, Any] = {
    "promotes": True,
    "logs": 1,
    "writers": 1,
    "readers": 1,
    "operators": 2,
    "deletes": False,
    "truncation": 0.0,
    "retention": "",
    "cursors": 0,
    "segment_bytes_max": 1500,
}

HEALING: Mapping[str, Any] = {
    "heals": True,
    "bookies": 3,
    "ensemble_size": 3,
    "write_quorum": 3,
    "ack_quorum": 2,
    "logs": 1,
    "operators": 2,
    "deletes": False,
    "segment_bytes_max": 1500,
    "segment_age_s_max": 0.4,
    "pause_s": 0.1,
}
SHARING: Mapping[str, Any] = {
    "shares": True,
    "mode": "plain",
    "logs": 1,
    "writers": 3,
    "readers": 1,
    "operators": 0,
    "deletes": False,
    "truncation": 0.0,
    "retention": "",
    "cursors": 0,
    "pause_s": 0.02,
    "rounds_max": 80,
}
LOST_OWNERS = ("client crash at any await", "session expiry", "sleeping writer", "partition from the store")
HEALING_FAULTS = (  # few others: a heal needs all bookies for a while
    "broken connection",
    "cancellation",
    "client crash at any await",
    "orderly restart",
    "power cut",
    "read-only bookie",
)


def _known_bug(
    name: str, source: str, *seen_by: str, only: Sequence[str] = (), **shape: object
) -> Callable[[Callable[[], Iterator[None]]], Callable[[], Iterator[None]]]:
    """``only``: the faults that are on; all by default. ``shape``: values of every world's shape. It has no
    promotions, large records, shared and reopened writers unless it names them."""

    def note(patched: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
        switches = {kind: kind in only for kind, each in KINDS.items() if each.weight} if only else {}
        values = {
            "promotes": False,
            "is_large": False,
            "reopens": False,
            "heals": False,
            "shares": False,
        } | shape
        STREAM_BUGS[name] = KnownBug(
            name, source, seen_by, contextmanager(patched), switches=switches, shape=values
        )
        return patched

    return note


@_known_bug(
    "maxtxid ahead of the last record",
    "apache/bookkeeper#2099",
    "a_record_that_is_not_stored_can_be_stored",
    only=("client crash at any await",),
    mode="once",
    segment_age_s_max=0.4,
    logs=1,
    writers=3,
    readers=1,
    operators=0,
    pause_s=0.02,
)
def _maxtxid_ahead() -> Iterator[None]:
    # Starting a segment stores its first transaction id, although no record has it yet.
    original = segment_nodes.start_segment

    async def start_segment(metadata: LogMetadata, segment: LogSegment, **options: Any) -> LogMetadata:
        after = await original(metadata, segment, **options)
        log = metadata.log
        stat = await log.store.put(log.max_txid_path, b"%d" % segment.first_txid)
        return attrs.evolve(after, max_txid=segment.first_txid, max_txid_version=stat.version)

    with patch.object(segment_lifecycle, "start_segment", start_segment):
        yield


@_known_bug(
    "a whole segment skipped",
    "apache/bookkeeper#2898",
    Rule.NO_GAP.name.lower(),
)
def _segment_skipped() -> Iterator[None]:
    # The end of the ledger and a list with two more segments each move the reader on by one segment.
    original = ReadAhead._fetch_segment
    skipped: set[tuple[ReadAhead, int]] = set()

    async def fetch_segment(self: ReadAhead, segment: LogSegment, start: DLSN) -> _Fetched:
        if (self, segment.segment_seqno) in skipped:
            return _Fetched.ALL
        fetched = await original(self, segment, start)
        later = [each for each in self._segments if each.segment_seqno > segment.segment_seqno]
        if fetched is _Fetched.ALL and len(later) >= 2:
            skipped.add((self, later[0].segment_seqno))
        return fetched

    with patch.object(ReadAhead, "_fetch_segment", fetch_segment):
        yield


@_known_bug(
    "truncation that skips segments",
    "DL-158",
    rules.a_truncation_marks_every_segment_before_it.__name__,
)
def _truncation_skips() -> Iterator[None]:
    original = truncation.marked_before

    def marked_before(segments: Any, first_kept: DLSN) -> list[LogSegment]:
        return original(segments, first_kept)[-1:]

    with patch.object(space, "marked_before", marked_before):
        yield


class _KeepsLedgers:
    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def delete_unchanged(self, ledger: object) -> bool:
        return True


@_known_bug(
    "deleted log that leaves its ledgers",
    "DL-206",
    rules.a_segment_is_deleted_after_its_ledger.__name__,
    deletes=True,
    operators=2,
)
def _ledgers_left() -> Iterator[None]:
    original = administration._delete

    async def delete(context: NamespaceContext, *arguments: Any) -> None:
        await original(
            attrs.evolve(context, client=cast(LedgerClient, _KeepsLedgers(context.client))), *arguments
        )

    with patch.object(administration, "_delete", delete):
        yield


@_known_bug(
    "unconditional cursor commit",
    "DistributedLog, ZKSubscriptionStateStore",
    rules.a_cursor_moves_forward_to_a_commit.__name__,
    cursors=1,
    readers=3,
)
def _unconditional_commit() -> Iterator[None]:
    async def advance_cursor(log: LogNodes, cursor: Cursor, position: DLSN, **_: object) -> Cursor:
        path = log.subscriber_path(cursor.name)
        stat = await log.store.put(path, position.to_text().encode(), expected=ANY_VERSION)
        return attrs.evolve(cursor, position=position, version=stat.version)

    with patch.object(cursor_nodes, "advance_cursor", advance_cursor):
        yield


@_known_bug(
    "retention that asks for cursors too early",
    "BKLogWriteHandler, which asks for none",
    rules.a_mark_covers_only_truncated_or_consumed_records.__name__,
    logs=1,
    mode="plain",
    segment_bytes_max=1500,
    retention="bytes",
    cursors=2,
    operators=3,
    truncation=0.0,
)
def _cursors_asked_too_early() -> Iterator[None]:
    asked: dict[tuple[object, str], list[Cursor]] = {}
    original = cursor_nodes.list_cursors

    async def list_cursors(log: LogNodes) -> list[Cursor]:
        key = log.store, log.name
        if key not in asked:
            asked[key] = await original(log)
        return asked[key]

    with patch.object(space, "list_cursors", list_cursors):
        yield


@_known_bug(
    "append once that asks its own memory",
    "docs/known-bugs.md 65",
    Rule.STORED_ONCE.name.lower(),
    only=("client crash at any await", "cancellation", "session expiry"),
    mode="once",
    logs=1,
    writers=3,
    readers=1,
    operators=0,
    pause_s=0.02,
)
def _once_per_writer() -> Iterator[None]:
    async def append_once(self: LogWriter, payload: bytes, *, txid: int, **options: Any) -> DLSN:
        return await self.append(payload, txid=max(txid, self.last_txid), **options)

    with patch.object(LogWriter, "append_once", append_once):
        yield


@_known_bug(
    "conditional append that asks its own memory",
    "docs/known-bugs.md 65",
    Rule.STORED_ONCE.name.lower(),
    only=("client crash at any await", "cancellation", "session expiry"),
    mode="conditional",
    logs=1,
    writers=3,
    readers=1,
    operators=0,
    pause_s=0.02,
)
def _condition_per_writer() -> Iterator[None]:
    original = LogWriter.append_after

    async def append_after(self: LogWriter, payload: bytes, last: DLSN | None, **options: Any) -> DLSN:
        if self._newest is None:
            self._found_last, self._has_looked = last, True
        return await original(self, payload, last, **options)

    with patch.object(LogWriter, "append_after", append_after):
        yield


@_known_bug(
    "log created again taken for the same",
    "DLSNs and segment numbers begin again",
    Rule.ONE_LOG.name.lower(),
    Rule.ONE_SEQUENCE.name.lower(),
    only=("lost watches",),
    logs=1,
    writers=1,
    deletes=True,
    operators=3,
    readers=3,
)
def _same_name() -> Iterator[None]:
    with (
        patch.object(segment_nodes, "check_same_log", lambda *_: None),
        patch.object(read_only_log, "check_still_same_log", lambda *_: None),
    ):
        yield


@_known_bug(
    "takeover without recovery",
    "pravega/pravega PR#1907",
    Rule.NO_LOSS.name.lower(),
    Rule.ONE_SEQUENCE.name.lower(),
    "a_reader_gets_every_record_once_faults_stop",
    only=("client crash at any await", "session expiry", "sleeping writer"),
    logs=1,
    writers=3,
    readers=1,
    operators=0,
    pause_s=0.02,
)
def _no_recovery() -> Iterator[None]:
    original = entries.open_segment_ledger

    def open_segment_ledger(*arguments: Any, recover: bool) -> Awaitable[Any]:
        return original(*arguments, recover=False)

    with patch.object(segment_lifecycle, "open_segment_ledger", open_segment_ledger):
        yield


@_known_bug(
    "window lost at take-over",
    "apache/kafka KAFKA-7190: the state of a producer was lost with its last segment",
    sharing.records_of_a_producer_are_stored_once_and_in_order.__name__,
    Rule.NO_REPEAT.name.lower(),
    only=LOST_OWNERS,
    **SHARING,
)
def _window_lost() -> Iterator[None]:
    async def read_window(*_: object) -> ProducerWindow:
        await trio.lowlevel.checkpoint()
        return ProducerWindow(INVALID_DLSN)

    with patch.object(shared_shell, "read_window", read_window):
        yield


@_known_bug(
    "two owners over an expired session",
    "pravega/pravega PR#1907",
    Rule.NO_LOSS.name.lower(),
    Rule.ONE_SEQUENCE.name.lower(),
    Rule.NO_REPEAT.name.lower(),
    sharing.records_of_a_producer_are_stored_once_and_in_order.__name__,
    "a_reader_gets_every_record_once_faults_stop",
    only=LOST_OWNERS,
    **SHARING,
)
def _two_owners() -> Iterator[None]:
    yield from _no_recovery()


@_known_bug(
    "reopened writer that trusts its own last transaction id",
    "docs/known-bugs.md 65: a writer that asks its own memory",
    rules.a_reopened_writer_is_behind_every_durable_record.__name__,
    Rule.STORED_ONCE.name.lower(),
    only=("session expiry", "sleeping writer", "partition from the store"),
    mode="once",
    logs=1,
    writers=3,
    readers=1,
    operators=0,
    reopens=True,
    rounds_max=80,
    pause_s=0.02,
)
def _reopened_behind() -> Iterator[None]:
    original = LogWriter._use

    def use(self: LogWriter, shell: WriterShell) -> None:
        last_txid = getattr(self, "_last_txid", None)
        original(self, shell)
        if last_txid is not None:
            self._last_txid = last_txid

    with patch.object(LogWriter, "_use", use):
        yield


@_known_bug(
    "target opened while the source takes records",
    "docs/promotion.md: at most one side takes records",
    promotion.at_most_one_side_takes_records.__name__,
    **PROMOTING,
)
def _two_sides() -> Iterator[None]:
    # The hand-over opens the target, and forgets to close the source before.
    async def hand_over(*_: object) -> None:
        pass

    original = steps.next_step

    def next_step(
        log: str, source: SourceRecord | None, target: TargetRecord | None, **options: Any
    ) -> Step | None:
        step = original(log, source, target, **options)
        return Step.FINISH if step is Step.COPY else step

    with (
        patch.object(promoter, "next_step", next_step),
        patch.object(promotion_nodes, "hand_over", hand_over),
    ):
        yield


@_known_bug(
    "promotion that is undone after the hand-over",
    "docs/promotion.md: at most one side takes records",
    promotion.at_most_one_side_takes_records.__name__,
    promotion.a_copy_is_kept_once_it_takes_records.__name__,
    only=("client crash at any await", "partition from the store"),
    **PROMOTING,
)
def _undone_too_late() -> Iterator[None]:
    # Cancelling at the target and opening it are no longer two writes of which one fails: the source is
    # opened again by what it says itself.
    def next_undo_step(log: str, source: SourceRecord | None, target: TargetRecord | None) -> Step | None:
        if source is not None and source.phase is not SourcePhase.UNDOING:
            return Step.REOPEN_SOURCE
        if target is not None:
            return Step.DELETE_TARGET
        return None if source is None else Step.FORGET

    with patch.object(promoter, "next_undo_step", next_undo_step):
        yield


@_known_bug(
    "originals deleted with the hand-over",
    "docs/promotion.md: nothing is deleted before the purge",
    promotion.an_original_is_kept_until_the_target_takes_records.__name__,
    **PROMOTING,
)
def _originals_deleted() -> Iterator[None]:
    # A segment is deleted at the source as soon as its copy is complete.
    original = Promoter._copy_completed

    async def copy_completed(self: Promoter, segment: LogSegment, target: TargetRecord) -> None:
        await original(self, segment, target)
        await self._source.client.delete(segment.ledger_id)

    with patch.object(Promoter, "_copy_completed", copy_completed):
        yield


@_known_bug(
    "record read from between its parts",
    "ours: a position between the parts is a position too",
    "no_client_finds_a_corrupt_log",
    "a_record_is_returned_whole",
    Rule.NO_GAP.name.lower(),
    only=("client crash at any await",),
    **LARGE,
)
def _no_look_back() -> Iterator[None]:
    async def first_part(
        self: ReadAhead, segment: LogSegment, handle: object, start: DLSN, entry: bytes
    ) -> int:
        return start.entry_id

    with patch.object(ReadAhead, "_first_part", first_part):
        yield


@_known_bug(
    "segment exchanged before its copy is complete",
    "docs/metadata.md 16.19: the segment's node is changed after every replica was read",
    rules.a_segment_moves_only_to_a_complete_copy.__name__,
    only=HEALING_FAULTS,
    **HEALING,
)
def _exchanged_too_early() -> Iterator[None]:
    # The node names the new ledger first; then the entries are copied, if the operator lives so long.
    new_ledger, exchange = healing._new_ledger, healing._exchange

    async def early(
        place: LogPlace, segment: LogSegment, ledger: LedgerMetadata, asked: AskedReplication
    ) -> WriteHandle:
        handle = await new_ledger(place, segment, ledger, asked)
        await exchange(place, segment, handle.ledger_id, 0)
        return handle

    async def done(_place: LogPlace, segment: LogSegment, new: int, _until_ms: int) -> LogSegment:
        return attrs.evolve(segment, ledger_id=new)

    with patch.object(healing, "_new_ledger", early), patch.object(healing, "_exchange", done):
        yield
