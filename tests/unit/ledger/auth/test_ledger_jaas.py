"""JAAS files: Apache's examples, and errors that never quote a secret."""

# covers: ledger/auth/jaas.py

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.auth.jaas import parse_jaas, read_section

EXAMPLE = """
// users
Bookie {
  org.apache.zookeeper.server.auth.DigestLoginModule required
    user_hd="test pw"   # the first
    user_bookkeeper="a\\"b;}";
};
/* a
   client */
BookKeeper {
  org.apache.zookeeper.server.auth.DigestLoginModule required
  username="hd"
  password="test pw";
};
"""


def test_the_sections_of_a_file() -> None:
    sections = parse_jaas(EXAMPLE, "jaas.conf")
    assert list(sections) == ["Bookie", "BookKeeper"]
    assert sections["Bookie"].users == {"hd": "test pw", "bookkeeper": 'a"b;}'}
    assert sections["BookKeeper"].options == {"username": "hd", "password": "test pw"}
    assert "test pw" not in repr(sections)


def test_a_section_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "jaas.conf"
    path.write_text(EXAMPLE)
    assert read_section(path, "Bookie").users["hd"] == "test pw"
    with pytest.raises(ValueError, match="has no section Auditor; it has Bookie, BookKeeper"):
        read_section(path, "Auditor")
    path.write_text("Bookie { com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true; };")
    with pytest.raises(ValueError, match="Kerberos is not supported"):
        read_section(path, "Bookie")
    path.write_bytes(b"\xff secret")
    with pytest.raises(ValueError, match="is not UTF-8") as caught:
        read_section(path, "Bookie")
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Bookie", "line 1: the file ends before '{'"),
        ("Bookie {", "ends before '}'"),
        ("Bookie { };", "has no login module"),
        ("Bookie { M required };", "expected an option or ';', not '}'"),
        ("Bookie { M required\n a=; };", "line 2: expected the value of a"),
        ('Bookie { M required\n a "secret"; };', "expected '='"),
        ('Bookie { M required a="secret" a="secret"; };', "option a is there twice"),
        ('Bookie { M required a="secret"; }', "ends before ';'"),
        ('Bookie { M required a="secret', "line 1: a string without its end"),
        ("A { M required; }; A { M required; };", "section A is there twice"),
        ("{ };", "expected the name of a section"),
    ],
)
def test_an_error_names_the_line_and_no_value(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"jaas.conf, line \d+: ") as caught:
        parse_jaas(text, "jaas.conf")
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)


@given(st.text(alphabet='Ab{};="\\/*# \n', max_size=60))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        parse_jaas(text, "jaas.conf")
    except ValueError:
        pass
