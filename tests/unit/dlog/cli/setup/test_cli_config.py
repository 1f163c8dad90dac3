"""`dlog config show|check` and `dlog --config`, called with the arguments of a shell."""

# covers: dlog/cli/setup/config.py

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from dlog.cli.main import main
from dlog.settings import SETTINGS

SECRET = "open-sesame"


@attrs.frozen
class CommandResult:
    code: int
    out: str
    err: str

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        return {row["name"]: row for row in json.loads(self.out)["settings"]}


Dlog = Callable[..., CommandResult]


@pytest.fixture
def dlog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Dlog:
    """Run one command in this process, with a home of the test's own."""
    for name in [one for one in os.environ if one.startswith("DLOG_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("DLOG_CONFIG", "")  # so that the value that --config leaves behind is undone
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)

    def run(*arguments: str) -> CommandResult:
        code = main(arguments)
        captured = capfd.readouterr()
        return CommandResult(code, captured.out, captured.err)

    return run


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "dlog.toml"
    file.write_text(
        'uri = "distributedlog://zk1:2181/shop?ack_quorum=1"\nwrite_quorum = 2\n'
        '[writer]\nsegment_bytes_max = "none"\n'
        f'[bookies]\nauth = "of_others"\nauth_settings = {{ name = "{SECRET}" }}\n'
    )
    return file


def test_each_setting_that_holds_is_shown_with_its_place(
    dlog: Dlog, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLOG_CLIENT_ID", "shop-1")
    done = dlog("--config", str(file), "config", "show", "--json")
    assert done.code == 0
    rows = done.rows
    assert list(rows) == list(SETTINGS)
    assert {
        name: (row["value"], row["source"], row["place"]) for name, row in rows.items() if row["place"]
    } == {
        "uri": ("distributedlog://zk1:2181/shop", "file", f"{file}, line 1"),
        "ack_quorum": (1, "query", "the query of the URI"),
        "write_quorum": (2, "file", f"{file}, line 2"),
        "writer.segment_bytes_max": (None, "file", f"{file}, line 4"),
        "client_id": ("shop-1", "env", "the variable DLOG_CLIENT_ID"),
        "bookies.auth": ("of_others", "file", f"{file}, line 6"),
        "bookies.auth_settings": ({"name": "***"}, "file", f"{file}, line 7"),
    }
    assert rows["ensemble_size"]["source"] == "default"
    assert SECRET not in done.out + done.err


def test_the_table_for_people_has_the_same_places(dlog: Dlog, file: Path) -> None:
    done = dlog("--config", str(file), "config", "show", "--given")
    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in done.out.splitlines()}
    assert lines["ack_quorum"] == "1 the query of the URI"
    assert lines["writer.segment_bytes_max"].startswith("none ")
    assert "ensemble_size" not in lines
    assert SECRET not in done.out


def test_a_setting_without_effect_is_marked(dlog: Dlog, file: Path, tmp_path: Path) -> None:
    file.write_text("write_quorum = 2\n")
    done = dlog("--config", str(file), "config", "show", "--uri", (tmp_path / "log").as_uri(), "--json")
    assert not done.rows["write_quorum"]["used"]
    assert done.rows["uri"]["source"] == "keyword"
    assert not (tmp_path / "log").exists()


def test_a_uri_before_the_command_is_an_argument(
    dlog: Dlog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLOG_URI", "")  # so that the value that --uri leaves behind is undone
    done = dlog("--uri", (tmp_path / "log").as_uri(), "config", "show", "--json")
    assert (done.rows["uri"]["source"], done.rows["uri"]["place"]) == ("keyword", "--uri")


def test_a_wrong_file_ends_every_command_before_it_begins(dlog: Dlog, file: Path, tmp_path: Path) -> None:
    file.write_text("write_quorom = 2\n")
    for arguments in (
        ["log", "create", "orders"],
        ["write", "orders"],
        ["config", "show"],
        ["ledger", "list"],
    ):
        done = dlog("--config", str(file), *arguments)
        assert done.code == 2
        assert f"{file}, line 1: there is no setting write_quorom; did you mean write_quorum?" in done.err
    assert not (tmp_path / ".local").exists()


def test_a_file_is_checked_with_the_files_that_it_names(dlog: Dlog, file: Path, tmp_path: Path) -> None:
    file.write_text('key_file = "keys"\n')
    done = dlog("config", "check", str(file))
    assert done.code == 2
    assert "line 1: key_file: " in done.err
    keys = tmp_path / "keys"
    keys.touch(0o600)
    keys.write_text(f"1 {bytes(32).hex()}\n")
    assert dlog("config", "check", str(file)).code == 0
    assert json.loads(dlog("config", "check", str(file), "--json").out)["settings"] == ["key_file"]


@pytest.mark.parametrize(
    "text",
    [
        '[bookies]\ntls = true\ntls_authorities = "missing.pem"\n',
        '[zookeeper]\nscheme = "digest"\nusername = "u"\npassword_file = "missing"\n',
        'uri = "distributedlog://zk1/shop"\ncompression = "snappy"\n',
        "write_quorum = 9\n",
    ],
)
def test_settings_that_cannot_be_used_fail_the_check(dlog: Dlog, file: Path, text: str) -> None:
    file.write_text(text)
    assert dlog("config", "check", str(file)).code in (2, 8)


def test_a_secret_in_the_uri_of_a_file_is_not_printed(dlog: Dlog, file: Path) -> None:
    for uri in (f"distributedlog://admin:{SECRET}@zk1/shop", f"distributedlog://zk1/shop?password={SECRET}"):
        file.write_text(f'uri = "{uri}"\n')
        for command in (["config", "show"], ["config", "check", str(file)], ["log", "list"]):
            done = dlog("--config", str(file), *command)
            assert done.code == 2
            assert SECRET not in done.out + done.err


@pytest.mark.slow
def test_every_command_on_logs_uses_the_namespace_and_settings_of_the_file(
    dlog: Dlog, file: Path, tmp_path: Path
) -> None:
    """Records are encrypted with the keys of the file, and the chain that it asks for is kept."""
    keys = tmp_path / "keys"
    keys.touch(0o600)
    keys.write_text(f"1 {bytes(32).hex()}\n")
    file.write_text(
        f'uri = "{(tmp_path / "log").as_uri()}"\nkey_file = "keys"\n[writer]\nhash_chain = true\n'
    )
    lines = tmp_path / "lines"
    lines.write_text("one\n")
    given = ("--config", str(file))
    assert dlog(*given, "write", "orders", str(lines), "--create").code == 0
    assert dlog(*given, "read", "orders").out == "one\n"
    assert json.loads(dlog(*given, "verify", "orders", "--json").out)["chained_records"] == 1
    assert json.loads(dlog(*given, "ledger", "list", "--json").out) != []
    # Without the file, the same directory shows what is stored.
    os.environ["DLOG_CONFIG"] = ""
    stored = dlog("read", "orders", "--uri", (tmp_path / "log").as_uri(), "--json", "--raw").out
    assert "payload_base64" in stored


BOOKIE = "metadataServiceUri=zk://h/l\njournalDirectories=/j\nledgerDirectories=/l\n"


def test_check_lists_each_key_of_a_bookies_file_with_its_fate(dlog: Dlog, tmp_path: Path) -> None:
    file = tmp_path / "bk_server.conf"
    file.write_text(BOOKIE + "flushIntervall=1\nnumIOThreads=2\n")
    result = dlog("config", "check", str(file), "--json")
    assert result.code == 0
    document = json.loads(result.out)
    assert document["usable"] is True
    assert document["keys"][-2] == {
        "key": "flushIntervall",
        "line": 4,
        "fate": "unknown",
        "note": None,
        "nearest": "flushInterval",
    }
    assert document["keys"][-1]["fate"] == "without effect"
    text = dlog("config", "check", str(file))
    assert (text.code, "did you mean flushInterval?" in text.out) == (0, True)
    assert "5 keys; a bookie can start with them" in text.err
    strict = dlog("config", "check", str(file), "--strict")
    assert (strict.code, "error: " in strict.err) == (2, True)


def test_check_exits_with_2_if_a_bookie_cannot_start_with_the_file(dlog: Dlog, tmp_path: Path) -> None:
    file = tmp_path / "server"
    file.write_text(BOOKIE + "gcWaitTime=soon\nrequireTls=true\n")
    result = dlog("config", "check", "--kind", "bookie", str(file), "--json")
    assert result.code == 2
    assert len(json.loads(result.out)["problems"]) == 2
    assert dlog("config", "check", str(tmp_path / "absent.conf")).code == 2
    assert dlog("config", "check", "--strict", str(file)).code == 2
