"""The places that values of settings come from: a file, the environment, a URI's query, a program.

Inside: reading each place, its order, unknown names, the text that names a place in an error.
Not inside: the settings (``table``), merging the places (``resolved``).
Always: an unknown name is an error with the nearest known one; an error names the place and quotes no value;
a secret itself is refused everywhere.
"""

from __future__ import annotations

import enum
import re
import urllib.parse
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs

from dlog.errors import ConfigError, InvalidUriError
from dlog.settings.table import BY_VARIABLE, PREFIX, SECRETS, SECTIONS, SETTINGS, Setting
from ledger.metadata_store.service_uri import without_user_info

CONFIG_VARIABLE = "DLOG_CONFIG"
# Variables of commands and tests that are no settings of a client.
OTHER_VARIABLES = frozenset(
    {CONFIG_VARIABLE}
    | {f"{PREFIX}{name}" for name in ("DEBUG", "CLUSTER", "SERVICE", "AUDIT_LOG", "ZOOKEEPER_JARS")}
)

_NEAR = 0.8  # of difflib: one or two letters differ
_FILE_BYTES_MAX = 1 << 20
_HEADER = re.compile(r"\s*\[\s*([A-Za-z0-9_.-]+)\s*\]")
_KEY = re.compile(r"\s*\"?([A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)?)\"?\s*=")


class Source(enum.Enum):
    """The kind of a place; a later one is stronger."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "env"
    QUERY = "query"
    KEYWORD = "keyword"


@attrs.frozen
class Given:
    """A value, and the place that gives it."""

    setting: Setting
    value: Any = attrs.field(repr=False)
    source: Source
    place: str  # such as "shop.toml, line 3"


def read_file(path: str | Path) -> dict[str, Given]:
    """The settings of a TOML file, by name. A file that a setting names is relative to this file's directory.

    Raises:
        ConfigError: It cannot be read or parsed, or a key or a value is wrong; the message names the line.
    """
    import tomllib  # programs without a file do not need it

    path = Path(path)
    try:
        with path.open("rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
    except OSError as exc:
        raise ConfigError(f"{path}: the configuration cannot be read: {exc.strerror}") from None
    if len(data) > _FILE_BYTES_MAX:
        raise ConfigError(f"{path}: a configuration has at most {_FILE_BYTES_MAX:,} bytes")
    try:
        text = data.decode("utf-8")
        document: dict[str, Any] = tomllib.loads(text)
    except RecursionError:
        raise ConfigError(f"{path}: the configuration is nested too deeply") from None
    except ValueError as exc:
        # tomllib names the line. UnicodeDecodeError would quote bytes.
        reason = "not UTF-8" if isinstance(exc, UnicodeDecodeError) else f"not TOML: {exc}"
        raise ConfigError(f"{path}: the configuration is {reason}") from None
    lines = _lines_of_keys(text)
    found: dict[str, Given] = {}
    for name, value in _flat(document):
        place = f"{path}, line {lines[name]}" if name in lines else str(path)
        if isinstance(value, dict) and "." not in name:
            raise ConfigError(f"{place}: there is no section {name}; there are {', '.join(SECTIONS)[2:]}")
        setting = _known(name, place)
        try:
            found[name] = Given(
                setting, _checked(setting, setting.kind.of_toml(value, path.parent)), Source.FILE, place
            )
        except ValueError as exc:
            raise ConfigError(f"{place}: {name} {exc}") from None
    return found


def read_environment(environment: Mapping[str, str]) -> dict[str, Given]:
    """The settings in variables ``DLOG_...``, by name. An empty variable counts as missing.

    Raises:
        ConfigError: A value is wrong. Or a variable is named almost like a setting, or like those of a
            section. Other unknown variables with ``DLOG_`` may belong to other programs.
    """
    found: dict[str, Given] = {}
    for variable in sorted(name for name in environment if name.startswith(PREFIX)):
        if not environment[variable] or variable in OTHER_VARIABLES:
            continue
        setting = BY_VARIABLE.get(variable)
        if setting is None:
            _refuse_near(variable)
            continue
        found[setting.name] = _of_text(
            setting, environment[variable], Source.ENVIRONMENT, f"the variable {variable}", Path()
        )
    return found


def split_query(uri: str) -> tuple[str, dict[str, Given]]:
    """A namespace's URI without its query, and the settings in the query, by name.

    Raises:
        InvalidUriError: A name or a value of the query is wrong, or a secret; the message quotes no value.
    """
    bare, mark, query = uri.strip().partition("?")
    if not mark:
        return uri, {}

    def refused(reason: str) -> InvalidUriError:
        # A password may have a question mark in it, and then the part before it shows its beginning.
        shown = without_user_info(uri) if "@" not in uri else f"{uri.strip().partition(':')[0]}://***"
        return InvalidUriError(f"URI {shown!r}: {reason}")

    if "@" in query or "#" in uri:
        raise refused(
            "a user name, a password and a fragment are not supported, because commands, logs and lists of"
            " processes show a URI; name a file with the identity in DLOG_ZK_SECURITY (docs/security.md), and"
            " write %40 for '@' in a value"
        )
    found: dict[str, Given] = {}
    for part in filter(None, query.split("&")):
        name, equals, text = part.partition("=")
        if not equals:
            raise refused("write each setting of the query as NAME=VALUE")
        name, place = urllib.parse.unquote(name), "the query of the URI"
        try:
            setting = _known(name, place)
            if name in found or name == "uri":
                raise ConfigError(f"{place}: {name} is there twice" if name in found else f"{place}: no uri")
            found[name] = _of_text(setting, urllib.parse.unquote(text), Source.QUERY, place, None)
        except ConfigError as exc:
            raise refused(str(exc)) from None
    return bare, found


def read_texts(
    texts: Mapping[str, object], place: str = "the argument settings", directory: Path | None = Path()
) -> dict[str, Given]:
    """The settings that a program gives as texts or plain values, by name.

    Args:
        directory: Of relative names of files; None: they must be absolute.

    Raises:
        ConfigError: A name or a value is wrong.
    """
    found: dict[str, Given] = {}
    for name, value in texts.items():
        setting = _known(name, place)
        try:
            found[name] = Given(
                setting, _checked(setting, setting.kind.of_toml(value, directory)), Source.KEYWORD, place
            )
        except ValueError as exc:
            raise ConfigError(f"{place}: {name} {exc}") from None
    return found


def _of_text(setting: Setting, text: str, source: Source, place: str, directory: Path | None) -> Given:
    try:
        return Given(setting, _checked(setting, setting.kind.of_text(text, directory)), source, place)
    except ValueError as exc:
        name = "" if source is Source.ENVIRONMENT else f": {setting.name}"
        raise ConfigError(f"{place}{name} {exc}") from None


def _checked(setting: Setting, value: Any) -> Any:
    """The value as its class takes it. Raises ``ValueError`` with the bound that it misses."""
    field: Any = setting.attribute
    if field is None:
        return value
    if setting.kind.toml_types == (dict,) and not all(isinstance(one, str) for one in value.values()):
        raise ValueError(f"must be {setting.kind.expected}")
    try:
        if field.converter is not None:
            value = field.converter(value)
        if field.validator is not None:
            field.validator(None, field, value)
    except (ValueError, TypeError) as exc:
        reason = str(exc.args[0] if exc.args else exc)
        bound = re.search(r"must be (?:in )?(>=?|<=?) ?(-?[0-9.]+)", reason)
        raise ValueError(
            f"must be {bound[1]} {bound[2]}" if bound else "has a value that is not possible"
        ) from None
    return value


def _known(name: str, place: str) -> Setting:
    if name in SECRETS:
        raise ConfigError(
            f"{place}: put the secret of {name} into a file of its own and name it in {SECRETS[name]}"
        )
    if (setting := SETTINGS.get(name)) is not None:
        return setting
    import difflib  # here: only who misspells pays for it

    near = difflib.get_close_matches(name, SETTINGS, n=1)
    same_key = [one for one in SETTINGS if one.rpartition(".")[2] == name]
    hint = (
        f"; did you mean {(near or same_key)[0]}?"
        if near or same_key
        else "; docs/settings.md and `dlog config show` list all settings"
    )
    shown = name if name.isprintable() and len(name) <= 80 else "of these"
    raise ConfigError(f"{place}: there is no setting {shown}{hint}")


def _refuse_near(variable: str) -> None:
    import difflib

    near = difflib.get_close_matches(variable, [*BY_VARIABLE, *OTHER_VARIABLES], n=1, cutoff=_NEAR)
    if not near:
        begins = (variable.startswith(f"{PREFIX}{section.upper()}_") for section in SECTIONS if section)
        secret = variable.removeprefix(PREFIX).lower() in {one.replace(".", "_") for one in SECRETS}
        if not secret and not any(begins):
            return
        near = difflib.get_close_matches(variable, BY_VARIABLE, n=1, cutoff=0.0)
    raise ConfigError(
        f"the variable {variable}: there is no such setting; did you mean {near[0]}? If another program needs"
        " the variable, unset it for this one"
    )


def _flat(document: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    for key, value in document.items():
        if isinstance(value, dict) and key in SECTIONS:
            yield from ((f"{key}.{inner}", each) for inner, each in value.items())
        else:
            yield key, value


def _lines_of_keys(text: str) -> dict[str, int]:
    """The line of each key; a key in a form that is not recognized is missing."""
    lines: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        if (header := _HEADER.match(line)) is not None:
            section = header[1]
            lines.setdefault(section, number)
        elif (key := _KEY.match(line)) is not None:
            lines.setdefault(f"{section}.{key[1]}" if section else key[1], number)
    return lines
