"""The id and the addresses of a bookie, on a fake machine."""

from __future__ import annotations

import pytest

from bookie.errors import BookieConfigError
from bookie.identity.address import AddressConfig, Machine, real_machine, resolve_identity


def machine(address: str = "192.0.2.7", name: str = "host7.example") -> Machine:
    def interface(interface_name: str) -> str:
        if interface_name == "lo":
            return "127.0.0.1"
        if interface_name == "eth0":
            return "192.0.2.8"
        raise OSError(19, "No such device")

    def address_of(host: str) -> str:
        assert host == name
        if not address:
            raise OSError(-2, "Name or service not known")
        return address

    return Machine(interface, lambda: name, address_of)


@pytest.mark.parametrize(
    ("config", "bookie_id", "listen", "possible"),
    [
        (AddressConfig(), "192.0.2.7:3181", None, {"192.0.2.7:3181", "host7.example:3181"}),
        (AddressConfig(port=9), "192.0.2.7:9", None, {"192.0.2.7:9", "host7.example:9"}),
        (
            AddressConfig(interface="eth0"),
            "192.0.2.8:3181",
            "192.0.2.8",
            {"192.0.2.8:3181", "host7.example:3181"},
        ),
        (
            AddressConfig(host_name_as_id=True),
            "host7.example:3181",
            None,
            {"192.0.2.7:3181", "host7.example:3181"},
        ),
        (
            AddressConfig(host_name_as_id=True, short_host_name=True),
            "host7:3181",
            None,
            {"192.0.2.7:3181", "host7:3181"},
        ),
        (
            AddressConfig(advertised="b.example"),
            "b.example:3181",
            None,
            {"b.example:3181", "192.0.2.7:3181", "host7.example:3181"},
        ),
        (AddressConfig(bookie_id="mine"), "mine", None, {"mine"}),
        (
            AddressConfig(interface="lo", advertised="127.0.0.1", allow_loopback=True),
            "127.0.0.1:3181",
            "127.0.0.1",
            {"127.0.0.1:3181", "host7.example:3181"},
        ),
    ],
)
def test_the_id_follows_from_the_configuration(
    config: AddressConfig, bookie_id: str, listen: str | None, possible: set[str]
) -> None:
    identity = resolve_identity(config, machine())
    assert identity.bookie_id == bookie_id
    assert identity.listen_host == listen
    assert set(identity.possible_ids) == possible


@pytest.mark.parametrize(
    "config", [AddressConfig(interface="lo"), AddressConfig(bookie_id="x", interface="lo")]
)
def test_a_loopback_address_must_be_allowed(config: AddressConfig) -> None:
    with pytest.raises(BookieConfigError, match="no other machine can reach"):
        resolve_identity(config, machine())


def test_a_machine_that_resolves_itself_to_loopback_needs_an_advertised_address() -> None:
    with pytest.raises(BookieConfigError, match="Set advertisedAddress"):
        resolve_identity(AddressConfig(), machine("127.0.1.1"))
    assert resolve_identity(AddressConfig(advertised="b"), machine("127.0.1.1")).bookie_id == "b:3181"


def test_a_machine_without_an_address_needs_an_advertised_one() -> None:
    with pytest.raises(BookieConfigError, match="has no address"):
        resolve_identity(AddressConfig(), machine(""))
    assert resolve_identity(AddressConfig(advertised="b"), machine("")).advertised_host == "b"


def test_an_unknown_interface_is_refused_and_the_known_ones_are_named() -> None:
    with pytest.raises(BookieConfigError, match=r"this machine has .*lo"):
        resolve_identity(AddressConfig(interface="eth99"), machine())


@pytest.mark.parametrize("bookie_id", ["readonly", "a/b", "a b"])
def test_a_forbidden_id_is_refused(bookie_id: str) -> None:
    with pytest.raises(BookieConfigError, match="cannot be a bookie's id"):
        resolve_identity(AddressConfig(bookie_id=bookie_id), machine())


def test_this_machine_knows_its_loopback_interface() -> None:
    assert real_machine().interface_address("lo") == "127.0.0.1"
