"""Applying the steps that mend a log, each as one conditional transaction while the log's lock is held.

Inside: the transaction of each step, and their order: look, apply the first, look again.
Not inside: which steps there are (``findings``).
Always: each transaction writes the node above the segments at the version that was read under the lock, so a
writer that holds an older version stops; a crash between two steps leaves a log with fewer findings than
before; no ledger is deleted unless its recovery found it empty.

Source: DistributedLog, LogSegmentMetadataStoreUpdater.java, DistributedLogAdmin.java.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import assert_never

import attrs

from dlog.errors import LogFencedError, LogMetadataError, LogUnavailableError, translated
from dlog.ownership import NamedByLog, delete_ledger
from dlog.repair.findings import (
    CloseOpenLedger,
    CompleteSegment,
    DeleteTwin,
    Finding,
    Renumber,
    SetLastRecord,
    SetMaxSeqno,
    SetMaxTxid,
    Step,
    findings,
)
from dlog.repair.log_reading import LogPlace, ledger_end, read_state, with_ends
from dlog.repair.log_state import LedgerEnd, LogState
from ledger.metadata_store.errors import BadVersionError, NodeExistsError, NoNodeError
from ledger.metadata_store.store import Check, Create, Delete, Operation, Put
from namespace.log_metadata import LAYOUT_VERSION
from namespace.segments.segment import LogSegment, encode_segment, start_sequence_id_after

STEPS_MAX = 10_000  # a bound for the loop; each step leaves fewer findings


@attrs.frozen
class LogCheck:
    """The findings of a check of one log."""

    log: str
    segments: int
    writer: str | None  # the owner of the lock during the check
    findings: tuple[Finding, ...]

    @property
    def is_consistent(self) -> bool:
        """True if nothing is wrong that ordinary use does not mend."""
        return not any(each.is_error for each in self.findings)


@attrs.frozen
class LogRepair:
    """The findings that a repair has mended, and those that it left."""

    done: tuple[Finding, ...]  # the findings whose repair was applied, in order
    left: LogCheck  # a check afterwards


async def check_log(
    place: LogPlace,
    *,
    read_ledgers: bool = True,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> LogCheck:
    """Look at all nodes of a log and the ends of its ledgers. Changes nothing.

    Raises:
        LogNotFoundError, LogUnavailableError
    """
    with translated(place.log.name, "checking it"):
        state = await read_state(place)
        if read_ledgers:
            state = await with_ends(place, state, on_progress)
    return _check_of(state)


async def repair_log(place: LogPlace, now_ms: Callable[[], int]) -> LogRepair:
    """Apply every step that a check proposes. The caller holds the log's lock, in the session of ``place``.

    If the call is cancelled or fails, some steps may be applied. Repeating it is safe.

    Raises:
        LogFencedError: Another client has changed the log in spite of the lock. Nothing was written over it.
        LogUnavailableError
    """
    done: list[Finding] = []
    with translated(place.log.name, "repairing it"):
        state = await with_ends(place, await read_state(place))
        state = attrs.evolve(state, writer=None)  # it is this process
        for _ in range(STEPS_MAX):
            todo = next((each for each in findings(state) if each.step is not None), None)
            if todo is None or todo.step is None:
                return LogRepair(tuple(done), _check_of(state))
            changed = await _apply(place, state, todo.step, now_ms)
            done.append(todo)
            now = attrs.evolve(await read_state(place), writer=None)
            state = attrs.evolve(now, ends=state.ends | changed)
    raise LogUnavailableError(
        f"log {place.log.name!r}: still damaged after {STEPS_MAX} repairs; check it again"
    )


def _check_of(state: LogState) -> LogCheck:
    return LogCheck(state.log, len(state.segments), state.writer, tuple(findings(state)))


async def _apply(
    place: LogPlace, state: LogState, step: Step, now_ms: Callable[[], int]
) -> dict[int, LedgerEnd]:
    """Apply one step; return the ends of ledgers that it changed."""
    match step:
        case DeleteTwin(name=name):
            segment = _segment(state, name)
            await _commit(place, state, [Delete(place.log.segment_path(name), _version(state, name))])
            return {segment.ledger_id: await ledger_end(place, attrs.evolve(segment, in_progress=False))}
        case Renumber(name=name, segment_seqno=number):
            segment = _segment(state, name)
            moved = attrs.evolve(segment, segment_seqno=number, stored_name=None)
            await _commit(
                place,
                state,
                [
                    Delete(place.log.segment_path(name), _version(state, name)),
                    Create(place.log.segment_path(moved.name), encode_segment(moved)),
                ],
                max_seqno=number,
            )
        case SetMaxSeqno(segment_seqno=number):
            await _commit(place, state, [], max_seqno=number)
        case SetMaxTxid(txid=txid):
            await _commit(place, state, [Put(place.log.max_txid_path, b"%d" % txid, state.max_txid.version)])
        case SetLastRecord(name=name, last=last):
            mended = attrs.evolve(
                _segment(state, name),
                last_txid=last.txid,
                record_count=last.position,
                last_entry_id=last.dlsn.entry_id,
                last_slot_id=last.dlsn.slot_id,
            )
            # Deleted and created, so that readers that watch the list see the change; and the layout's node
            # written, as by each change of a truncation mark.
            await _commit(
                place,
                state,
                [
                    Put(place.log.version_path, LAYOUT_VERSION, state.layout.version),
                    Delete(place.log.segment_path(name), _version(state, name)),
                    Create(place.log.segment_path(name), encode_segment(mended)),
                ],
            )
        case CloseOpenLedger(name=name):
            segment = _segment(state, name)
            return {segment.ledger_id: await ledger_end(place, segment, recover=True)}
        case CompleteSegment(name=name):
            completed = await _complete(place, state, name, now_ms)
            if completed is not None:
                return {completed.ledger_id: await ledger_end(place, completed)}
        case _:
            assert_never(step)
    return {}


async def _complete(
    place: LogPlace, state: LogState, name: str, now_ms: Callable[[], int]
) -> LogSegment | None:
    """Complete a segment in progress; None if it was empty, and is deleted."""
    segment = _segment(state, name)
    end = await ledger_end(place, segment, recover=True)
    if end.problem:
        raise LogMetadataError(
            f"log {place.log.name!r}: the end of {name} cannot be read ({end.problem}), so it was not"
            " completed"
        )
    if end.is_missing or (end.last is None and await _is_empty(place, segment)):
        # The ledger first: a node without a ledger is found again, a ledger without a node is not.
        claim = NamedByLog(place.log, place.log.segment_path(name))
        await delete_ledger(place.client, segment.ledger_id, claim)
        await _commit(place, state, [Delete(place.log.segment_path(name), _version(state, name))])
        return None
    before = [each for each in state.parsed if each.segment_seqno == segment.segment_seqno - 1]
    previous = before[0] if before and not before[0].in_progress else None
    last = end.last
    completed = segment.completed(
        last_txid=segment.first_txid if last is None else last.txid,
        record_count=0 if last is None else last.position,
        last_entry_id=-1 if last is None else last.dlsn.entry_id,
        last_slot_id=-1 if last is None else last.dlsn.slot_id,
        completed_ms=now_ms(),
        start_sequence_id=start_sequence_id_after(previous),
    )
    stored = state.max_txid.number
    txid = max(completed.last_txid, -1 if stored is None else stored)
    await _commit(
        place,
        state,
        [
            Create(place.log.segment_path(completed.name), encode_segment(completed)),
            Delete(place.log.segment_path(name), _version(state, name)),
            Put(place.log.max_txid_path, b"%d" % txid, state.max_txid.version),
        ],
    )
    return completed


async def _is_empty(place: LogPlace, segment: LogSegment) -> bool:
    return (await place.client.metadata(segment.ledger_id)).last_entry_id < 0


async def _commit(
    place: LogPlace, state: LogState, operations: Sequence[Operation], *, max_seqno: int | None = None
) -> None:
    """Commit, with a write to the node above the segments at the version that was read."""
    value = state.max_seqno.value if max_seqno is None else b"%d" % max_seqno
    guard = Put(place.log.segments_path, value, state.max_seqno.version)
    # The layout says that the log is not closed.
    versions = {
        place.log.max_txid_path: state.max_txid.version,
        place.log.version_path: state.layout.version,
    }
    written = {each.path for each in operations if isinstance(each, Put)}
    others = [Check(path, version) for path, version in versions.items() if path not in written]
    try:
        await place.log.store.commit([guard, *others, *operations])
    except (BadVersionError, NodeExistsError, NoNodeError) as exc:
        raise LogFencedError(
            place.log.name, f"another client has changed it during the repair: {exc}"
        ) from None


def _segment(state: LogState, name: str) -> LogSegment:
    segment = next(each.segment for each in state.segments if each.name == name)
    assert segment is not None, name  # its finding parsed it
    return segment


def _version(state: LogState, name: str) -> int:
    return next(each.stored.version for each in state.segments if each.name == name)
