"""Cookies: Java's bytes, and when two cookies agree."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bookie.errors import CookieError
from bookie.identity.cookie import Cookie, decode_cookie, encode_cookie
from tests.places import GOLDEN_FILES

ZNODES = GOLDEN_FILES / "bookkeeper"
CAPTURED = sorted(
    {
        bytes.fromhex(row["hex"])
        for path in ZNODES.glob("*/znodes/*.jsonl")
        for row in map(json.loads, path.read_text().splitlines())
        if "/cookies/" in row["path"] and row["hex"]
    }
)
MINE = Cookie("b:1", ("/j",), ("/a", "/b"), (), "id")
texts = st.text(st.characters(exclude_characters="\t,", exclude_categories=["Cs"]), min_size=1)


def test_the_worked_example_of_the_documentation() -> None:
    cookie = Cookie(
        "192.0.2.10:3181",
        ("/data/journal",),
        ("/data/ledgers1", "/data/ledgers2"),
        (),
        "6f1cbd0e-6a0e-4f6a-9a4e-2f7f6c4b7c55",
    )
    data = encode_cookie(cookie)
    assert len(data) == 159
    assert data[:2] == b"5\n"
    assert b'ledgerDirs: "2\\t/data/ledgers1\\t/data/ledgers2"\n' in data
    assert decode_cookie(data) == cookie


@pytest.mark.parametrize("data", CAPTURED, ids=lambda data: data.split(b'"')[1].decode())
def test_cookies_of_java_are_read_and_written_byte_for_byte(data: bytes) -> None:
    assert encode_cookie(decode_cookie(data)) == data


def test_enough_cookies_were_captured_one_with_index_directories() -> None:
    assert len(CAPTURED) >= 4
    assert any(decode_cookie(data).index_directories for data in CAPTURED)


@given(texts, st.lists(texts, min_size=1), st.lists(texts, min_size=1), st.lists(texts), st.none() | texts)
def test_any_cookie_survives_encoding_and_decoding(
    bookie: str, journals: list[str], ledgers: list[str], indexes: list[str], instance: str | None
) -> None:
    def clean(names: list[str]) -> tuple[str, ...]:
        return tuple(name.strip("\r\n") or "x" for name in names)

    cookie = Cookie(bookie, clean(journals), clean(ledgers), clean(indexes), instance)
    assert decode_cookie(encode_cookie(cookie)) == cookie


@given(st.binary())
@example(b"\x1c0")  # str.strip removes more than int() does
def test_any_bytes_are_a_cookie_or_a_cookie_error(data: bytes) -> None:
    for prefix in (b"", b"5\n", b"3\n", b'5\nbookieHost: "'):
        try:
            decode_cookie(prefix + data)
        except CookieError:
            pass


def test_version_3_is_read() -> None:
    assert decode_cookie(b"3\nhost:1\n/j\n2\t/a\t/b\n") == Cookie(
        "host:1", ("/j",), ("/a", "/b"), layout_version=3
    )


def test_unknown_fields_and_octal_escapes_are_understood() -> None:
    data = (
        b'4\nfuture: "x" bookieHost: "h\\303\\251:1"\nnumber: 12\n'
        b'journalDir: \'/j\'\nledgerDirs: "1\\t" "/a"\n'
    )
    assert decode_cookie(data) == Cookie("hé:1", ("/j",), ("/a",), layout_version=4)


@pytest.mark.parametrize(
    "data", [b"", b"2\nx\ny\n1\tz\n", b'6\nbookieHost: "x"', b"5\n", b"5", b'5\nbookieHost: "x"\n']
)
def test_bytes_that_are_no_cookie_are_refused(data: bytes) -> None:
    with pytest.raises(CookieError):
        decode_cookie(data)


@pytest.mark.parametrize(
    ("theirs", "strict", "expanding"),
    [
        (MINE, 0, 0),
        (Cookie("b:1", ("/j",), ("/b", "/a"), (), "id"), 2, 0),
        (Cookie("b:1", ("/j",), ("/a",), (), "id"), 2, 0),
        (Cookie("b:1", ("/j",), ("/a", "/c"), (), "id"), 2, 2),
        (Cookie("b:1", ("/j",), ("/a", "/b"), ("/a", "/b"), "id"), 0, 0),
        (Cookie("b:1", ("/j",), ("/a", "/b"), ("/i",), "id"), 1, 1),
        (Cookie("b:2", ("/j",), ("/a", "/b"), (), "id"), 1, 1),
        (Cookie("b:1", ("/j2",), ("/a", "/b"), (), "id"), 1, 1),
        (Cookie("b:1", ("/j",), ("/a", "/b"), (), "other"), 1, 1),
        (Cookie("b:1", ("/j",), ("/a", "/b"), (), None), 1, 1),
    ],
)
def test_cookies_agree_as_the_table_says(theirs: Cookie, strict: int, expanding: int) -> None:
    assert len(MINE.differences(theirs)) == strict
    assert len(MINE.differences(theirs, allow_expansion=True)) == expanding
