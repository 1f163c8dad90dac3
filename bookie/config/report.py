"""A report on a ``bk_server.conf``: each of its keys with its fate, and every problem, not only the first.

Inside: `dlog config check`'s findings. Not inside: fates (``keys``), reading values (``bookie_config``),
output.
Always: ``problems`` is empty exactly if a bookie would start with the file, as far as the file decides it. No
value of a key is in a report, except in problems, which never quote secrets.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from bookie.config.bookie_config import build_config
from bookie.config.key_check import is_same_as_ours, unknown_key
from bookie.config.keys import REFUSAL, Fate, group_of, may_protect, nearest_key
from bookie.config.properties import FileSetting, PropertiesError, parse_properties
from bookie.errors import BookieConfigError

# Values in the place of missing or invalid ones, for the check of the other keys.
_NEEDED = {"metadataServiceUri": "zk://h/l", "journalDirectories": "/j", "ledgerDirectories": "/l"}


@attrs.frozen(kw_only=True)
class KeyReport:
    """One key of the file."""

    key: str
    line: int  # 1-based; the first line that sets it
    fate: Fate
    note: str = ""  # the reason of the fate
    nearest: str | None = None  # of an unknown key


@attrs.frozen(kw_only=True)
class ConfigReport:
    """The findings for one file."""

    keys: tuple[KeyReport, ...]  # in the order of the file
    problems: tuple[str, ...]  # each stops a bookie
    warnings: tuple[str, ...]


def check_text(
    text: str, source: str, environment: Mapping[str, str] | None = None, *, strict: bool = False
) -> ConfigReport:
    """Check the text of a ``bk_server.conf``.

    Args:
        source: The file's name, for messages.
        strict: An unknown key is a problem, and not only a warning.
    """
    try:
        parsed = parse_properties(text, environment)
    except PropertiesError as exc:
        return ConfigReport(keys=(), problems=(f"{source}, {exc}",), warnings=())
    keys = tuple(_report(key, setting) for key, setting in parsed.items())
    problems: list[str] = []
    usable = dict(parsed)
    for one in keys:
        if one.fate is Fate.UNKNOWN and (strict or may_protect(one.key)):
            problems.append(unknown_key(source, one.key, one.line))
            del usable[one.key]
        elif one.fate is Fate.REFUSED and parsed[one.key].first and not is_same_as_ours(one.key, parsed):
            problems.append(f"{source}, line {one.line}: {one.key}: expected no value: {REFUSAL}")
            del usable[one.key]
    value_problems, warnings = _check_values(usable, source)
    return ConfigReport(keys=keys, problems=(*problems, *value_problems), warnings=warnings)


def _report(key: str, setting: FileSetting) -> KeyReport:
    group = group_of(key)
    return KeyReport(
        key=key,
        line=setting.line,
        fate=group.fate,
        note=group.reason,
        nearest=nearest_key(key) if group.fate is Fate.UNKNOWN else None,
    )


def _check_values(usable: dict[str, FileSetting], source: str) -> tuple[list[str], tuple[str, ...]]:
    """All invalid values and the warnings. A key with a problem is left out when the rest is checked."""
    problems: list[str] = []
    left_out: list[str] = []
    while True:
        try:
            return problems, build_config(usable, source).warnings
        except BookieConfigError as exc:
            # That a key is missing which was left out, or that it is needed beside another, is no news.
            is_news = exc.key not in left_out and not any(key in str(exc) for key in left_out)
            if is_news:
                problems.append(str(exc))
            if exc.key is None or exc.key in left_out:
                return problems, ()
            left_out.append(exc.key)
            usable.pop(exc.key, None)
            if exc.key in _NEEDED:
                usable[exc.key] = FileSetting((_NEEDED[exc.key],), 0)  # continues with the other keys
