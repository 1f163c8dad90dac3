"""DIGEST-MD5: RFC 2831's own example, and messages that a stranger wrote."""

# covers: ledger/auth/digest_md5.py

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.auth.digest_md5 import (
    MESSAGE_BYTES_MAX,
    Exchange,
    is_hash,
    parse_message,
    quoted,
    response_hash,
)


def test_the_example_of_the_rfc() -> None:
    exchange = Exchange(
        "elwood.innosoft.com", "OA6MG9tEQGm2hh", "OA6MHXh6VqTrRk", digest_uri="imap/elwood.innosoft.com"
    )
    assert response_hash("chris", "secret", exchange) == "d388dad90d4bbd760a152321f2143af7"
    assert response_hash("chris", "secret", exchange, of_server=True) == "ea40f60335c427b5527b84dbabcdfffd"


def test_a_name_outside_of_latin_1_is_hashed_as_utf_8() -> None:
    exchange = Exchange("bookkeeper", "n", "c")
    assert response_hash("caf\u00e9", "p", exchange) != response_hash("cafe\u0301", "p", exchange)
    assert len(response_hash("\u4e2d", "p", exchange)) == 32
    assert "'n'" not in repr(exchange)


def test_a_message_is_parsed() -> None:
    message = b'realm="a \\"b\\" \\\\",nonce="x,y=z" , charset=utf-8,\r\nqop = auth,empty='
    assert parse_message(message) == {
        "realm": 'a "b" \\',
        "nonce": "x,y=z",
        "charset": "utf-8",
        "qop": "auth",
        "empty": "",
    }


@pytest.mark.parametrize(
    "message",
    [
        b"x",
        b"=x",
        b'realm="open',
        b'realm="a"b',
        b"a=1,a=2",
        b"a=1,A=2",
        b'realm="\xff"',
        b"\x00" * 100,
        b"a=1," * MESSAGE_BYTES_MAX,
        b'"' * MESSAGE_BYTES_MAX,
        b'a="' + b"x" * MESSAGE_BYTES_MAX + b'"',
        b'a="' + b"\\" * (MESSAGE_BYTES_MAX - 4),
    ],
)
def test_a_malformed_message_is_refused_without_quoting_it(message: bytes) -> None:
    with pytest.raises(ValueError, match="DIGEST-MD5 message"):
        parse_message(message)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_refused(message: bytes) -> None:
    try:
        parse_message(message)
    except ValueError:
        pass


@given(st.text(max_size=50))
def test_what_is_quoted_is_parsed_back(text: str) -> None:
    try:
        message = f"a={quoted(text)}".encode()
    except UnicodeEncodeError:
        return
    assert parse_message(message) == {"a": text}


def test_only_32_hexadecimal_digits_are_a_hash() -> None:
    expected = "d388dad90d4bbd760a152321f2143af7"
    assert is_hash(expected, expected)
    assert not is_hash("", "")
    assert not is_hash(expected.upper(), expected)
    assert not is_hash("\u0663" * 32, expected)
