"""The node of a proxy: its data, and any other data."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from namespace.proxy_node import decode_patterns, encode_patterns


def test_patterns_have_these_bytes_and_come_back_from_them() -> None:
    assert encode_patterns(["shop/*", "web"]) == b'{"version": 1, "patterns": ["shop/*", "web"]}'
    assert decode_patterns(encode_patterns(["shop/*", "web"])) == ["shop/*", "web"]


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"[" * 100_000, b'{"version": 2, "patterns": ["a"]}', b'{"version": 1, "patterns": [7]}'],
)
def test_data_that_no_proxy_wrote_name_no_log(data: bytes) -> None:
    assert decode_patterns(data) == []


@given(st.binary())
def test_any_data_are_patterns_or_name_no_log(data: bytes) -> None:
    assert decode_patterns(data) == []
