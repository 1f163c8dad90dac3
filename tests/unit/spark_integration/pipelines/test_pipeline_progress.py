"""What a pipeline reports, and how a command shows it."""

# covers: spark_integration/commands/session.py
# covers: spark_integration/pipelines/progress.py

from __future__ import annotations

import json

import pytest

from spark_integration.commands.session import progress_lines
from spark_integration.pipelines import Progress

STEPS = [
    Progress(pipeline="archive", log="orders", step="planning"),
    Progress(pipeline="archive", log="orders", step="writing", records=5, records_before=5, records_total=9),
    Progress(pipeline="archive", log="orders", step="writing", records=9, records_before=5, records_total=9),
]


def test_each_report_is_one_document_a_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_lines(as_json=True) as report:
        for each in STEPS:
            report(each)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert [json.loads(line) for line in shown.err.splitlines()] == [each.as_document() for each in STEPS]


def test_people_see_one_line_for_each_step(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_lines(as_json=False) as report:
        for each in STEPS:
            report(each)
    assert capsys.readouterr().err.splitlines() == [
        "orders: planning (0 records done)",
        "orders: writing (5 of 9 records done)",
    ]
