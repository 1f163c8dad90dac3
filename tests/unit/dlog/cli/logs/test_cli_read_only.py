"""`--read-only`: the reading commands print what they print without it, and write nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlog.cli.main import main

pytestmark = pytest.mark.slow

READS = [
    ["read", "orders", "--json"],
    ["tail", "orders", "--from", "earliest", "--count", "2"],
    ["verify", "orders", "--json"],
    ["log", "list"],
    ["log", "show", "orders", "--json"],
    ["log", "position", "orders", "1", "--json"],
    ["log", "locate", "orders"],
    ["log", "check", "orders", "--json"],
    ["log", "orphans", "--json"],
    ["log", "retention", "orders", "--json"],
    ["log", "purge", "orders", "--dry-run", "--json"],
    ["policy", "show", "--json"],
    ["cursor", "list", "orders", "--json"],
    ["ledger", "list"],
    ["ledger", "show", "0", "--json"],
    ["ledger", "read", "0", "--json"],
]


def everything_below(directory: Path) -> dict[Path, tuple[bytes, int]]:
    return {
        path: (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns)
        for path in (directory, *directory.rglob("*"))
    }


@pytest.fixture
def namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Path:
    """A namespace with two lines in the log ``orders``."""
    lines = tmp_path / "lines.txt"
    lines.write_bytes(b"first\nsecond\n")
    monkeypatch.setenv("DLOG_URI", (tmp_path / "namespace").as_uri())
    assert main(["write", "--create", "orders", str(lines)]) == 0
    capfd.readouterr()
    return tmp_path / "namespace"


@pytest.mark.parametrize("arguments", READS, ids=" ".join)
def test_a_command_prints_the_same_and_writes_nothing(
    namespace: Path, arguments: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    before = everything_below(namespace)
    assert main([*arguments, "--read-only"]) == 0
    assert everything_below(namespace) == before
    printed = capfd.readouterr().out
    assert main(arguments) == 0
    assert capfd.readouterr().out == printed


def test_tail_ends_at_the_end_of_a_directory_that_no_process_has_open(
    namespace: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["tail", "orders", "--from", "earliest", "--read-only"]) == 0
    captured = capfd.readouterr()
    assert captured.out == "first\nsecond\n"
    assert "records that are written later do not appear" in captured.err


def test_a_recovery_excludes_read_only(namespace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["ledger", "read", "0", "--recover", "--read-only"]) == 2
    assert "leave one of them out" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("log purge orders", "--read-only needs --dry-run"),
        ("log retention orders --age 7d", "it excludes the options that set it"),
        ("log retention orders --forever", "it excludes the options that set it"),
        ("log orphans --delete --yes", "--delete excludes --read-only"),
    ],
)
def test_a_change_excludes_read_only(
    namespace: Path, command: str, hint: str, capfd: pytest.CaptureFixture[str]
) -> None:
    before = everything_below(namespace)
    assert main([*command.split(), "--read-only"]) == 2
    # Not the refusal of the namespace, which comes after it was opened and names no option.
    assert hint in capfd.readouterr().err
    assert everything_below(namespace) == before
