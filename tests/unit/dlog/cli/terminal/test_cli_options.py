"""The default namespace and the directory of scratch files."""

# covers: dlog/cli/terminal/options.py

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dlog
from dlog.cli.main import main
from dlog.cli.terminal.options import data_directory, namespace_uri, scratch_directory

HOME = Path("/var/people/ada")


def test_the_default_is_the_users_data_directory() -> None:
    assert data_directory({}, HOME) == HOME / ".local" / "share" / "dlog"
    assert scratch_directory({}, HOME) == HOME / ".cache" / "dlog"


def test_the_xdg_variables_are_followed() -> None:
    assert data_directory({"XDG_DATA_HOME": "/srv/data"}, HOME) == Path("/srv/data/dlog")
    assert scratch_directory({"XDG_CACHE_HOME": "/srv/cache"}, HOME) == Path("/srv/cache/dlog")


def test_a_relative_xdg_variable_is_ignored() -> None:
    assert data_directory({"XDG_DATA_HOME": "data"}, HOME) == HOME / ".local" / "share" / "dlog"


def test_a_user_without_a_home_is_asked_for_a_place() -> None:
    assert data_directory({"XDG_DATA_HOME": "/srv/data"}, None) == Path("/srv/data/dlog")
    with pytest.raises(dlog.ConfigError, match=r"no home directory\. Set HOME or XDG_DATA_HOME, or .*--uri"):
        data_directory({}, None)
    with pytest.raises(dlog.ConfigError, match="Set HOME or XDG_CACHE_HOME"):
        scratch_directory({}, None)


def test_the_namespace_of_a_user_who_names_none_is_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("DLOG_URI", "DLOG_CONFIG"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", "/srv/data")
    assert namespace_uri() == "file:///srv/data/dlog/default"


WITHOUT_HOME = """
import os, pwd, sys
os.environ.pop("HOME", None)
def getpwuid(number):
    raise KeyError(f"getpwuid(): uid not found: {number}")
pwd.getpwuid = getpwuid
from dlog.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def without_home(*arguments: str) -> subprocess.CompletedProcess[str]:
    names = ("HOME", "USER", "LOGNAME", "LNAME", "USERNAME", "XDG_DATA_HOME", "DLOG_URI")
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_HOME, *arguments],
        env={name: value for name, value in os.environ.items() if name not in names},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_a_command_with_all_places_given_needs_no_home(tmp_path: Path) -> None:
    done = without_home("log", "create", "orders", "--uri", (tmp_path / "log").as_uri())
    assert (done.returncode, done.stderr) == (0, "created orders\n")
    for group in ("cluster", "daemon"):
        assert without_home(group, "--help").returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("command", [("log", "list"), ("cluster", "status"), ("daemon", "status")])
def test_a_command_without_a_place_says_what_to_set(command: tuple[str, ...]) -> None:
    done = without_home(*command)
    assert done.returncode not in (0, None)
    assert done.stderr.startswith("dlog: this user has no home directory. Set HOME or XDG_DATA_HOME")


def test_a_command_that_uses_the_users_own_directory_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for variable in ("DLOG_URI", "DLOG_SERVICE", "DLOG_CONFIG"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    uri = (tmp_path / "dlog" / "default").as_uri()
    assert main(["log", "list", "--json"]) == 0
    out, err = capfd.readouterr()
    assert (out, err) == ("[]\n", f"using {uri}; --uri or DLOG_URI names another namespace\n")
    monkeypatch.setenv("DLOG_URI", (tmp_path / "other").as_uri())
    assert main(["log", "list", "--json"]) == 0
    assert capfd.readouterr().err == ""
