"""The table of the bookie's keys: each row has its effect, and each default is a value of a file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from bookie.config.settings import Settings
from bookie.config.table import KEYS, KEYS_OF, BookieKey
from ledger.settings import kinds
from tests.unit.bookie.config.test_config import parse

ALL_ON = {
    "autoRecoveryDaemonEnabled": "true",
    "httpServerEnabled": "true",
    "httpServerTlsEnable": "true",
    "httpServerKeyStorePath": "/k",
    "entryLogPerLedgerEnabled": "true",
    "tlsProviderFactoryClass": "TLSContextFactory",
    "tlsKeyStore": "/k",
    "tlsClientAuthentication": "true",
    "policyNamespaces": "/shop",
}
# Of these the row takes one that is not the default.
VALUES = ("false", "true", "eth7", "0.5", "7", "77", "7000", "700000", "33554432")
# Other rows restrict these further.
CHOSEN = {"pageSize": "4096", "minorCompactionInterval": "700", "majorCompactionInterval": "7000"}
FILLING = [one for one in KEYS.values() if one.fills]


def text_of(lines: dict[str, str]) -> str:
    return "".join(f"{key}={value}\n" for key, value in lines.items())


def objects_of(value: Any, owner: type) -> Iterator[object]:
    """The objects of a class in a configuration."""
    if isinstance(value, owner):
        yield value
    if attrs.has(type(value)):
        for field in attrs.fields(type(value)):
            yield from objects_of(getattr(value, field.name), owner)


def attribute(row: BookieKey, lines: dict[str, str]) -> object:
    """The attribute that the row fills, in the configuration of a file."""
    assert row.owner is not None
    (found,) = objects_of(parse(text_of(lines)), row.owner)
    return getattr(found, row.fills)


def other_value(row: BookieKey) -> tuple[str, object]:
    """A text that the row takes, and its value, which is not the default."""
    for text in (CHOSEN[row.name],) if row.name in CHOSEN else VALUES:
        try:
            value = (text,) if row.kind is kinds.NAMES else row.kind.parse(text, None)
        except ValueError:
            continue
        if value != row.default:
            return text, value
    raise AssertionError(f"no text for {row.name}")


@pytest.mark.parametrize("row", FILLING, ids=lambda row: row.name)
def test_a_key_fills_its_attribute(row: BookieKey) -> None:
    text, value = other_value(row)
    assert attribute(row, ALL_ON | {row.name: text}) == value


@pytest.mark.parametrize("row", FILLING, ids=lambda row: row.name)
def test_a_default_as_it_is_written_means_the_default(row: BookieKey) -> None:
    default = row.default
    if default in (None, ()) or default is attrs.NOTHING:
        return
    written = row.kind.written(default)
    text = str(int(written)) if isinstance(written, float) and row.kind.toml_types == (int,) else str(written)
    assert row.kind.parse(text, None) == default


def test_each_attribute_has_one_key() -> None:
    for rows in KEYS_OF.values():
        filled = [row.fills for row in rows if row.fills]
        assert len(filled) == len(set(filled))
        assert all(row.attribute is not None for row in rows)


def test_a_key_without_a_row_is_not_read() -> None:
    with pytest.raises(KeyError):
        Settings("f", {}).value("noSuchKey")
