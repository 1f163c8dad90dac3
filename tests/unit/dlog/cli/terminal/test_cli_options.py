"""The default namespace and the directory of scratch files."""

from __future__ import annotations

from pathlib import Path

from dlog.cli.terminal.options import data_directory, default_uri, scratch_directory

HOME = Path("/var/people/ada")


def test_the_default_is_the_users_data_directory() -> None:
    assert default_uri({}, HOME) == "file:///var/people/ada/.local/share/dlog/default"
    assert scratch_directory({}, HOME) == HOME / ".cache" / "dlog"


def test_the_xdg_variables_are_followed() -> None:
    assert data_directory({"XDG_DATA_HOME": "/srv/data"}, HOME) == Path("/srv/data/dlog")
    assert scratch_directory({"XDG_CACHE_HOME": "/srv/cache"}, HOME) == Path("/srv/cache/dlog")


def test_a_relative_xdg_variable_is_ignored() -> None:
    assert data_directory({"XDG_DATA_HOME": "data"}, HOME) == HOME / ".local" / "share" / "dlog"
