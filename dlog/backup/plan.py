"""What a restore writes: all or some logs of a manifest, or one log up to a position.

A position cuts a log after its entry: the records of one entry were written together. The segment with it is
in progress again, so that its recovery counts what is left. Cursors after the cut are moved to it, because
the log will have other records there.

Inside: choosing and changing nodes and ledgers. Not inside: writing them (``restoring``).
Always: the nodes of a log name no ledger that is not restored, beside those that the backup did not have.

Source: our own; docs/backup.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import attrs

from dlog.backup.content import NamedSegment, belongs_to, blobs_in, logs_in, segments_in
from dlog.backup.errors import BackupNotFoundError
from dlog.backup.format import BackupManifest, LedgerCopy
from dlog.errors import LogMetadataError
from namespace.dlsn import DLSN
from namespace.log_metadata import INITIAL_MAX_TXID, LAYOUT_VERSION
from namespace.log_nodes import UNPARTITIONED
from namespace.segments.segment import INVALID_TXID, encode_segment


@attrs.frozen(kw_only=True)
class RestorePlan:
    """The nodes by their paths below the namespace, and the ledgers, each up to its ``last``."""

    logs: tuple[str, ...]
    unfinished: tuple[str, ...]  # logs with a segment in progress, which take changes
    nodes: Mapping[str, bytes] = attrs.field(repr=False)
    ledgers: Mapping[int, LedgerCopy] = attrs.field(repr=False)


def plan_restore(
    manifest: BackupManifest, logs: Collection[str] | None = None, position: DLSN | None = None
) -> RestorePlan:
    """What to write for these logs; None for all.

    Args:
        position: The last one of the one log that is named.

    Raises:
        BackupNotFoundError: A log is not in the backup, or has no such position in it.
        LogMetadataError: A node of the backup does not parse.
    """
    there = logs_in(manifest)
    wanted = sorted(set(there if logs is None else logs))
    if lacking := [each for each in wanted if each not in there]:
        raise BackupNotFoundError(
            f"the backup has no log {lacking[0]!r}; `dlog backup list --logs` prints its logs"
        )
    nodes = {
        path: value for path, value in manifest.nodes.items() if logs is None or belongs_to(path, wanted)
    }
    for log in wanted:
        root = f"{log}/{UNPARTITIONED}"
        nodes[f"{root}/allocation"] = b""  # the ledger for the next segment is not restored
        nodes.pop(f"{root}/dlog-heal", None)  # nor are ledgers that were replaced by copies
    nodes.pop("", None)  # the binding of a cluster
    ledgers = dict(manifest.ledgers)
    if position is not None:
        (log,) = wanted
        ledgers = _cut(log, nodes, ledgers, position)
    segments = segments_in(nodes.items())
    named = {each.segment.ledger_id for each in segments} | blobs_in(nodes.items()).keys()
    in_progress = {each.log for each in segments if each.segment.in_progress}
    # A log that was moved away is closed here, and stays so.
    is_open = {log for log in wanted if nodes.get(f"{log}/{UNPARTITIONED}/version") == LAYOUT_VERSION}
    return RestorePlan(
        logs=tuple(wanted),
        unfinished=tuple(sorted(in_progress & is_open)),
        nodes=nodes,
        ledgers={each: copy for each, copy in ledgers.items() if each in named},
    )


def _cut(
    log: str, nodes: dict[str, bytes], ledgers: dict[int, LedgerCopy], position: DLSN
) -> dict[int, LedgerCopy]:
    """Cut a log after the entry of a position; return the ledgers. ``nodes`` are changed."""
    root = f"{log}/{UNPARTITIONED}"
    segments = [each for each in segments_in(nodes.items()) if each.log == log]
    cut = next((each for each in segments if each.segment.segment_seqno == position.segment_seqno), None)
    copy = None if cut is None else ledgers.get(cut.segment.ledger_id)
    if cut is None or copy is None or not 0 <= position.entry_id <= copy.last:
        raise BackupNotFoundError(f"log {log!r}: {position} is not in the backup, {_ends(segments, ledgers)}")
    for each in segments:
        if each.segment.segment_seqno >= position.segment_seqno:
            del nodes[f"{root}/ledgers/{each.segment.name}"]
    again = attrs.evolve(
        cut.segment,
        in_progress=True,
        last_txid=INVALID_TXID,
        completed_ms=0,
        record_count=0,
        last_entry_id=-1,
        last_slot_id=-1,
        stored_name=None,
    )
    nodes[f"{root}/ledgers/{again.name}"] = encode_segment(again)
    nodes[f"{root}/ledgers"] = b"%d" % position.segment_seqno
    left = [
        each.segment.last_txid for each in segments if each.segment.segment_seqno < position.segment_seqno
    ]
    nodes[f"{root}/maxtxid"] = b"%d" % max([int(INITIAL_MAX_TXID), *left])
    for path, value in nodes.items():
        above, is_cursor, name = path.partition(f"{root}/subscribers/")
        if not above and is_cursor and "/" not in name and _is_after(value, position):
            nodes[path] = position.to_text().encode()
    return {**ledgers, cut.segment.ledger_id: attrs.evolve(copy, last=position.entry_id, is_closed=True)}


def _ends(segments: list[NamedSegment], ledgers: Mapping[int, LedgerCopy]) -> str:
    held = [each for each in segments if each.segment.ledger_id in ledgers]
    if not held:
        return "which has no records of it"
    last = held[-1].segment
    first = held[0].segment.segment_seqno
    return (
        f"which has it from segment {first} to entry {ledgers[last.ledger_id].last} of segment"
        f" {last.segment_seqno}"
    )


def _is_after(cursor: bytes, position: DLSN) -> bool:
    try:
        found = DLSN.from_text(cursor.decode("ascii", "replace"))
    except LogMetadataError:
        return False  # damaged before the backup; it stays as it was
    return (found.segment_seqno, found.entry_id) > (position.segment_seqno, position.entry_id)
