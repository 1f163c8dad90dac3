"""The report of a verification: lines of JSON.

The first line names the namespace. Each further line has the findings of one segment, or of what lies between
the segments of a log; a later line of the same segment or log replaces an earlier one. The last line is the
summary::

    {"kind": "report", "v": 1, "uri": "distributedlog://a:2181/ns"}
    {"kind": "segment", "log": "orders", "segment": 7, "ledger": 812, "is_sound": false, ...,
     "faults": [{"entry": 1041, "bookie": "b3:3181", "fault": "corrupt", "evidence": "..."}]}
    {"kind": "log", "log": "orders", "segments": 7, "is_sound": true, "faults": []}
    {"kind": "summary", "logs": 1, "segments": 7, "is_sound": false, ...}

Inside: the values and their lines, what makes a segment done, what is checked between segments. Not inside:
the file (``verifier``). Pure.

Source: our own; docs/pipelines.md.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from dlog import EntryFault, EntryVerification, FaultKind, SegmentDescription
from spark_integration.errors import PipelineError

VERSION = 1
FAULTS_MAX = 10_000  # in the line of a segment


@attrs.frozen(kw_only=True)
class SegmentReport:
    """The findings of one segment. Its fields are those of its line."""

    log: str
    segment: int
    ledger: int
    is_closed: bool  # the ledger
    is_completed: bool  # the segment
    last_entry: int  # of the ledger
    length: int  # of the ledger, in bytes
    record_count: int | None  # by the metadata of the segment, as the next ones
    last_record: tuple[int, int]  # entry and slot
    start_sequence: int | None
    entries: int
    records: int
    replicas: int
    size_bytes: int
    first_txid: int | None
    last_txid: int | None
    faults: tuple[EntryFault, ...] = ()
    faults_left_out: int = 0

    @property
    def is_sound(self) -> bool:
        """True if nothing is wrong, and every replica was read."""
        return not self.faults

    def is_done(self, now: SegmentDescription) -> bool:
        """True if the segment was found sound, and neither it nor its ledger has changed or can change."""
        return (
            self.is_sound
            and self.is_closed
            and self.is_completed
            and now.is_completed
            and self.ledger == now.ledger_id
            and self.record_count == now.record_count
            and self.last_record == (now.last_entry_id, now.last_slot_id)
        )

    def line(self) -> str:
        """The line, without its end."""
        document = attrs.asdict(self, recurse=False, filter=lambda each, _: each.name != "faults")
        return json.dumps(
            {"kind": "segment", **document, "is_sound": self.is_sound, "faults": _documents(self.faults)}
        )


def joined(described: SegmentDescription, parts: Sequence[EntryVerification]) -> SegmentReport:
    """The findings of a segment, from those of its parts in order."""
    last = parts[-1]
    faults = [fault for part in parts for fault in part.faults]
    txids = [txid for part in parts for txid in (part.first_txid, part.last_txid) if txid is not None]
    return SegmentReport(
        log=last.log,
        segment=last.segment_seqno,
        ledger=last.ledger_id,
        is_closed=all(part.is_closed for part in parts),
        is_completed=described.is_completed,
        last_entry=last.last_entry_id,
        length=last.length_bytes,
        record_count=described.record_count,
        last_record=(described.last_entry_id, described.last_slot_id),
        start_sequence=described.start_sequence_id,
        entries=sum(part.entries for part in parts),
        records=sum(part.records for part in parts),
        replicas=sum(part.replicas for part in parts),
        size_bytes=sum(part.size_bytes for part in parts),
        first_txid=txids[0] if txids else None,
        last_txid=txids[-1] if txids else None,
        faults=tuple(faults[:FAULTS_MAX]),
        faults_left_out=sum(part.faults_left_out for part in parts) + max(0, len(faults) - FAULTS_MAX),
    )


@attrs.frozen(kw_only=True)
class LogReport:
    """The faults between the segments of a log, or of the log as a whole."""

    log: str
    segments: int
    faults: tuple[EntryFault, ...] = ()

    def line(self) -> str:
        """The line, without its end."""
        return json.dumps(
            {
                "kind": "log",
                "log": self.log,
                "segments": self.segments,
                "is_sound": not self.faults,
                "faults": _documents(self.faults),
            }
        )


def between_segments(log: str, segments: Sequence[SegmentReport]) -> LogReport:
    """Check what the checks of single segments do not see; the segments are in order."""
    faults = []
    greatest = -1
    before: SegmentReport | None = None
    for segment in segments:
        if segment.first_txid is not None and segment.first_txid < greatest:
            evidence = (
                f"segment {segment.segment} begins with txid {segment.first_txid} after txid {greatest}"
            )
            faults.append(EntryFault(-1, None, FaultKind.TXID, evidence))
        if segment.last_txid is not None:
            greatest = max(greatest, segment.last_txid)
        if before is not None and (problem := _sequence_problem(before, segment)) is not None:
            faults.append(EntryFault(-1, None, FaultKind.METADATA, problem))
        before = segment
    return LogReport(log=log, segments=len(segments), faults=tuple(faults))


def _sequence_problem(before: SegmentReport, segment: SegmentReport) -> str | None:
    """Why the number of records before a segment does not fit the segment before it."""
    known = (before.start_sequence, before.record_count, segment.start_sequence)
    if any(number is None or number < 0 for number in known):
        return None  # in progress, or of a release that does not store it
    expected = (before.start_sequence or 0) + (before.record_count or 0)
    if segment.start_sequence == expected:
        return None
    return (
        f"segment {segment.segment} counts {segment.start_sequence} records before it, and there are"
        f" {expected}"
    )


@attrs.frozen(kw_only=True)
class VerificationSummary:
    """The result of a verification, of all segments in the report that exist now."""

    logs: int
    segments: int
    segments_skipped: int  # found sound by an earlier run with the same report
    entries: int
    records: int
    replicas: int
    size_bytes: int
    faults: Mapping[str, int]  # by kind; empty if all is sound

    @property
    def is_sound(self) -> bool:
        """True if nothing is wrong, and every replica was read."""
        return not self.faults

    @property
    def is_damaged(self) -> bool:
        """True if something is wrong; False also if bookies were out of reach and nothing else was found."""
        return bool(set(self.faults) - {FaultKind.UNREACHABLE.value})

    def line(self) -> str:
        """The line, without its end."""
        return json.dumps({"kind": "summary", **attrs.asdict(self), "is_sound": self.is_sound})


def summary_of(
    segments: Iterable[SegmentReport], logs: Sequence[LogReport], *, segments_skipped: int
) -> VerificationSummary:
    """The sums of all findings."""
    counted = list(segments)
    kinds: Counter[str] = Counter()
    for faults in (*(each.faults for each in counted), *(each.faults for each in logs)):
        kinds.update(fault.kind.value for fault in faults)
    return VerificationSummary(
        logs=len(logs),
        segments=len(counted),
        segments_skipped=segments_skipped,
        entries=sum(each.entries for each in counted),
        records=sum(each.records for each in counted),
        replicas=sum(each.replicas for each in counted),
        size_bytes=sum(each.size_bytes for each in counted),
        faults=dict(sorted(kinds.items())),
    )


def first_line(uri: str) -> str:
    """The first line, without its end."""
    return json.dumps({"kind": "report", "v": VERSION, "uri": uri})


def parse_report(name: str, uri: str, lines: Sequence[str]) -> dict[tuple[str, int], SegmentReport]:
    """The newest findings of each segment in a report.

    Args:
        name: Of the file, for messages.
        uri: The namespace that the report must be of.

    Raises:
        PipelineError: The lines are no report of this namespace and version.
    """
    found: dict[tuple[str, int], SegmentReport] = {}
    try:
        for number, line in enumerate(lines):
            document = json.loads(line)
            if number == 0 and (document["kind"], document["v"]) != ("report", VERSION):
                raise ValueError("its first line is of another version or kind")
            if number == 0 and document["uri"] != uri:
                raise ValueError(f"it is of the namespace {document['uri']}")
            if document["kind"] == "segment":
                segment = _segment_of(document)
                found[segment.log, segment.segment] = segment
    except (ValueError, TypeError, KeyError, RecursionError) as exc:
        raise PipelineError(
            f"{name}: this is no report of a verification of {uri}: {exc}. Nothing was verified; give"
            " another file"
        ) from exc
    return found


def _segment_of(document: dict[str, Any]) -> SegmentReport:
    faults = tuple(
        EntryFault(each["entry"], each["bookie"], FaultKind(each["fault"]), each["evidence"])
        for each in document["faults"]
    )
    values = {
        field.name: document[field.name]
        for field in attrs.fields(SegmentReport)
        if field.name not in ("faults", "last_record")
    }
    entry, slot = document["last_record"]
    return SegmentReport(**values, last_record=(entry, slot), faults=faults)


def _documents(faults: Iterable[EntryFault]) -> list[dict[str, object]]:
    return [
        {"entry": each.entry_id, "bookie": each.bookie, "fault": each.kind.value, "evidence": each.evidence}
        for each in faults
    ]
