"""The faults of a log's nodes, and the step that mends each.

Inside: the rules, over values that were read. Not inside: reading (``log_reading``), applying a step
(``mending``).
Always: no step deletes a record, makes a number smaller, or gives a number to two segments; a finding without
a step says why nothing can be done.

Source: DistributedLog, DistributedLogAdmin.java (dlck, repairseqno), LogSegmentMetadataStoreUpdater.java,
LogSegmentMetadata.java (docs/metadata.md 16.4, 16.14).
"""

from __future__ import annotations

import enum
import itertools
import shlex
from collections.abc import Iterator

import attrs

from dlog.repair.log_state import LastRecord, LedgerEnd, LogState, SegmentNode
from namespace.log_metadata import LAYOUT_VERSION
from namespace.segments.segment import MAX_TXID, LogSegment, TruncationStatus, segment_seqno_of

UNFINISHED_MAX = 2  # segments in progress that an ordinary recovery can complete


class FindingKind(enum.Enum):
    """A kind of finding of a check. The value is the text for people."""

    NODE_MISSING = "a node is missing"
    LAYOUT_WRONG = "the layout version is wrong"
    SEGMENT_UNREADABLE = "a segment does not parse"
    NAME_WRONG = "a segment's name contradicts its data"
    NUMBER_TWICE = "two segments have one number"
    COMPLETED_TWICE = "a completed segment is also in progress"
    GAP = "a segment is missing"
    MAX_SEQNO_WRONG = "the greatest segment number is wrong"
    MAX_TXID_WRONG = "the greatest transaction id is wrong"
    LEDGER_MISSING = "a ledger is missing"
    LEDGER_UNREADABLE = "the end of a ledger cannot be read"
    LEDGER_OPEN = "the ledger of a completed segment is not closed"
    LAST_RECORD_WRONG = "a segment's last record is wrong"
    UNFINISHED = "a segment is in progress without a writer"
    DEGRADED = "a segment is on fewer bookies than asked"


@attrs.frozen
class DeleteTwin:
    """Delete the node in progress of a completed segment; both name the same ledger."""

    name: str


@attrs.frozen
class Renumber:
    """Give a segment in progress the number after the greatest one."""

    name: str
    segment_seqno: int


@attrs.frozen
class SetMaxSeqno:
    """Write the greatest segment number."""

    segment_seqno: int


@attrs.frozen
class SetMaxTxid:
    """Write the greatest transaction id."""

    txid: int


@attrs.frozen
class SetLastRecord:
    """Write the last record and the count that the ledger has."""

    name: str
    last: LastRecord


@attrs.frozen
class CloseOpenLedger:
    """Recover the ledger of a completed segment, so that its end is decided."""

    name: str


@attrs.frozen
class CompleteSegment:
    """Recover the ledger of a segment in progress, and complete it; delete it if it is empty."""

    name: str


Step = DeleteTwin | Renumber | SetMaxSeqno | SetMaxTxid | SetLastRecord | CloseOpenLedger | CompleteSegment


@attrs.frozen
class Finding:
    """One thing that a check found."""

    kind: FindingKind
    node: str  # the name of the segment's node, or of the log's own node
    evidence: str
    repair: str  # what ``repair_log`` does about it; empty if nothing can be done
    advice: str = ""  # what to do if nothing can be repaired
    is_error: bool = True  # False: ordinary use mends it
    step: Step | None = attrs.field(default=None, repr=False, eq=False)


def findings(state: LogState) -> list[Finding]:
    """All that is wrong, in the order in which it can be mended."""
    found = [
        *_own_nodes(state),
        *_names(state),
        *_twins(state),
        *_gaps(state),
        *_max_seqno(state),
        *_ledgers(state),
        *_max_txid(state),
        *_unfinished(state),
        *_degraded(state),
    ]
    if state.layout.value == LAYOUT_VERSION:
        return found
    # The log is not in the form that this release knows, so it is not changed.
    return [attrs.evolve(each, repair="", step=None) for each in found]


def _own_nodes(state: LogState) -> Iterator[Finding]:
    for path in state.missing:
        yield Finding(
            FindingKind.NODE_MISSING,
            path.rpartition("/")[2],
            f"there is no node {path}",
            "",
            f"`dlog log create {state.log} --exist-ok` creates it with its first value; then check again",
        )
    if state.missing or state.layout.value == LAYOUT_VERSION:
        return
    yield Finding(
        FindingKind.LAYOUT_WRONG,
        "version",
        f"it holds {state.layout.value[:40]!r}, not ffffffff",
        "",
        "a newer release may have written the log; use that release",
    )


def _names(state: LogState) -> Iterator[Finding]:
    for node in state.segments:
        if node.segment is None:
            yield Finding(
                FindingKind.SEGMENT_UNREADABLE,
                node.name,
                node.problem,
                "",
                "restore the node from a backup of the metadata; `dlog log orphans` cannot run until then",
            )
        elif _name_contradicts(node):
            state_text = "in progress" if node.segment.in_progress else "completed"
            yield Finding(
                FindingKind.NAME_WRONG,
                node.name,
                f"its data are those of segment {node.segment.segment_seqno}, {state_text}",
                "",
                "which of the two is right is not known; compare the ledger with `dlog ledger read`",
            )


def _name_contradicts(node: SegmentNode) -> bool:
    assert node.segment is not None  # filtered above
    number = segment_seqno_of(node.name)
    if number is None or not node.segment.segment_seqno:
        return False  # a legacy name, or a version without a number
    return number != node.segment.segment_seqno or node.segment.in_progress != node.name.startswith(
        "inprogress"
    )


def _sound(state: LogState) -> list[SegmentNode]:
    """The nodes that parse and have the name that their data ask for."""
    return [each for each in state.segments if each.segment is not None and not _name_contradicts(each)]


def _twins(state: LogState) -> Iterator[Finding]:
    sound = {each.name for each in _sound(state)}
    numbered = [each for each in state.parsed if each.segment_seqno and each.name in sound]
    greatest = max((each.segment_seqno for each in numbered), default=0)
    for number, group in itertools.groupby(numbered, key=lambda each: each.segment_seqno):
        same = list(group)
        if len(same) < 2:
            continue
        ledgers = {each.ledger_id for each in same}
        running = [each for each in same if each.in_progress]
        if len(ledgers) == 1 and len(running) == 1:
            yield Finding(
                FindingKind.COMPLETED_TWICE,
                running[0].name,
                f"segment {number} with ledger {running[0].ledger_id} is completed, and also in progress",
                f"delete {running[0].name}; the completed segment has the same ledger",
                step=DeleteTwin(running[0].name),
            )
            continue
        evidence = (
            f"segment {number} has the nodes {', '.join(f'{e.name} (ledger {e.ledger_id})' for e in same)}"
        )
        is_last = (state.max_seqno.number or 0) <= greatest + 1
        others = [each for each in numbered if each not in running]
        last_txid = max((max(each.first_txid, each.last_txid) for each in others), default=-1)
        if len(same) == 2 and len(running) == 1 and running[0].first_txid >= last_txid and is_last:
            # A writer gave it a number that was taken: Apache's repairseqno.
            yield Finding(
                FindingKind.NUMBER_TWICE,
                running[0].name,
                evidence,
                f"give {running[0].name} the number {greatest + 1}: it was started after all others",
                step=Renumber(running[0].name, greatest + 1),
            )
        else:
            yield Finding(
                FindingKind.NUMBER_TWICE,
                same[0].name,
                evidence,
                "",
                "which of them belongs to the log is not known; compare the ledgers with `dlog ledger read`",
            )


def _gaps(state: LogState) -> Iterator[Finding]:
    numbered = [each for each in state.parsed if each.version >= 2]
    for before, after in itertools.pairwise(numbered):
        if after.segment_seqno > before.segment_seqno + 1:
            first, last = before.segment_seqno + 1, after.segment_seqno - 1
            lost = f"segment {first}" if first == last else f"segments {first} to {last}"
            yield Finding(
                FindingKind.GAP,
                after.name,
                f"{after.name} follows {before.name}: {lost} missing",
                "",
                "restore the nodes from a backup of the metadata; `dlog log orphans` lists ledgers that no"
                " log names. Readers and writers refuse the log until then",
            )


def _max_seqno(state: LogState) -> Iterator[Finding]:
    if state.missing or len(_sound(state)) < len(state.segments):
        return
    stored, numbers = state.max_seqno.number, [each.segment_seqno for each in state.parsed]
    if not numbers:
        if stored is None:
            yield Finding(
                FindingKind.MAX_SEQNO_WRONG,
                "ledgers",
                f"it holds {state.max_seqno.value[:40]!r}, which is no number, and there is no segment",
                "",
                "the number of the next segment is not known; delete the log and create it again",
            )
        return
    last = max(numbers)
    # A recovery that deletes an empty segment leaves its number behind.
    if stored in (last, last + 1):
        return
    evidence = f"it holds {state.max_seqno.value[:40]!r}, the newest segment is {last}"
    if stored is not None and stored > last:
        yield Finding(
            FindingKind.MAX_SEQNO_WRONG,
            "ledgers",
            evidence,
            "",
            f"segments {last + 1} to {stored} may be lost, and their positions must not be given out again;"
            " restore them from a backup of the metadata",
        )
    else:
        yield Finding(
            FindingKind.MAX_SEQNO_WRONG, "ledgers", evidence, f"write {last}", step=SetMaxSeqno(last)
        )


def _max_txid(state: LogState) -> Iterator[Finding]:
    if state.missing:
        return
    stored = state.max_txid.number
    greatest = max((each.last_txid for each in state.parsed if not each.in_progress), default=0)
    greatest = max(greatest, 0)
    if stored is None or stored < greatest:
        yield Finding(
            FindingKind.MAX_TXID_WRONG,
            "maxtxid",
            f"it holds {state.max_txid.value[:40]!r}, completed segments go up to {greatest}",
            f"write {greatest}",
            step=SetMaxTxid(greatest),
        )
    elif stored > greatest and any(not each.in_progress for each in state.parsed):
        meaning = "the log counts as sealed" if stored == MAX_TXID else f"writers refuse ids below {stored}"
        yield Finding(
            FindingKind.MAX_TXID_WRONG,
            "maxtxid",
            f"it holds {stored}, completed segments go up to {greatest}; {meaning}",
            "",
            "records with greater ids may have been in the log, so the number stays",
            is_error=stored == MAX_TXID,
        )


def _ledgers(state: LogState) -> Iterator[Finding]:
    for node in _sound(state):
        if node.segment is not None and (end := state.ends.get(node.segment.ledger_id)) is not None:
            yield from _ledger(node, node.segment, end)


def _ledger(node: SegmentNode, segment: LogSegment, end: LedgerEnd) -> Iterator[Finding]:
    if end.is_missing:
        if segment.truncation is TruncationStatus.TRUNCATED and not segment.in_progress:
            return  # a purge was interrupted; the next one deletes the node
        lost = "its records are lost" if not segment.in_progress else "an earlier recovery found it empty"
        yield Finding(
            FindingKind.LEDGER_MISSING,
            node.name,
            f"there is no ledger {segment.ledger_id}; {lost}",
            "",
            "the next writer deletes the node"
            if segment.in_progress
            else "truncate the log behind it, so that readers begin there; or restore the ledger's metadata",
            is_error=not segment.in_progress,
        )
    elif segment.in_progress:
        return
    elif end.problem:
        yield Finding(
            FindingKind.LEDGER_UNREADABLE,
            node.name,
            f"ledger {segment.ledger_id}: {end.problem}",
            "",
            "`dlog ledger read` reads from every replica; bring its bookies back",
        )
    elif not end.is_closed:
        yield Finding(
            FindingKind.LEDGER_OPEN,
            node.name,
            f"ledger {segment.ledger_id} is not closed, so its end is not decided",
            f"recover ledger {segment.ledger_id}",
            step=CloseOpenLedger(node.name),
        )
    elif not _agrees(segment, end):
        wanted = end.last_user or end.last
        last, count = segment.last_dlsn, segment.record_count
        stored = f"the node has the last record {last}, txid {segment.last_txid} and {count} records"
        found = "none"
        if wanted is not None:
            found = f"{wanted.dlsn}, txid {wanted.txid} and {wanted.position} records"
        if wanted is None or wanted.dlsn < last or wanted.position < count:
            # Written down, the loss would never be seen again.
            yield Finding(
                FindingKind.LAST_RECORD_WRONG,
                node.name,
                f"{stored}; ledger {segment.ledger_id} has {found}",
                "",
                "the ledger may have lost records, so the node keeps what is known of them",
            )
            return
        yield Finding(
            FindingKind.LAST_RECORD_WRONG,
            node.name,
            f"{stored}; ledger {segment.ledger_id} has {found}",
            f"write {found}",
            step=SetLastRecord(node.name, wanted),
        )


def _agrees(segment: LogSegment, end: LedgerEnd) -> bool:
    """True if the node names the last record of the ledger, or the last one of its users.

    A writer counts up to its last user record; a recovery takes the last record of any kind.
    """
    candidates = [each for each in (end.last, end.last_user) if each is not None]
    counts = {each.position for each in candidates}
    if segment.record_count == 0 and end.last_user is None:
        return True  # only control records: a writer names none of them
    if segment.record_count not in counts:
        return False
    if segment.version < 2:
        return any(segment.last_txid == each.txid for each in candidates)
    return any((segment.last_dlsn, segment.last_txid) == (each.dlsn, each.txid) for each in candidates)


def _unfinished(state: LogState) -> Iterator[Finding]:
    running = [each for each in _sound(state) if each.segment is not None and each.segment.in_progress]
    completed = {each.segment_seqno for each in state.parsed if not each.in_progress}
    running = [each for each in running if each.segment and each.segment.segment_seqno not in completed]
    if state.writer is not None and len(running) <= UNFINISHED_MAX:
        return
    for node in running:
        assert node.segment is not None  # filtered above
        yield Finding(
            FindingKind.UNFINISHED,
            node.name,
            f"ledger {node.segment.ledger_id} is one of {len(running)} in progress"
            if len(running) > 1
            else f"ledger {node.segment.ledger_id} was left by a writer that has ended",
            "recover its ledger and complete it",
            is_error=len(running) > UNFINISHED_MAX,
            step=CompleteSegment(node.name),
        )


def _degraded(state: LogState) -> Iterator[Finding]:
    for node in _sound(state):
        segment = node.segment
        assert segment is not None  # filtered by _sound
        end = state.ends.get(segment.ledger_id)
        if end is None or end.asked is None or segment.truncation is TruncationStatus.TRUNCATED:
            continue
        yield Finding(
            FindingKind.DEGRADED,
            node.name,
            f"ledger {segment.ledger_id} is on {end.bookies} bookies; {end.asked.ensemble_size} and"
            f" {end.asked.write_quorum} copies were asked for, and not there when it began",
            "",
            "its writer begins the next segment on all bookies once they are there"
            if segment.in_progress
            else f"no record is missing; `dlog log heal {shlex.quote(state.log)}` makes the other copies",
            is_error=False,
        )
