"""Pyright, which many editors ask, completes what a program opens, and shows its arguments.

basedpyright is pyright with a Node.js in a package of Python, so it needs nothing but pip.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.language_server import LanguageServer, language_server
from tests.places import ROOT
from tests.unit.dlog.test_completion import FACES, READER, WRITER, program

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("pyright")]  # one server, 5 s of CPU
NAMESPACE = {"open_writer", "open_reader", "create_log", "describe_log", "properties", "health"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LanguageServer]:
    folder = tmp_path_factory.mktemp("project")
    settings = {"extraPaths": [str(ROOT)], "include": ["program.py"], "typeCheckingMode": "off"}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    with language_server(
        [str(Path(sys.executable).with_name("basedpyright-langserver")), "--stdio"], folder
    ) as it:
        yield it


def asked(server: LanguageServer, method: str, face: str, *blocks: str, last: str) -> Any:
    """The server's answer at the end of a program that an editor has open."""
    lines = program(face, *blocks, last=last)
    document = {"uri": "file:///program.py", "languageId": "python", "version": 1, "text": "\n".join(lines)}
    server.tell("textDocument/didOpen", {"textDocument": document})
    try:
        place = {"line": len(lines) - 1, "character": len(lines[-1])}
        return server.ask(method, {"textDocument": {"uri": document["uri"]}, "position": place})
    finally:
        server.tell("textDocument/didClose", {"textDocument": {"uri": document["uri"]}})


def completed(server: LanguageServer, face: str, *blocks: str, last: str) -> set[str]:
    answer = asked(server, "textDocument/completion", face, *blocks, last=last)
    return {item["label"] for item in (answer["items"] if answer else [])}


@pytest.mark.parametrize("face", FACES)
def test_pyright_completes_what_was_opened(server: LanguageServer, face: str) -> None:
    assert completed(server, face, last="ns.") >= NAMESPACE
    assert completed(server, face, last="ns.repair.") >= {"check", "verify", "recover"}
    assert completed(server, face, WRITER, last="log.") >= {"append", "submit", "flush", "state", "failure"}
    assert completed(server, face, READER, last="reader.") >= {"read_batch", "commit", "position"}
    assert completed(server, face, READER, "for each in reader", last="each.") >= {"dlsn", "txid", "payload"}


@pytest.mark.parametrize("face", FACES)
def test_pyright_shows_the_arguments_of_an_append(server: LanguageServer, face: str) -> None:
    answer = asked(server, "textDocument/signatureHelp", face, WRITER, last="log.append(")
    (signature,) = answer["signatures"]
    for argument in ("payload: ", "txid: int | None", "headers: "):
        assert argument in signature["label"]


def test_a_name_that_is_not_there_is_not_completed(server: LanguageServer) -> None:
    """What the tests above could not see: a server that offers every word, or none."""
    found = completed(server, "dlog", last="ns.")
    assert "append" not in found
    assert completed(server, "dlog", last="unknown.") == set()
