"""The notebook of the examples runs without a browser, and gives what it says."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.places import ROOT

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def test_the_notebook_of_the_examples_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = ROOT / "examples" / "orders_in_spark.ipynb"
    names: dict[str, Any] = {}
    for number, cell in enumerate(json.loads(path.read_text("utf-8"))["cells"]):
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [], "clear the outputs before a commit"
            exec(compile("".join(cell["source"]), f"{path.name}[{number}]", "exec"), names)
    assert "200 {'id': 400, 'shop': 'north', 'cents': 500}" in capsys.readouterr().out
