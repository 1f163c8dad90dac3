"""What a bookie is called and where it listens.

Inside: the rules that make an id out of configuration, and the questions to the operating system they need.
Not inside: sockets (``run``), telling others (``registration``).
Always: an address of the loopback interface is used only where that is allowed: it means something else on
every machine, so a bookie announced by it would be unreachable and look alive.

Source: BookieImpl.getBookieAddress, BookieId.java, DNS.java; reference on metadata 5.
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Callable

import attrs

from bookie.errors import ConfigError
from ledger.errors import LedgerMetadataError
from ledger.paths import check_bookie_id

_SIOCGIFADDR = 0x8915
_INTERFACE_NAME_BYTES_MAX = 15


@attrs.frozen(kw_only=True)
class AddressConfig:
    """What the configuration says."""

    bookie_id: str | None = None
    port: int = 3181
    interface: str | None = None  # listen there only
    advertised: str | None = None
    host_name_as_id: bool = False
    short_host_name: bool = False
    allow_loopback: bool = False


@attrs.frozen
class Identity:
    """What follows from it on this machine."""

    bookie_id: str
    possible_ids: tuple[str, ...]  # names it may have had under another configuration of the same machine
    advertised_host: str
    listen_host: str | None  # None: every address of the machine


@attrs.frozen
class Machine:
    """What is asked of the operating system; a test answers for it."""

    interface_address: Callable[[str], str]
    host_name: Callable[[], str]
    address_of: Callable[[str], str]


def resolve_identity(config: AddressConfig, machine: Machine | None = None) -> Identity:
    """The bookie's id and addresses.

    Raises:
        ConfigError: No such interface, a loopback address where none is allowed, a forbidden id.
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
        raise ConfigError(
            f"the name of this machine, {machine.host_name()!r}, has no address. Set advertisedAddress to the"
            " one clients shall use, or listeningInterface"
        )
    else:
        advertised_host = host_name if config.host_name_as_id else address
    loopback = listen_host if config.advertised is not None else address
    if loopback is not None and ipaddress.ip_address(loopback).is_loopback and not config.allow_loopback:
        raise ConfigError(
            f"this bookie's address would be {loopback}, no other machine can reach it. Set"
            " advertisedAddress or listeningInterface; or allowLoopback=true if all runs on this machine"
        )
    own = config.bookie_id or f"{advertised_host}:{config.port}"
    possible = [own]
    if config.bookie_id is None:
        hosts = [address, host_name, config.advertised]
        possible += [f"{host}:{config.port}" for host in hosts if host]
    try:
        check_bookie_id(own)
    except LedgerMetadataError as exc:
        raise ConfigError(f"bookieId: {exc}") from exc
    return Identity(own, tuple(dict.fromkeys(possible)), advertised_host, listen_host)


def _interface_address(name: str, machine: Machine) -> str:
    try:
        return machine.interface_address(name)
    except OSError as exc:
        known = ", ".join(sorted(known_name for _, known_name in socket.if_nameindex()))
        raise ConfigError(
            f"listeningInterface = {name!r}: no such interface with an IPv4 address ({exc.strerror or exc});"
            f" this machine has {known}"
        ) from exc


def real_machine() -> Machine:
    """This machine."""
    return Machine(_ask_interface_address, socket.getfqdn, _ask_address)


def _ask_interface_address(name: str) -> str:
    encoded = name.encode()
    if len(encoded) > _INTERFACE_NAME_BYTES_MAX:
        raise OSError(0, "the name is too long")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        answer = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", encoded))
    return socket.inet_ntoa(answer[20:24])


def _ask_address(host: str) -> str:
    return socket.gethostbyname(host)
