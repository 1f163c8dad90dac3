"""docs/pulsar.md against examples/pulsar. The example itself downloads a broker, and is run by hand."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.docs.test_shell_page import is_known
from tests.places import ROOT

PAGE = (ROOT / "docs" / "pulsar.md").read_text("utf-8")
EXAMPLE = ROOT / "examples" / "pulsar"


def test_the_page_has_the_configuration_and_the_version_of_the_example() -> None:
    configuration = (EXAMPLE / "broker.conf").read_text("utf-8").split("\n", 1)[1]
    assert f"```text\n{configuration}```" in PAGE
    version = re.search("<version>([0-9.]+[.][0-9]+)</version>", (EXAMPLE / "pom.xml").read_text("utf-8"))
    assert version is not None
    assert f"`pulsar-broker` {version[1]} " in PAGE


def test_the_commands_of_the_example_exist() -> None:
    script = (EXAMPLE / "run.sh").read_text("utf-8")
    named = re.findall(r"(?<![`\w])dlog ([a-z].*?)(?:$| \||\)|>)", script, re.MULTILINE)
    assert len(named) >= 6
    assert [one for one in named if not is_known(one)] == []
    subprocess.run(["sh", "-n", str(EXAMPLE / "run.sh")], check=True, timeout=60)


def test_too_few_messages_are_refused_with_the_number_that_is_needed(tmp_path: Path) -> None:
    for count in ("5000", "19999", "20001"):
        done = subprocess.run(
            ["sh", str(EXAMPLE / "run.sh"), str(tmp_path), count], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 2
        assert f"MESSAGES is {count}; give a multiple of 5000, at least 20000" in done.stderr
    assert list(tmp_path.iterdir()) == []
