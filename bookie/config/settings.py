"""Typed values from a properties file, with errors that name key, value, line and expectation.

Inside: reading one value at a time, and the record of the keys read. Not inside: the known keys (``keys``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from bookie.config.properties import Setting
from bookie.errors import BookieConfigError
from ledger.metadata_store.service_uri import without_user_info

_SECRET = re.compile(r"passw(or)?d$|secret$|token$", re.IGNORECASE)  # a value, not the path of a file
# Of keys of plug-ins nothing is known. A path of a file is no secret.
_MAY_BE_SECRET = re.compile(
    r"^(?!.*(path|file|class|location)$).*(passw|secret|token|credential|jaas|plugin)", re.IGNORECASE
)
_ADDRESSES = frozenset({"metadataServiceUri", "zkServers"})  # may have a user name and a password
_TRUE = frozenset({"true", "yes", "on", "t", "y"})
_FALSE = frozenset({"false", "no", "off", "f", "n"})


def holds_secret(settings: Mapping[str, Setting]) -> bool:
    """True if a file has a password or another secret itself, and not only its name or ``${env:NAME}``."""
    return any(_SECRET.search(key) and one.first and one.written is None for key, one in settings.items())


class Settings:
    """One configuration file. A key that is absent or empty gives the default."""

    def __init__(self, source: str, settings: Mapping[str, Setting]) -> None:
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

    def boolean(self, key: str, default: bool) -> bool:
        text = self.text(key)
        if text is None:
            return default
        if text.lower() in _TRUE:
            return True
        if text.lower() in _FALSE:
            return False
        raise self.error(key, "true or false")

    def integer(
        self, key: str, default: int, *, least: int = 0, most: int = 2**63 - 1, unit: str = ""
    ) -> int:
        """A whole number; ``unit`` (bytes, milliseconds ...) is for the error message."""
        text = self.text(key)
        if text is None:
            return default
        try:
            value = int(text)
        except ValueError:
            value = None
        if value is None or not least <= value <= most:
            span = f"from {least} to {most}" if most < 2**31 - 1 else f"of at least {least}"
            raise self.error(key, f"a whole number {span}" + (f", in {unit}" if unit else ""))
        return value

    def fraction(self, key: str, default: float, *, may_be_off: bool = False) -> float:
        """A share from 0 to 1; with ``may_be_off`` also a number below 0, which switches the feature off."""
        text = self.text(key)
        if text is None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = 2.0
        if not (value <= 1 and (value >= 0 or may_be_off)):
            off = "; 0 or less switches it off" if may_be_off else ""
            raise self.error(key, f"a share from 0 to 1, such as 0.95{off}")
        return value
