"""Which namespace a command works on: `--uri`, else the variable DLOG_URI, else a directory of the user's
own.

Not inside: opening it (``dlog.open_namespace``). Source: XDG Base Directory specification.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])
VARIABLE = "DLOG_URI"


def data_directory(environment: Mapping[str, str], home: Path) -> Path:
    """The directory of the user's own in which dlog keeps what it is not told to keep elsewhere."""
    # The specification: a relative path in the variable is to be ignored.
    given = environment.get("XDG_DATA_HOME", "")
    return (Path(given) if given.startswith("/") else home / ".local" / "share") / "dlog"


def default_uri(environment: Mapping[str, str], home: Path) -> str:
    """The namespace of a user who named none."""
    return (data_directory(environment, home) / "default").as_uri()


def scratch_directory(environment: Mapping[str, str], home: Path) -> Path:
    """Where demo and bench put their files: a real disk, which the system's temporary directory may not
    be.
    """
    given = environment.get("XDG_CACHE_HOME", "")
    return (Path(given) if given.startswith("/") else home / ".cache") / "dlog"


def _default() -> str:
    return default_uri(os.environ, Path.home())


def uri_option(command: Command) -> Command:
    """The option `--uri`, the same for every command."""
    return click.option(
        "--uri",
        envvar=VARIABLE,
        default=_default,
        show_default=f"${VARIABLE}, else {default_uri(os.environ, Path.home())}",
        metavar="URI",
        help="The namespace: file:///DIRECTORY or distributedlog://HOST:PORT/NAMESPACE.",
    )(command)


def json_option(what: str) -> Callable[[Command], Command]:
    """The option `--json`; ``what`` tells what it prints."""
    return click.option("--json", "as_json", is_flag=True, help=f"Print {what} as JSON.")
