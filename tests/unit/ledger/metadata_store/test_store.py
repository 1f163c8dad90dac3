from __future__ import annotations

import pytest

from ledger.metadata_store.errors import InvalidPathError
from ledger.metadata_store.store import ancestors_of, check_path, parent_of, sequence_suffix


def test_sequence_numbers_have_ten_digits_and_turn_negative_like_a_signed_counter() -> None:
    assert sequence_suffix(0) == "0000000000"
    assert sequence_suffix(2147483647) == "2147483647"
    assert sequence_suffix(2147483648) == "-2147483648"


def test_parents_and_ancestors() -> None:
    assert parent_of("/a/b") == "/a"
    assert parent_of("/a") == "/"
    assert ancestors_of("/a/b/c") == ["/a", "/a/b"]
    assert ancestors_of("/a") == []


def test_a_refused_path_is_named_with_the_reason() -> None:
    with pytest.raises(InvalidPathError, match=r"/a/\.\.: '\.\.' is not a node name"):
        check_path("/a/..")
    with pytest.raises(InvalidPathError, match=r"U\+0085"):
        check_path("/a\x85")
    assert check_path("/messaging/<default>/ü") == "/messaging/<default>/ü"
