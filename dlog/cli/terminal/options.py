"""The options of many commands, such as `--uri` and `--json`, and the directories that they default to.

A namespace is named by `--uri`, else by the variable DLOG_URI, else by the configuration file, else it is a
directory of the user's own.
Not inside: opening the namespace (``dlog.open_namespace``). Source: XDG Base Directory specification.
"""

from __future__ import annotations

import datetime
import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import attrs
import click

import dlog
from dlog.cli.terminal.output import print_note
from dlog.encryption import KeyFile
from dlog.settings import namespace_uri_of

Command = TypeVar("Command", bound=Callable[..., Any])
VARIABLE = "DLOG_URI"
KEY_FILE_VARIABLE = "DLOG_KEY_FILE"


def data_directory(environment: Mapping[str, str], home: Path | None) -> Path:
    """The directory of the user's own for data without another place.

    Raises:
        ConfigError: The user has none.
    """
    return _own(environment, "XDG_DATA_HOME", home, Path(".local", "share"))


def own_home() -> Path | None:
    """The user's home directory; None for a user without one, as in many containers."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def own_data(name: str) -> Path:
    """A directory or a file below the user's own data.

    Raises:
        ConfigError: The user has no such directory.
    """
    return data_directory(os.environ, own_home()) / name


def shown_own_data(name: str) -> str:
    """``own_data`` for a help text."""
    try:
        return str(own_data(name))
    except dlog.ConfigError:
        return f"$XDG_DATA_HOME/dlog/{name}"


def _own(environment: Mapping[str, str], variable: str, home: Path | None, below: Path) -> Path:
    # The specification: a relative path in the variable is ignored.
    given = environment.get(variable, "")
    if not given.startswith("/") and home is None:
        raise dlog.ConfigError(
            f"this user has no home directory. Set HOME or {variable}, or give the option that names the"
            f" place, such as --uri"
        )
    return (Path(given) if given.startswith("/") else (home or Path()) / below) / "dlog"


def scratch_directory(environment: Mapping[str, str], home: Path | None) -> Path:
    """The directory for the files of demo and bench.

    It is on a real disk. The system's temporary directory may be in memory.

    Raises:
        ConfigError: The user has no directory of their own.
    """
    return _own(environment, "XDG_CACHE_HOME", home, Path(".cache"))


def namespace_uri() -> str:
    """The namespace of DLOG_URI, else of the configuration file, else the user's own directory.

    Raises:
        ConfigError: The configuration file cannot be used, or the user has no directory of their own.
    """
    return os.environ.get(VARIABLE) or namespace_uri_of() or own_data("default").as_uri()


def default_of_option() -> str:
    """``namespace_uri`` as the default of an option; nothing while a shell only completes a line.

    The user's own directory is named on stderr: it may not be the namespace that was meant.
    """
    context = click.get_current_context(silent=True)
    if context is not None and context.resilient_parsing:
        return ""
    uri = namespace_uri()
    if uri == _own_default():
        print_note(f"using {uri}; --uri or {VARIABLE} names another namespace")
    return uri


def _own_default() -> str | None:
    """The namespace that is used if none is named; None for a user without a directory, who names one."""
    try:
        return own_data("default").as_uri()
    except dlog.ConfigError:
        return None


def gather(**values: type[attrs.AttrsInstance]) -> Callable[[Command], Command]:
    """The command gets options that belong together as one value: by its name here, of this class.

    The fields of the class have the names of the options; those that the command does not have keep their
    defaults. It stands below the options.
    """

    def decorate(command: Command) -> Command:
        @functools.wraps(command)  # keeps the options that the command already has
        def call(*arguments: Any, **given: Any) -> Any:
            for name, kind in values.items():
                fields = [each.name for each in attrs.fields(kind) if each.name in given]
                given[name] = kind(**{each: given.pop(each) for each in fields})
            return command(*arguments, **given)

        return call  # type: ignore[return-value]

    return decorate


def directory_option(variable: str, name: str, holds: str) -> Callable[[Command], Command]:
    """Add the option `--directory`; without it, that of an environment variable, else the user's own."""
    return click.option(
        "--directory",
        envvar=variable,
        type=click.Path(file_okay=False, path_type=Path),
        default=lambda: own_data(name),
        show_default=f"${variable}, else {shown_own_data(name)}",
        help=holds,
    )


def uri_option(command: Command) -> Command:
    """Add the option `--uri`, the same for every command."""
    return click.option(
        "--uri",
        envvar=VARIABLE,
        default=default_of_option,
        show_default=f"${VARIABLE}, else that of --config, else file://{shown_own_data('default')}",
        metavar="URI",
        help="The namespace: file:///DIRECTORY or distributedlog://HOST:PORT/NAMESPACE. To read a backup:"
        " backup:/DIRECTORY or s3://BUCKET/PREFIX.",
    )(command)


def parse_moment(text: str) -> datetime.datetime:
    """A time such as 2026-11-01T12:30. A time alone is one of today; without an offset, of this machine.

    Raises:
        ValueError: It is none.
    """
    if "-" in text:
        return datetime.datetime.fromisoformat(text).astimezone()
    return datetime.datetime.combine(datetime.date.today(), datetime.time.fromisoformat(text)).astimezone()


def at_option(command: Command) -> Command:
    """Add the option `--at`; the command gets ``at``, for ``uri_at``."""

    def parsed(
        context: click.Context, parameter: click.Parameter, text: str | None
    ) -> datetime.datetime | None:
        try:
            return None if text is None else parse_moment(text)
        except ValueError:
            raise click.BadParameter(
                f"{text!r} is no time, such as 2026-11-01T12:30 or 12:30", context, parameter
            ) from None

    return click.option(
        "--at",
        callback=parsed,
        metavar="TIME",
        help="With the URI of a backup: the newest one at that time or before.",
    )(command)


def uri_at(uri: str, at: datetime.datetime | None) -> str:
    """The URI of a backup, at a moment.

    Raises:
        click.UsageError: A moment is given, and the URI is that of no backup.
    """
    if at is None:
        return uri
    if not uri.lower().startswith(("backup:", "s3:")):
        raise click.UsageError(
            f"--at is for a backup, such as backup:/DIRECTORY or s3://BUCKET/PREFIX; {uri} is none"
        )
    return f"{uri}{'&' if '?' in uri else '?'}at={quote(at.isoformat())}"


def statistics_option(command: Command) -> Command:
    """Add the option `--statistics`; the command gets ``statistics``."""
    return click.option(
        "--statistics",
        is_flag=True,
        help="At the end, print counters and times: in Prometheus' format on stderr; with --json on stdout.",
    )(command)


def statistics_settings(statistics: bool) -> dict[str, object] | None:
    """The settings of a namespace for the value of that option."""
    return {"statistics": True} if statistics else None


def read_only_option(command: Command) -> Command:
    """Add the option `--read-only`; the command gets ``read_only``."""
    return click.option(
        "--read-only",
        is_flag=True,
        help="Write nothing, also in the directory of a file: namespace: for a full or read-only disk.",
    )(command)


def keys_option(command: Command) -> Command:
    """Add the option `--key-file`; the command gets ``key_file``: a path, or None."""
    return click.option(
        "--key-file",
        envvar=KEY_FILE_VARIABLE,
        metavar="FILE",
        help=f"Encrypt and decrypt payloads with the keys in FILE (${KEY_FILE_VARIABLE}).",
    )(command)


def raw_option(command: Command) -> Command:
    """Add the option `--raw`."""
    return click.option(
        "--raw",
        is_flag=True,
        help="Print payloads as they are: control characters on a terminal, encrypted ones without a key.",
    )(command)


def config_with(key_file: str | None, *, hash_chain: bool = False) -> dlog.NamespaceConfig:
    """The settings that options give; other places give the rest. ``ConfigError`` as ``KeyFile``."""
    keys: dict[str, Any] = {} if key_file is None else {"encryption": KeyFile(key_file)}
    chain: dict[str, Any] = {"hash_chain": True} if hash_chain else {}
    return dlog.NamespaceConfig(writer=dlog.WriterConfig(**keys, **chain), reader=dlog.ReaderConfig(**keys))


def json_option(printed: str) -> Callable[[Command], Command]:
    """Add the option `--json`; its help text names the ``printed`` data."""
    return click.option("--json", "as_json", is_flag=True, help=f"Print {printed} as JSON.")
