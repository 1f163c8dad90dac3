"""The pages that name the tests of a bookie name tests that exist."""

from __future__ import annotations

import ast
import re

from tests.places import ROOT

NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
PROMISE = re.compile(r"^\| \d+ \|.*\| (.*) \|$", re.MULTILINE)
FOLDERS = {"": "tests/unit/bookie", "p": "tests/property", "c": "tests/crash", "l": "tests/unit/ledger"}


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


def test_every_promise_of_a_bookie_names_test_files_that_exist() -> None:
    rows = PROMISE.findall((ROOT / "bookie/README.md").read_text("utf-8"))
    assert len(rows) == 15
    missing = []
    for row in rows:
        names = re.findall(r"`(?:([pcl]):)?(\w+)`", row)
        assert names, row
        missing += [name for kind, name in names if not list((ROOT / FOLDERS[kind]).rglob(f"test_{name}.py"))]
    assert missing == []
