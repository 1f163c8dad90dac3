"""The id and the addresses of a bookie.

Inside: the rules that derive them from the configuration, and the calls to the operating system they need.
Not inside: sockets (``main``), announcing the bookie (``registration``).
Always: a loopback address is used only if the configuration allows it. It means another machine to each
client, so a bookie announced with it would look alive and be unreachable.

Source: BookieImpl.getBookieAddress, BookieId.java, DNS.java; docs/metadata.md 5.
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Callable

import attrs

from bookie.errors import BookieConfigError
from ledger.catalog.paths import check_bookie_id
from ledger.errors import LedgerMetadataError

_SIOCGIFADDR = 0x8915
_INTERFACE_NAME_BYTES_MAX = 15


@attrs.frozen(kw_only=True)
class AddressConfig:
    """The keys of the configuration about the address."""

    bookie_id: str | None = None
    port: int = 3181
    interface: str | None = None  # listen there only
    advertised: str | None = None
    host_name_as_id: bool = False
    short_host_name: bool = False
    allow_loopback: bool = False


@attrs.frozen
class Identity:
    """The id and the addresses that result on this machine."""

    bookie_id: str
    possible_ids: tuple[str, ...]  # ids under other configurations of this machine
    advertised_host: str
    listen_host: str | None  # None: all addresses of the machine


@attrs.frozen
class Machine:
    """The calls to the operating system; tests replace them."""

    interface_address: Callable[[str], str]
    host_name: Callable[[], str]
    address_of: Callable[[str], str]


def resolve_identity(config: AddressConfig, machine: Machine | None = None) -> Identity:
    """The bookie's id and addresses.

    Raises:
        BookieConfigError: There is no such interface, a loopback address is not allowed, or the id is
        invalid.
    """
    machine = machine or real_machine()
    listen_host = _interface_address(config.interface, machine) if config.interface else None
    host_name = machine.host_name()
    if config.short_host_name:
        host_name = host_name.partition(".")[0]
    address: str | None = None
    if listen_host is not None:
        address = listen_host
    elif config.advertised is None or config.bookie_id is None:
        try:
            address = machine.address_of(machine.host_name())
        except OSError:
            address = None
    if config.advertised is not None:
        advertised_host = config.advertised
    elif address is None:
        raise BookieConfigError(
            f"the name of this machine, {machine.host_name()!r}, has no address. Set advertisedAddress to the"
            " address for clients, or set listeningInterface"
        )
    else:
        advertised_host = host_name if config.host_name_as_id else address
    loopback = listen_host if config.advertised is not None else address
    if loopback is not None and ipaddress.ip_address(loopback).is_loopback and not config.allow_loopback:
        raise BookieConfigError(
            f"the address of this bookie would be {loopback}, which no other machine can reach. Set"
            " advertisedAddress or listeningInterface; or allowLoopback=true if all clients run here"
        )
    own = config.bookie_id or f"{advertised_host}:{config.port}"
    possible = [own]
    if config.bookie_id is None:
        hosts = [address, host_name, config.advertised]
        possible += [f"{host}:{config.port}" for host in hosts if host]
    try:
        check_bookie_id(own)
    except LedgerMetadataError as exc:
        raise BookieConfigError(f"bookieId: {exc}") from exc
    return Identity(own, tuple(dict.fromkeys(possible)), advertised_host, listen_host)


def _interface_address(name: str, machine: Machine) -> str:
    try:
        return machine.interface_address(name)
    except OSError as exc:
        known = ", ".join(sorted(known_name for _, known_name in socket.if_nameindex()))
        raise BookieConfigError(
            f"listeningInterface = {name!r}: no such interface with an IPv4 address ({exc.strerror or exc});"
            f" this machine has {known}"
        ) from exc


def real_machine() -> Machine:
    """The calls to the operating system of this machine."""
    return Machine(_interface_ipv4, socket.getfqdn, socket.gethostbyname)


def _interface_ipv4(name: str) -> str:
    encoded = name.encode()
    if len(encoded) > _INTERFACE_NAME_BYTES_MAX:
        raise OSError(0, "the name is too long")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        result = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", encoded))
    return socket.inet_ntoa(result[20:24])
