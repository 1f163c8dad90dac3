"""The table of settings: it is complete, and each default is a value that every place can give."""

# covers: dlog/settings/table.py
# covers: ledger/settings/kinds.py
# covers: ledger/settings/row.py

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from dlog.settings.sources import read_texts
from dlog.settings.table import (
    BY_VARIABLE,
    FILES_AND_PLACES,
    SECRETS,
    SECTIONS,
    SETTINGS,
)
from ledger.settings import kinds

# Attributes that no place outside a program can give: objects of the program.
KEYWORDS_ONLY: frozenset[str] = frozenset(
    {
        *("password", "tls", "auth", "zookeeper_security", "placement", "writer", "reader", "heal"),
        *("writer.encryption", "reader.encryption", "zookeeper.password"),
    }
)


def test_every_attribute_of_the_configuration_is_a_setting() -> None:
    """A new attribute belongs into the table, or into ``KEYWORDS_ONLY`` if only a program can give it."""
    attributes = {
        f"{section}.{field.name}".removeprefix(".")
        for section, kind in SECTIONS.items()
        for field in attrs.fields(kind)
    }
    assert attributes - set(SETTINGS) == KEYWORDS_ONLY
    assert set(SETTINGS) - attributes == set(FILES_AND_PLACES) - {"bookie_security"}


def test_the_names_of_variables_differ_and_no_setting_is_a_secret() -> None:
    assert len(BY_VARIABLE) == len(SETTINGS)
    assert set(SECRETS).isdisjoint(SETTINGS)
    assert set(SECRETS.values()) <= set(SETTINGS)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_default_as_it_is_shown_can_be_given(name: str) -> None:
    setting = SETTINGS[name]
    shown = kinds.shown(setting.default)
    if shown is None or isinstance(shown, dict):
        return
    text = ",".join(shown) if isinstance(shown, list) else shown
    assert kinds.shown(read_texts({name: text})[name].value) == shown


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (kinds.BYTES, "64M", 64 << 20),
        (kinds.BYTES, "1GiB", 1 << 30),
        (kinds.BYTES, "17", 17),
        (kinds.optional(kinds.BYTES), "none", None),
        (kinds.SECONDS, "0.5", 0.5),
        (kinds.BOOL, "True", True),
        (kinds.BOOL, "0", False),
        (kinds.NAMES, "east, west", ("east", "west")),
        (kinds.FILE, "keys", Path("conf/keys")),
        (kinds.FILE, "/keys", Path("/keys")),
    ],
)
def test_a_text_becomes_a_value(kind: kinds.Kind, text: str, value: object) -> None:
    assert kind.of_text(text, Path("conf")) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *((kinds.BYTES, text) for text in ("", "64X", "-1", "1.5M", "9" * 30)),
        *((kinds.SECONDS, text) for text in ("", "1e3", "inf", "nan", "soon")),
        *((kinds.COUNT, text) for text in ("", "1.0", "three", "९")),
        *((kinds.BOOL, text) for text in ("", "maybe")),
        *((kinds.TEXT, text) for text in ("", "a\x1b[2J", "a\nb")),
        *((kinds.LOCATIONS, text) for text in ("", "script:", "dns", "announced:now", "tables:f")),
        (kinds.FILE, "a\0b"),
        (kinds.TABLE, "a=b"),
    ],
)
def test_a_wrong_text_is_refused_and_not_quoted(kind: kinds.Kind, text: str) -> None:
    with pytest.raises(ValueError, match=r"^must be ") as caught:
        kind.of_text(text, Path())
    if len(text) > 2 and text != "script:":
        assert text not in str(caught.value)


@pytest.mark.parametrize("value", [1.5, float("inf"), float("nan"), [], {}, None, True, 10**30])
def test_a_value_of_another_type_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"^must be "):
        kinds.COUNT.of_toml(value, Path())


def test_seconds_are_finite() -> None:
    with pytest.raises(ValueError, match=r"^must be "):
        kinds.SECONDS.of_toml(float("inf"), Path())


def test_the_values_of_a_table_are_not_shown() -> None:
    assert kinds.shown({"secretFile": "open-sesame"}) == {"secretFile": "***"}
