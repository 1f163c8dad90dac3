from __future__ import annotations

import pytest

from dlog.errors import InvalidLogNameError
from namespace.log_name import check_log_name


@pytest.mark.parametrize("name", ["a", "orders", "a/b/c", "a.b", "a-b_c", "ümlaut", "a:1", "x<"[:1]])
def test_valid_names_are_returned(name: str) -> None:
    assert check_log_name(name) == name


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "empty"),
        ("/", "begins with '/'"),
        ("/orders", "begins with '/'"),
        (".x", "reserved"),
        ("/.x", "begins with '/'"),
        ("<x", "reserved"),
        ("a/", "ends with"),
        ("a//b", "part of it is empty"),
        ("//a", "begins with '/'"),
        ("a/../b", "'..' cannot be a part"),
        ("a/.", "'.' cannot be a part"),
        ("a b", "' ' at 1"),
        ("a<b", "'<' at 1"),
        ("a/<default>", "'<' at 2"),
        ("a>", "'>' at 1"),
        ("a\0", r"U\+0000 at 1"),
        ("a\x1f", r"U\+001F"),
        ("a\x7f", r"U\+007F"),
        ("a\ue000", r"U\+E000"),
        ("a\ufff0", r"U\+FFF0"),
        ("a\U0001f600", r"U\+1F600"),
    ],
)
def test_invalid_names_are_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(InvalidLogNameError, match=reason):
        check_log_name(name)
