"""Files with security settings: TOML, whose keys are the attributes of a class.

Inside: parsing, unknown keys, types, paths relative to the file. Not inside: the meaning of settings
(``zookeeper_security``, ``ledger.transport.bookie_security``).
Always: no error quotes a value; a key that is not known is an error; a secret itself is refused, because a
file with settings is shown and copied more freely than one with a secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class SettingsFileError(ValueError):
    """The file cannot be used. The message names the file, the key and the remedy."""


def read_settings_file(
    path: Path, types: Mapping[str, type], *, of: str, secrets: Mapping[str, str]
) -> dict[str, Any]:
    """Read the values of a file by key. A path in the file is relative to the file's directory.

    Args:
        types: The type of each key that may be there.
        of: The peer that the settings are for, in errors.
        secrets: Keys that would hold a secret, and the key that names its file.

    Raises:
        SettingsFileError: The file cannot be read or parsed, has an unknown key, or a value of another type.
    """
    import tomllib  # programs without settings do not need it

    try:
        values: dict[str, Any] = tomllib.loads(path.read_text("utf-8"))
    except OSError as exc:
        raise SettingsFileError(f"{path}: the settings for {of} cannot be read: {exc.strerror}") from None
    except ValueError as exc:
        # tomllib names the line; UnicodeDecodeError would quote bytes.
        reason = "not UTF-8" if isinstance(exc, UnicodeDecodeError) else f"not TOML: {exc}"
        raise SettingsFileError(f"{path}: the settings for {of} are {reason}") from None
    for key, value in list(values.items()):
        if key in secrets:
            raise SettingsFileError(
                f"{path}: put the {key} into a file of its own and name it in {secrets[key]}"
            )
        if key not in types:
            raise SettingsFileError(f"{path}: unknown key {key!r}; there are {', '.join(sorted(types))}")
        wanted = types[key]
        if type(value) is not (str if wanted is Path else wanted):
            raise SettingsFileError(f"{path}: the value of {key} must be {_TYPE_NAMES[wanted]}")
        if wanted is Path:
            values[key] = path.parent / str(value)
    return values


_TYPE_NAMES = {
    str: 'a text: "..."',
    Path: 'the name of a file: "..."',
    bool: "a bool: true or false",
    dict: "a table of texts",
}
