"""Where the owner of a shared log takes records in a network: as a setting says, and as its node says.

    setting    HOST, HOST:PORT or HOST:FIRST-LAST; or none: it owns no log
    node       HOST:PORT#KEY    the key in hexadecimal: it shows a connection to be meant for this owner

Inside: both texts. Not inside: listening and dialling (``dlog.forwarding.network_meeting``).
Always: any text parses, or is refused.

Source: our own; docs/shared.md, "Where they meet".
"""

from __future__ import annotations

import re

import attrs

from namespace.errors import ConfigError

KEY_BYTES = 16
LOOPBACK = "127.0.0.1"
NEVER = "none"
PORT_MAX = 65_535
_HOST = r"(\[[0-9a-fA-F:.%\w]{1,100}\]|[^\[\]:\s#]{1,255})"
_LISTEN_AT = re.compile(_HOST + r"(?::(\d{1,5})(?:-(\d{1,5}))?)?", re.ASCII)
_PLACE = re.compile(_HOST + r":(\d{1,5})#([0-9a-f]{32})", re.ASCII)
_ALL_ADDRESSES = ("0.0.0.0", "::", "*")


@attrs.frozen
class ListenAt:
    """Where a program may listen: a host, and the ports of a range; 0 to 0: any free one."""

    host: str
    first_port: int
    last_port: int


@attrs.frozen
class OwnerPlace:
    """Where an owner listens, and its key."""

    host: str
    port: int
    key: bytes = attrs.field(repr=False)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}#{self.key.hex()}"


def parse_listen_at(text: str) -> ListenAt | None:
    """``HOST``, ``HOST:PORT`` or ``HOST:FIRST-LAST``; an address of IPv6 in brackets. None for ``none``.

    Raises:
        ConfigError: It is none of these, or no other program could reach it.
    """
    if text == NEVER:
        return None
    found = _LISTEN_AT.fullmatch(text)
    if found is None:
        raise ConfigError(f"owner_address={text!r}: give HOST, HOST:PORT, HOST:FIRST-LAST or none")
    host, first = found[1].strip("[]"), int(found[2] or 0)
    last = int(found[3] or first)
    if host in _ALL_ADDRESSES:
        raise ConfigError(
            f"owner_address={text!r}: give the one name or address at which other programs reach this one"
        )
    if not first <= last <= PORT_MAX or (found[2] is not None and not first):
        raise ConfigError(
            f"owner_address={text!r}: ports lie between 1 and {PORT_MAX}, and the first one comes first"
        )
    return ListenAt(host, first, last)


def parse_owner_place(text: str) -> OwnerPlace | None:
    """The place in the address of a node; None if no owner in a network wrote it."""
    found = _PLACE.fullmatch(text)
    if found is None or not 0 < int(found[2]) <= PORT_MAX:
        return None
    return OwnerPlace(found[1].strip("[]"), int(found[2]), bytes.fromhex(found[3]))
