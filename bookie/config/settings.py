"""Typed values from a properties file, with errors that name key, value, line and expectation.

Inside: reading one value, or an object of the keys that fill its attributes; the record of the keys read.
Not inside: the rows of keys (``table``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

from bookie.config.properties import FileSetting
from bookie.config.table import KEYS, KEYS_OF
from bookie.errors import BookieConfigError
from ledger.metadata_store.service_uri import without_user_info
from ledger.settings import kinds

_SECRET = re.compile(r"passw(or)?d$|secret$|token$", re.IGNORECASE)  # a value, not the path of a file
# Of keys of plug-ins nothing is known. A path of a file is no secret.
_MAY_BE_SECRET = re.compile(
    r"^(?!.*(path|file|class|location)$).*(passw|secret|token|credential|jaas|plugin)", re.IGNORECASE
)
_ADDRESSES = frozenset({"metadataServiceUri", "zkServers"})  # may have a user name and a password
T = TypeVar("T")


def holds_secret(settings: Mapping[str, FileSetting]) -> bool:
    """True if a file has a password or another secret itself, and not only its name or ``${env:NAME}``."""
    return any(_SECRET.search(key) and one.first and one.written is None for key, one in settings.items())


class Settings:
    """One configuration file. A key that is absent or empty gives the default."""

    def __init__(self, source: str, settings: Mapping[str, FileSetting]) -> None:
        self._source = source
        self._settings = settings
        self.keys_read: set[str] = set()

    def __repr__(self) -> str:
        return f"<Settings of {self._source}, {len(self._settings)} keys>"

    def __contains__(self, key: str) -> bool:
        setting = self._settings.get(key)
        return setting is not None and setting.first != ""

    def error(self, key: str, expectation: str) -> BookieConfigError:
        """The error for an invalid value."""
        setting = self._settings.get(key)
        if setting is None:
            return BookieConfigError(f"{self._source}: {key} is missing: expected {expectation}", key=key)
        value = ", ".join(setting.values)
        if setting.written is not None:
            # A value of the environment may be a secret, and the reason in parentheses may quote it.
            value, expectation = ", ".join(setting.written), expectation.partition(" (")[0]
        if _SECRET.search(key):
            value = "***"
        elif key in _ADDRESSES:
            value = without_user_info(value)
        return BookieConfigError(
            f"{self._source}, line {setting.line}: {key} = {value!r}: expected {expectation}", key=key
        )

    def first_values(self) -> dict[str, str]:
        """All keys that are set, for a plug-in that has keys of its own."""
        return {key: setting.first for key, setting in self._settings.items() if setting.first}

    def shown_values(self) -> dict[str, str]:
        """All keys that are set, for operators to read; secrets and what the environment adds are hidden."""
        shown = {}
        for key, setting in self._settings.items():
            value = ",".join(setting.values if setting.written is None else setting.written)
            if _MAY_BE_SECRET.search(key):
                value = "***"
            elif key in _ADDRESSES:
                value = without_user_info(value)
            shown[key] = value
        return shown

    def text(self, key: str) -> str | None:
        self.keys_read.add(key)
        return self._settings[key].first if key in self else None

    def texts(self, key: str) -> tuple[str, ...]:
        self.keys_read.add(key)
        return self._settings[key].values if key in self else ()

    def value(self, key: str) -> Any:
        """The value of a key as its row says, or the default. Raises ``BookieConfigError``."""
        self.keys_read.add(key)
        row = KEYS[key]
        if key not in self:
            return row.default
        values = self._settings[key].values
        if row.kind is kinds.NAMES:
            return values
        try:
            return row.kind.parse(values[0], None)
        except ValueError:
            raise self.error(key, row.kind.expected) from None

    def values_of(self, owner: type) -> dict[str, Any]:
        """The attributes of a class that keys of the file give, and those with a default of the bookie."""
        found = {}
        for row in KEYS_OF[owner]:
            if row.name in self:
                found[row.fills] = self.value(row.name)
            elif row.usual is not None:
                found[row.fills] = row.usual
            self.keys_read.add(row.name)
        return found

    def fill(self, owner: type[T], **otherwise: Any) -> T:
        """An object of the class, of the keys that fill it.

        Args:
            otherwise: Attributes that no key of the file gives, in place of the defaults of the class.

        Raises:
            BookieConfigError: A value is invalid.
        """
        return owner(**(otherwise | self.values_of(owner)))
