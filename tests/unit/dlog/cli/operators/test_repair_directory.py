"""`dlog repair`: lost metadata of a directory come back from their second copy."""

# covers: dlog/cli/operators/repair.py
# covers: ledger/deploy/repair.py

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import dlog
import dlog.blocking
from dlog.cli.operators.repair import command


def write(path: Path) -> None:
    with (
        dlog.blocking.open_namespace(f"file://{path}") as namespace,
        namespace.open_writer("log", create=True) as writer,
    ):
        writer.append_many([b"0", b"1"])


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["missing", "empty"])
def test_lost_metadata_come_back_with_all_records(tmp_path: Path, loss: str) -> None:
    path = tmp_path / "ns"
    write(path)
    database = path / "metadata.sqlite"
    database.unlink()
    if loss == "empty":
        database.touch(0o600)
    with pytest.raises(dlog.EmbeddedStoreError, match="`dlog repair"):
        dlog.blocking.open_namespace(f"file://{path}").close()
    declined = CliRunner().invoke(command, [str(path)], input="n\n")
    assert declined.exception is not None
    done = CliRunner().invoke(command, [str(path), "--yes"], catch_exceptions=False)
    assert "the metadata are those after change" in done.output
    again = CliRunner().invoke(command, [str(path), "--yes"], catch_exceptions=False)
    assert "nothing to repair" in again.output
    with (
        dlog.blocking.open_namespace(f"file://{path}") as namespace,
        namespace.open_reader("log", follow=False) as reader,
    ):
        assert [record.payload for record in reader] == [b"0", b"1"]


@pytest.mark.slow
def test_a_directory_in_use_or_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ns"
    with dlog.blocking.open_namespace(f"file://{path}"):
        refused = CliRunner().invoke(command, [str(path), "--yes"])
        assert isinstance(refused.exception, dlog.EmbeddedStoreError)
        assert "has it open" in str(refused.exception)
    refused = CliRunner().invoke(command, [str(tmp_path / "none"), "--yes"])
    assert "no namespace is there" in str(refused.exception)
