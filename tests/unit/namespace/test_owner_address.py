"""Where an owner listens and is reached: the texts of a setting and of its node."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from namespace.errors import ConfigError
from namespace.owner_address import ListenAt, OwnerPlace, parse_listen_at, parse_owner_place


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1", ListenAt("127.0.0.1", 0, 0)),
        ("app1.example:4181", ListenAt("app1.example", 4181, 4181)),
        ("app1:4181-4190", ListenAt("app1", 4181, 4190)),
        ("[::1]:7", ListenAt("::1", 7, 7)),
        ("[fe80::1%eth0]", ListenAt("fe80::1%eth0", 0, 0)),
    ],
)
def test_a_setting_names_a_host_and_perhaps_ports(text: str, expected: ListenAt) -> None:
    assert parse_listen_at(text) == expected


def test_a_program_may_say_that_it_owns_no_log() -> None:
    assert parse_listen_at("none") is None


@pytest.mark.parametrize(
    "text", ["", ":4181", "a:b", "a:0", "a:65536", "a:9-8", "a:1-", "a b", "::1", "0.0.0.0:1", "[::]", "*"]
)
def test_a_setting_at_which_no_other_program_could_reach_this_one_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="owner_address="):
        parse_listen_at(text)


@pytest.mark.parametrize("host", ["127.0.0.1", "app1.example", "::1"])
def test_a_place_comes_back_from_its_text(host: str) -> None:
    place = OwnerPlace(host, 4181, bytes(range(16)))
    assert parse_owner_place(str(place)) == place
    assert "0102" not in repr(place)


@pytest.mark.parametrize(
    "text", ["", "log-1.sock", "a:1", "a:1#00", f"a:0#{'0' * 32}", f"a:65536#{'0' * 32}", f"a b:1#{'0' * 32}"]
)
def test_a_text_that_no_owner_wrote_is_no_place(text: str) -> None:
    assert parse_owner_place(text) is None


@given(st.text())
def test_any_text_is_a_place_or_none_and_a_setting_or_refused(text: str) -> None:
    found = parse_owner_place(text)
    assert found is None or parse_owner_place(str(found)) == found
    try:
        parse_listen_at(text)
    except ConfigError:
        pass
