"""`dlog bookies` and `dlog ledger` on an embedded namespace, called with the arguments of a shell."""

# covers: dlog/cli/operators/bookies.py

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from dlog.cli.main import main
from dlog.cli.operators.service import Service
from dlog.config import NamespaceConfig
from ledger.auth.sasl import SaslAuth

pytestmark = pytest.mark.slow


@attrs.frozen
class CommandResult:
    code: int
    out: str
    err: str

    @property
    def document(self) -> object:
        return json.loads(self.out)


Dlog = Callable[..., CommandResult]


@pytest.fixture
def dlog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Dlog:
    """Run one command in this process, on a namespace of the test's own."""
    monkeypatch.setenv("DLOG_URI", (tmp_path / "namespace").as_uri())
    for name in ("DLOG_DEBUG", "DLOG_SERVICE"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str) -> CommandResult:
        code = main(arguments)
        captured = capfd.readouterr()
        return CommandResult(code, captured.out, captured.err)

    return run


@pytest.fixture
def with_log(dlog: Dlog, tmp_path: Path) -> Dlog:
    lines = tmp_path / "lines.txt"
    lines.write_bytes(b"first\nsecond\n")
    assert dlog("write", "orders", str(lines), "--create").code == 0
    return dlog


def test_a_uri_before_the_command_outranks_the_variables(
    with_log: Dlog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = with_log("ledger", "list", "--json").out
    uri = (tmp_path / "namespace").as_uri()
    monkeypatch.setenv("DLOG_URI", (tmp_path / "other").as_uri())
    monkeypatch.setenv("DLOG_SERVICE", (tmp_path / "third").as_uri())
    assert with_log("--uri", uri, "ledger", "list", "--json").out == listed
    assert with_log("--uri", uri, "log", "list").out == "orders\n"
    assert [each.name for each in tmp_path.iterdir() if each.is_dir()] == ["namespace"]


def test_the_ledgers_of_logs_are_listed_shown_and_read(with_log: Dlog) -> None:
    segment = json.loads(with_log("log", "show", "orders", "--json").out)["segments"][0]
    ledger_id = segment["ledger_id"]
    assert ledger_id in with_log("ledger", "list", "--json").document  # type: ignore[operator]
    assert str(ledger_id) in with_log("ledger", "list").out.split()
    shown = with_log("ledger", "show", str(ledger_id), "--json").document
    assert isinstance(shown, dict)
    assert (shown["ledger_id"], shown["state"], shown["ensemble_size"]) == (ledger_id, "CLOSED", 1)
    assert "password" not in shown
    assert "CLOSED" in with_log("ledger", "show", str(ledger_id)).out
    entries = [
        json.loads(line) for line in with_log("ledger", "read", str(ledger_id), "--json").out.splitlines()
    ]
    assert [entry["entry_id"] for entry in entries] == list(range(shown["last_entry_id"] + 1))
    assert sum(entry["size_bytes"] for entry in entries) == shown["length_bytes"]
    assert b"second" in with_log("ledger", "read", str(ledger_id), "--first", "0", "--last", "0").out.encode()


def test_simpletest_leaves_nothing_behind(with_log: Dlog) -> None:
    before = with_log("ledger", "list", "--json").document
    sizes = ["--ensemble", "1", "--write-quorum", "1", "--ack-quorum", "1"]
    document = with_log("ledger", "simpletest", *sizes, "--entries", "300", "--json").document
    assert isinstance(document, dict)
    assert document["entries"] == 300
    assert with_log("ledger", "list", "--json").document == before
    refused = with_log("ledger", "simpletest", *sizes[:3], "2", *sizes[4:])
    assert refused.code == 2


def test_too_few_bookies_is_code_6(with_log: Dlog) -> None:
    result = with_log("ledger", "simpletest")
    assert result.code == 6
    assert "3 bookies wanted, 1 writable" in result.err


def test_a_deleted_ledger_is_gone_and_an_unknown_id_is_an_error(with_log: Dlog) -> None:
    ids = with_log("ledger", "list", "--json").document
    assert isinstance(ids, list)
    assert with_log("ledger", "delete", "--yes", str(ids[0])).code == 0
    assert with_log("ledger", "list", "--json").document == ids[1:]
    for arguments in (["delete", "--yes", "77"], ["show", "77"], ["read", "77"]):
        result = with_log("ledger", *arguments)
        assert (result.code, result.out) == (3, "")
        assert result.err == "dlog: ledger 77: not in the metadata store\n"


def test_bookies_are_listed_with_their_state_and_disk_space(with_log: Dlog) -> None:
    listed = with_log("bookies", "list", "--json").document
    assert isinstance(listed, list)
    assert [bookie["state"] for bookie in listed] == ["writable"]
    assert with_log("bookies", "list", "--rw", "--json").document == listed
    assert with_log("bookies", "list", "--ro", "--json").document == []
    assert listed[0]["bookie"] in with_log("bookies", "list").out
    info = with_log("bookies", "info", "--json").document
    assert isinstance(info, dict)
    assert 0 < info["free_bytes"] <= info["total_bytes"]
    assert [bookie["bookie"] for bookie in info["bookies"]] == [listed[0]["bookie"]]
    assert "together" in with_log("bookies", "info").out


@pytest.mark.parametrize(
    ("service", "code"),
    [
        ("zk://", 2),
        ("zk+strange://127.0.0.1:1/ledgers", 2),
        ("http://127.0.0.1/ledgers", 2),
        ("file:///nowhere/at/all", 3),
    ],
)
def test_an_invalid_service_is_rejected_by_name(dlog: Dlog, service: str, code: int) -> None:
    result = dlog("ledger", "list", "--service", service)
    assert result.code == code
    assert len(result.err.splitlines()) == 1
    assert service.rstrip("/") in result.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--auth", "kerberos"], "no authentication plug-in 'kerberos'"),
        (["--auth", "sasl", "--auth-setting", "password=p"], "no setting 'password'"),
        (["--auth", "sasl", "--auth-setting", "username"], "KEY=VALUE"),
        (["--auth-setting", "username=a"], "--auth-setting needs --auth"),
        (["--auth", "token", "--auth-setting", "tokenFile=/t"], "over TLS only"),
    ],
)
def test_authentication_that_cannot_work_is_rejected(dlog: Dlog, options: list[str], message: str) -> None:
    done = dlog("bookies", "list", *options)
    assert done.code == 2
    assert message in " ".join(done.err.split())


def test_the_options_of_authentication_reach_the_client() -> None:
    auth = SaslAuth(username="alice", password_file=Path("/p"))
    assert Service(uri="zk://h/l", auth=auth).client_config(NamespaceConfig()).transport.auth is auth


def test_a_key_without_a_certificate_is_rejected(dlog: Dlog, tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.write_bytes(b"")
    assert dlog("bookies", "list", "--tls-key", str(key)).code == 2
