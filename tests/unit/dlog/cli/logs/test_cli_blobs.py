"""`dlog blob`, called with the arguments of a shell."""

# covers: dlog/cli/logs/blob.py

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

import dlog.blocking
from dlog.cli.main import main

pytestmark = pytest.mark.slow
Run = pytest.CaptureFixture[str]
CONTENT = bytes(range(256)) * 3_000


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DLOG_URI", (tmp_path / "namespace").as_uri())
    path = tmp_path / "picture.png"
    path.write_bytes(CONTENT)
    return path


def test_a_file_is_put_shown_listed_got_and_deleted(source: Path, tmp_path: Path, capfd: Run) -> None:
    assert main(["blob", "list", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == []
    assert main(["blob", "put", "a/b", str(source), "--label", "owner=me=", "--json"]) == 0
    put = json.loads(capfd.readouterr().out)
    assert put["sha256"] == hashlib.sha256(CONTENT).hexdigest()
    assert (put["content_type"], put["labels"]) == ("image/png", {"owner": "me="})
    assert main(["blob", "show", "a/b", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == put
    assert main(["blob", "list", "a/", "--json", "--read-only"]) == 0
    assert json.loads(capfd.readouterr().out) == [put]
    assert main(["blob", "show", "a/b"]) == 0
    assert main(["blob", "list"]) == 0
    assert capfd.readouterr().out.count("image/png") == 2
    copy = tmp_path / "copy"
    assert main(["blob", "get", "a/b", str(copy)]) == 0
    assert copy.read_bytes() == CONTENT
    assert main(["blob", "get", "a/b", str(copy)]) == 2
    assert "--force" in capfd.readouterr().err
    assert main(["blob", "get", "a/b", str(copy), "--force", "--range", "300000:300010", "--json"]) == 0
    assert copy.read_bytes() == CONTENT[300_000:300_010]
    assert json.loads(capfd.readouterr().out) == {
        "name": "a/b",
        "id": put["id"],
        "file": str(copy),
        "start": 300_000,
        "size_bytes": 10,
    }
    assert main(["blob", "delete", "a/b", "--yes"]) == 0
    assert main(["blob", "get", "a/b", str(copy), "--force"]) == 3
    assert copy.read_bytes() == CONTENT[300_000:300_010]
    assert main(["blob", "list"]) == 0
    assert "no blobs" in capfd.readouterr().err


def test_a_blob_is_replaced_only_if_that_is_said(source: Path, capfd: Run) -> None:
    assert main(["blob", "put", "a", str(source), "--json"]) == 0
    first = json.loads(capfd.readouterr().out)["id"]
    assert main(["blob", "put", "a", str(source)]) == 4
    assert main(["blob", "put", "a", str(source), "--replace"]) == 0
    assert main(["blob", "put", "a", str(source), "--expect", first]) == 5
    assert "Nothing was changed" in capfd.readouterr().err
    assert main(["blob", "sweep", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == {"uploads": 0, "ledgers": 0, "live": 0}


def test_wrong_command_lines_change_nothing(source: Path, tmp_path: Path, capfd: Run) -> None:
    for words in (
        ["put", "/a", str(source)],
        ["put", "a", str(source), "--label", "owner"],
        ["get", "a", str(tmp_path / "copy"), "--range", "5:2"],
        ["get", "a", str(tmp_path / "copy"), "--range", "x"],
        ["get", "a", "-", "--json"],
    ):
        assert main(["blob", *words]) == 2, words
    assert main(["blob", "put", "a", str(tmp_path / "nothing")]) == 3
    assert not (tmp_path / "copy").exists()
    assert main(["blob", "list", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == []


def test_stdin_and_stdout_take_the_place_of_files(source: Path) -> None:
    dlog_ = [sys.executable, "-m", "dlog", "blob"]
    subprocess.run([*dlog_, "put", "a", "-"], input=CONTENT, check=True, capture_output=True)
    got = subprocess.run([*dlog_, "get", "a", "-", "--range", "10:"], check=True, capture_output=True)
    assert got.stdout == CONTENT[10:]
    assert got.stderr == b""


def test_a_damaged_blob_leaves_no_file_and_has_its_exit_code(
    source: Path, tmp_path: Path, capfd: Run
) -> None:
    with dlog.blocking.open_namespace((tmp_path / "namespace").as_uri()) as namespace:
        put = namespace.blobs.put("a", io.BytesIO(CONTENT))
    assert main(["ledger", "delete", str(put.pieces[0].ledger_id), "--yes"]) == 0
    copy = tmp_path / "copy"
    assert main(["blob", "get", "a", str(copy)]) == 7
    assert "Put the blob again" in capfd.readouterr().err
    assert not copy.exists()
