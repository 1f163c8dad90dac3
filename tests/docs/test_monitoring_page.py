"""examples/monitoring, by Prometheus' own checker, and the table of alerts in docs/observability.md."""

from __future__ import annotations

import re
import subprocess

import pytest
import yaml

from tests.places import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

EXAMPLES = ROOT / "examples" / "monitoring"
RULES = yaml.safe_load((EXAMPLES / "alerts.yml").read_text("utf-8"))["groups"][0]["rules"]


@pytest.mark.parametrize(
    "words",
    ["check rules alerts.yml", "check config prometheus.yml", "test rules alerts_test.yml"],
    ids=["rules", "config", "cases"],
)
def test_promtool_accepts_the_examples(words: str) -> None:
    checked = subprocess.run(
        ["promtool", *words.split()], cwd=EXAMPLES, capture_output=True, text=True, timeout=60
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_each_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    cases = yaml.safe_load((EXAMPLES / "alerts_test.yml").read_text("utf-8"))["tests"]
    found = {
        (rule["alertname"], bool(rule["exp_alerts"])) for case in cases for rule in case["alert_rule_test"]
    }
    assert found == {(rule["alert"], fires) for rule in RULES for fires in (True, False)}


def test_the_page_lists_each_alert_with_its_expression_and_the_next_command() -> None:
    page = (ROOT / "docs" / "observability.md").read_text("utf-8")
    for rule in RULES:
        command = re.sub(
            r"{{ \$labels\.(\w+) }}", lambda found: found[1].upper(), rule["annotations"]["next"]
        )
        row = f"| `{rule['alert']}` | `{rule['expr']}` for {rule['for']} | `{command}` |\n"
        assert row in page, row
