"""The syntax of Apache's file, and the values of the environment in it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.config.bookie_config import parse_config
from bookie.config.properties import PropertiesError, parse_properties
from bookie.errors import BookieConfigError
from tests.unit.bookie.config.test_config import LEAST


def test_the_syntax_of_java_properties() -> None:
    text = (
        "# comment\n ! another\n\na=1\nb : two words \nc three\n  d\t=\\\n   joined \\\n  on\n"
        "list = one, two\\, still two,,three\nodd\\ key\\= = \\u00e9\\t\\\\\nempty=\nnothing\n"
        "path=${a}/x/${env:HOME}\npair=\\ud83d\\ude00\r\nlast=\\"
    )
    parsed = parse_properties(text, {"HOME": "C:\\home"})
    values = {key: setting.values for key, setting in parsed.items()}
    assert values == {
        "a": ("1",),
        "b": ("two words",),
        "c": ("three",),
        "d": ("joined on",),
        "list": ("one", "two, still two", "three"),
        "odd key=": ("é\t\\",),
        "empty": (),
        "nothing": (),
        "path": ("1/x/C:\\home",),
        "pair": ("😀",),
        "last": (),
    }
    assert parsed["list"].line == 10


@pytest.mark.parametrize(
    "line",
    [
        "bookiePort=${env:SECRET}",
        "flushInterval=1${env:SECRET}",
        "httpServerEnabled=${allowLoopback}\nallowLoopback=${env:SECRET}",
        "networkLocation=${env:SECRET}",
        "metadataServiceUri=${env:SECRET}",
        "ledgerStorageClass=${env:SECRET}${ledgerStorageClass}",
    ],
)
def test_an_error_does_not_quote_a_value_of_the_environment(line: str) -> None:
    kept = [each for each in LEAST.splitlines() if each.partition("=")[0] != line.partition("=")[0]]
    text = "\n".join([*kept, line])
    with pytest.raises(BookieConfigError) as caught:
        parse_config(text, "bk_server.conf", {"SECRET": "hunter2"})
    assert "hunter2" not in str(caught.value)
    assert re.search(r"\$\{(env:SECRET|allowLoopback)\}", str(caught.value))


def test_a_key_set_twice_keeps_its_values_in_order() -> None:
    parsed = parse_properties("a=1\na=2,3")
    assert parsed["a"].values == ("1", "2", "3")
    assert parsed["a"].first == "1"
    assert parsed["a"].set_count == 2


@pytest.mark.parametrize(
    ("text", "line"), [("a=1\nb=\\u12", 2), ("a=${nothing}", 1), ("a=${b}\nb=${a}", 1), ("a=${a}", 1)]
)
def test_a_value_that_cannot_be_resolved_names_its_line(text: str, line: int) -> None:
    with pytest.raises(PropertiesError, match=f"line {line}:"):
        parse_properties(text)


@given(st.text())
def test_any_text_is_properties_or_a_properties_error(text: str) -> None:
    try:
        parse_properties(text)
    except PropertiesError:
        pass
