"""The verification of logs without Spark: the report, what a restart skips, what lies between segments."""

# covers: spark_integration/pipelines/verifying/parts.py
# covers: spark_integration/pipelines/verifying/report.py
# covers: spark_integration/pipelines/verifying/verifier.py

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

import dlog
import dlog.blocking
from dlog import EntryFault, FaultKind
from dlog.blocking import Namespace
from dlog.blocking.namespace import RepairCalls
from namespace.segments.segment import TruncationStatus
from spark_integration import client
from spark_integration.errors import PipelineError
from spark_integration.options import ClientOptions
from spark_integration.pipelines import Progress, VerificationSummary, verify_logs
from spark_integration.pipelines.verifying.report import (
    SegmentReport,
    between_segments,
    parse_report,
    summary_of,
)
from spark_integration.pipelines.verifying.verifier import open_report_file

SMALL = dlog.NamespaceConfig(writer=dlog.WriterConfig(segment_bytes_max=2_000, entry_bytes_target=256))


@pytest.fixture
def namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Namespace]:
    monkeypatch.setattr(client, "_opened", {})
    with dlog.blocking.open_namespace((tmp_path / "log").as_uri(), config=SMALL) as opened:
        client._opened[os.getpid(), opened.uri, ClientOptions()] = opened
        yield opened


@pytest.fixture
def report(tmp_path: Path) -> Path:
    return tmp_path / "report.jsonl"


class Tasks:
    """Runs tasks as Spark does, and counts them."""

    def __init__(self) -> None:
        self.done: list[tuple[str, int]] = []
        self.rounds_left = 1_000

    def __call__(self, function: Callable[[Any], Any], items: Sequence[Any], /) -> list[Any]:
        if self.rounds_left == 0:
            raise KeyboardInterrupt
        self.rounds_left -= 1
        self.done += [(item.log, item.segment) for item in items]
        return [pickle.loads(pickle.dumps(function(pickle.loads(pickle.dumps(item))))) for item in items]


def write(namespace: Namespace, log: str, count: int) -> None:
    with namespace.open_writer(log, create=True) as writer:
        writer.append_many([b"record %d" % number for number in range(count)])


def verify(tasks: Tasks, namespace: Namespace, path: Path, *logs: str, **options: Any) -> VerificationSummary:
    return verify_logs(tasks, namespace.uri, path, logs=logs, entries_per_task=3, **options)


def lines_of(report: Path, kind: str) -> list[dict[str, Any]]:
    documents = [json.loads(line) for line in report.read_text().splitlines()]
    return [each for each in documents if each["kind"] == kind]


@pytest.mark.slow
def test_all_logs_are_verified_in_parts_and_the_summary_is_last(namespace: Namespace, report: Path) -> None:
    for log in ("a", "b"):
        write(namespace, log, 300)
    namespace.create_log("empty")
    tasks, seen = Tasks(), list[Progress]()
    summary = verify(tasks, namespace, report, report=seen.append)
    assert summary.is_sound
    assert (summary.logs, summary.records, summary.segments_skipped) == (3, 600, 0)
    segments = {(log, each.segment_seqno) for log in ("a", "b") for each in namespace.segments(log)}
    assert set(tasks.done) == segments
    assert summary.segments == len(segments)
    assert len(tasks.done) > len(segments)
    assert {(each["log"], each["segment"]) for each in lines_of(report, "segment")} == segments
    last = json.loads(report.read_text().splitlines()[-1])
    assert (last["kind"], last["is_sound"], last["records"]) == ("summary", True, 600)
    assert seen[-1].records == 600
    with pytest.raises(PipelineError, match="there is no log to verify"):
        verify(tasks, namespace, report, pattern="nothing*")


@pytest.mark.slow
def test_a_verification_that_dies_is_continued_with_what_it_had_not_reported(
    namespace: Namespace, report: Path
) -> None:
    for _ in range(6):
        write(namespace, "a", 100)
    tasks = Tasks()
    tasks.rounds_left = 2
    with pytest.raises(KeyboardInterrupt):
        verify(tasks, namespace, report)
    reported = {(each["log"], each["segment"]) for each in lines_of(report, "segment")}
    assert reported == set(tasks.done)
    with report.open("a") as file:
        file.write('{"kind": "segment", "log": "a", "segm')  # a line that a power cut tore
    again = Tasks()
    summary = verify(again, namespace, report)
    assert summary.is_sound
    assert summary.segments_skipped == len(reported)
    assert summary.records == 600
    assert not reported & set(again.done)
    write(namespace, "a", 1)
    last = Tasks()
    assert verify(last, namespace, report).records == 601
    assert set(last.done) == {("a", namespace.segments("a")[-1].segment_seqno)}


@pytest.mark.slow
def test_segments_with_faults_or_in_progress_are_verified_again(
    namespace: Namespace, report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(namespace, "a", 300)
    first = namespace.segments("a")[0]
    verify_entries = RepairCalls.verify_entries

    def damaged(repair: RepairCalls, log: str, segment: int, **options: Any) -> dlog.EntryVerification:
        found = verify_entries(repair, log, segment, **options)
        if segment != 1 or options["first_entry_id"]:
            return found
        return attrs.evolve(found, faults=(EntryFault(2, "b3:3181", FaultKind.CORRUPT, "its digest"),))

    with monkeypatch.context() as patched:
        patched.setattr(RepairCalls, "verify_entries", damaged)
        summary = verify(Tasks(), namespace, report)
    assert dict(summary.faults) == {"corrupt": 1}
    assert summary.is_damaged
    (line,) = [each for each in lines_of(report, "segment") if not each["is_sound"]]
    assert (line["log"], line["segment"], line["ledger"]) == ("a", 1, first.ledger_id)
    assert line["faults"] == [{"entry": 2, "bookie": "b3:3181", "fault": "corrupt", "evidence": "its digest"}]
    with namespace.open_writer("a") as writer:
        writer.append(b"in progress")
        writer.flush()
        for _ in range(2):
            tasks = Tasks()
            assert verify(tasks, namespace, report).is_sound
            assert ("a", namespace.segments("a")[-1].segment_seqno) in tasks.done
    assert ("a", 1) not in tasks.done


@pytest.mark.slow
def test_a_log_that_does_not_exist_is_in_the_report(namespace: Namespace, report: Path) -> None:
    write(namespace, "a", 10)
    summary = verify(Tasks(), namespace, report, "a", "b")
    assert dict(summary.faults) == {"metadata": 1}
    assert [each["log"] for each in lines_of(report, "log") if not each["is_sound"]] == ["b"]


@pytest.mark.slow
def test_a_log_that_is_deleted_during_the_verification_is_in_the_report(
    namespace: Namespace, report: Path
) -> None:
    write(namespace, "a", 10)

    class Deleting(Tasks):
        def __call__(self, function: Callable[[Any], Any], items: Sequence[Any], /) -> list[Any]:
            namespace.delete_log("a")
            return super().__call__(function, items)

    assert not verify(Deleting(), namespace, report).is_sound


@pytest.mark.slow
def test_a_report_of_another_namespace_or_in_use_is_refused(namespace: Namespace, report: Path) -> None:
    write(namespace, "a", 10)
    verify(Tasks(), namespace, report)
    lines = report.read_text().splitlines()
    for wrong in (
        [lines[0].replace("log", "other"), *lines[1:]],
        lines[1:],
        ["not JSON"],
        [lines[0], '{"kind": "segment"}'],
    ):
        with pytest.raises(PipelineError, match="no report of a verification"):
            parse_report("report", namespace.uri, wrong)
    with open_report_file(report), pytest.raises(PipelineError, match="another verification"):
        verify(Tasks(), namespace, report)


def segment(number: int, **values: Any) -> SegmentReport:
    base = SegmentReport(
        log="a",
        segment=number,
        ledger=number,
        is_closed=True,
        is_completed=True,
        last_entry=9,
        length=100,
        record_count=10,
        last_record=(9, 0),
        start_sequence=10 * number,
        entries=10,
        records=10,
        replicas=30,
        size_bytes=100,
        first_txid=10 * number,
        last_txid=10 * number + 9,
    )
    return attrs.evolve(base, **values)


def test_ids_and_counts_are_checked_between_segments() -> None:
    assert between_segments("a", [segment(1), segment(2), segment(3)]).faults == ()
    back = between_segments("a", [segment(1, last_txid=25), segment(2, first_txid=None, last_txid=None)])
    assert back.faults == ()
    back = between_segments("a", [segment(1, last_txid=25), segment(2), segment(3)])
    assert [fault.kind for fault in back.faults] == [FaultKind.TXID]
    lost = between_segments("a", [segment(1), segment(2, start_sequence=19), segment(3, start_sequence=None)])
    assert [fault.kind for fault in lost.faults] == [FaultKind.METADATA]
    assert "counts 19 records before it, and there are 20" in lost.faults[0].evidence
    summary = summary_of([segment(1)], [back, lost], segments_skipped=0)
    assert dict(summary.faults) == {"metadata": 1, "txid": 1}


def test_unreachable_bookies_alone_are_no_damage() -> None:
    away = segment(1, faults=(EntryFault(1, "b1:3181", FaultKind.UNREACHABLE, "refused"),))
    summary = summary_of([away], [], segments_skipped=0)
    assert (summary.is_sound, summary.is_damaged) == (False, False)


def test_a_segment_is_done_only_if_neither_it_nor_its_ledger_can_have_changed() -> None:
    now = dlog.SegmentDescription(
        segment_seqno=1,
        ledger_id=1,
        is_completed=True,
        first_txid=0,
        last_txid=19,
        record_count=10,
        last_entry_id=9,
        last_slot_id=0,
        start_sequence_id=10,
        completed_ms=0,
        truncation=TruncationStatus.ACTIVE,
    )
    assert segment(1).is_done(now)
    assert segment(1).is_done(attrs.evolve(now, truncation=TruncationStatus.PARTIALLY_TRUNCATED))
    for stale in (
        {"is_closed": False},
        {"is_completed": False},
        {"ledger": 2},
        {"record_count": 11},
        {"last_record": (9, 1)},
        {"faults": (EntryFault(1, None, FaultKind.LOST, ""),)},
    ):
        assert not segment(1, **stale).is_done(now)
    assert not segment(1).is_done(attrs.evolve(now, is_completed=False))
