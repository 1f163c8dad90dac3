"""The document that says which test shows what of the storage engine names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def test_every_test_that_the_document_names_exists_and_every_row_has_one() -> None:
    text = (ROOT / "docs/storage-tests.md").read_text("utf-8")
    rows = [line for line in text.splitlines() if re.match(r"\| \d+ ", line)]
    assert [int(row.split("|")[1]) for row in rows] == list(range(1, 16))
    missing = []
    for row in rows:
        named = NAMED.findall(row)
        assert named, row
        for file, name in named:
            tree = ast.parse((ROOT / file).read_text("utf-8"))
            functions = {
                node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            }
            if name not in functions:
                missing.append(f"{file}::{name}")
    assert missing == []
