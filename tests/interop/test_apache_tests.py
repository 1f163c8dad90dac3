"""Apache's own tests on our bookies: the verdicts, the list, and a selection of the tests themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.interop.apache_tests import (
    Event,
    ListedClass,
    Outcome,
    is_good,
    judge,
    main,
    outcomes_of,
    read_list,
    run_class,
    table,
)
from tests.interop.originals import Originals

REASONS = {"inside": "it looks into a Java bookie"}


def _listed(passes: int, **others: str) -> ListedClass:
    return ListedClass("client.SomeTest", passes, others)


def _verdicts(listed: ListedClass, *outcomes: Outcome) -> list[str]:
    return [each.verdict for each in judge(listed, REASONS, outcomes)]


def test_a_test_that_passes_is_passed_also_if_it_is_listed_otherwise() -> None:
    assert _verdicts(_listed(0, a="inside"), Outcome("a", "passed")) == ["passed"]


def test_a_failure_is_not_applicable_only_with_a_listed_reason() -> None:
    judged = judge(_listed(1, a="inside"), REASONS, [Outcome("a", "failed"), Outcome("b", "failed")])
    assert [(each.outcome.test, each.verdict) for each in judged] == [
        ("a", "not applicable"),
        ("b", "failed"),
    ]
    assert judged[0].reason == REASONS["inside"]
    assert not is_good({"client.SomeTest": judged})


def test_a_listed_name_without_parameters_stands_for_all_of_them() -> None:
    assert _verdicts(_listed(0, a="inside"), Outcome("a[0]", "failed"), Outcome("a[1]", "failed")) == [
        "not applicable",
        "not applicable",
    ]


def test_a_test_that_was_ended_in_its_middle_has_failed() -> None:
    judged = judge(_listed(1), REASONS, [Outcome("a", "began")])
    assert [(each.verdict, each.reason) for each in judged] == [("failed", "it did not end")]


def test_listed_tests_that_did_not_run_are_missing() -> None:
    judged = judge(_listed(3, c="inside"), REASONS, [Outcome("a", "passed")])
    assert [each.verdict for each in judged] == ["passed", "not applicable", "missing"]
    assert not is_good({"client.SomeTest": judged})


def test_the_report_gives_a_reason_for_each_test_that_did_not_pass_and_the_sums() -> None:
    judged = judge(_listed(1, b="inside"), REASONS, [Outcome("a", "passed", bookies=3)])
    text = table({"client.SomeTest": judged})
    assert "    b: not applicable: it looks into a Java bookie" in text
    assert text.endswith("1 classes: 1 not applicable, 1 passed; 3 bookies of ours started")
    assert is_good({"client.SomeTest": judged})


def test_the_end_of_a_test_replaces_its_beginning(tmp_path: Path) -> None:
    events: list[tuple[str, Event]] = [("a", "began"), ("a", "passed"), ("b", "began")]
    lines = [json.dumps({"test": test, "event": event}) for test, event in events]
    (tmp_path / "events.jsonl").write_text("\n".join(lines) + "\n")
    assert [(each.test, each.event) for each in outcomes_of(tmp_path)] == [("a", "passed"), ("b", "began")]


def test_a_jvm_that_runs_no_test_is_a_failure_with_its_output(tmp_path: Path) -> None:
    (tmp_path / "output.log").write_text("no such class\n")
    (outcome,) = outcomes_of(tmp_path)
    assert outcome.event == "failed"
    assert "no such class" in outcome.failure


def test_a_run_that_is_resumed_leaves_out_the_classes_with_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "4.17.3" / "results.jsonl"
    results.parent.mkdir()
    results.write_text(json.dumps({"class": "a.B", "outcomes": [{"test": "t", "event": "passed"}]}) + "\n")
    assert main(["a.B", "--resume", "--results", str(tmp_path)]) == 0
    assert "1 classes: 1 passed" in capsys.readouterr().out


def test_each_listed_test_has_a_reason_that_the_list_explains_and_each_reason_is_used() -> None:
    tests = read_list()
    used = {key for listed in tests.classes.values() for key in listed.others.values()}
    assert used == set(tests.reasons)


def test_the_selection_names_listed_classes_and_only_tests_that_pass() -> None:
    tests = read_list()
    for name, chosen in tests.selection.items():
        assert not set(chosen) & set(tests.classes[name].others)
        assert 0 < len(chosen) <= tests.classes[name].passes


@pytest.mark.interop
@pytest.mark.parametrize("name", sorted(read_list().selection))
def test_our_bookies_pass_apaches_own_tests(originals: Originals, name: str, tmp_path: Path) -> None:
    chosen = read_list().selection[name]
    outcomes = run_class(originals.version, name, tmp_path, only=chosen)
    logs = [each.read_text("utf-8", "replace")[-1500:] for each in sorted(tmp_path.glob("*.log"))]
    failures = [f"{each.test}: {each.event}\n{each.failure}" for each in outcomes if each.event != "passed"]
    assert sorted(each.test for each in outcomes) == sorted(chosen), "\n".join(logs)
    assert not failures, "\n".join([*failures, *logs])
    assert all(each.bookies > 0 for each in outcomes)
