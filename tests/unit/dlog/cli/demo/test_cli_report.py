"""The demo's report: its verdict, and its JSON document."""

# covers: dlog/cli/demo/report.py

from __future__ import annotations

import attrs
import pytest

from dlog.cli.demo.report import DemoReport, quantile

GOOD = DemoReport(
    source="lines.txt",
    deployment="embedded",
    lines=100,
    records=100,
    size_bytes=1000,
    seconds=2.0,
    append_s=[0.001, 0.002, 0.003],
    segments=2,
    acknowledged_before_kill=50,
    acknowledged_lost=0,
    lost=0,
    repeated=0,
    reordered=0,
    changed=0,
    spark_records=None,
)


def test_the_document_has_the_promised_numbers() -> None:
    document = GOOD.document()
    assert document["records_per_s"] == 50.0
    assert document["append_p50_ms"] == 2.0
    assert document["spark_records"] is None


@pytest.mark.parametrize(
    "report",
    [
        attrs.evolve(GOOD, lost=1),
        attrs.evolve(GOOD, repeated=1),
        attrs.evolve(GOOD, reordered=1),
        attrs.evolve(GOOD, changed=1),
    ],
    ids=["lost", "repeated", "reordered", "changed"],
)
def test_one_wrong_record_is_enough(report: DemoReport) -> None:
    assert GOOD.is_good
    assert not report.is_good


def test_spark_must_count_the_same_lines() -> None:
    assert attrs.evolve(GOOD, spark_records=100).is_good
    assert not attrs.evolve(GOOD, spark_records=99).is_good


def test_a_quantile_of_nothing_is_zero() -> None:
    assert quantile([], 0.99) == 0
    assert quantile([1.0], 0.99) == 1.0
