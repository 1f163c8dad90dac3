"""SASL DIGEST-MD5: its messages, and the hash that both sides compute.

    challenge   realm="bookkeeper",qop="auth",nonce="...",charset=utf-8,algorithm=md5-sess
    response    username="...",realm="bookkeeper",nonce="...",nc=00000001,cnonce="...",
                digest-uri="bookkeeper/bookkeeper",response=<32 hex digits>,qop=auth
    proof       rspauth=<32 hex digits>

Inside: parsing and formatting, the hash, the comparison. Not inside: the order of messages on either side
(``sasl``, ``ledger.auth.sasl_users``), passwords in files.
Always: hashes are compared in constant time; a message is parsed in one pass over at most
``MESSAGE_BYTES_MAX`` bytes.

DIGEST-MD5 hides the password from a listener and proves that the bookie knows it. It protects nothing that
follows: use it inside TLS. A listener can try passwords offline, so they must be long and random.

Source: RFC 2831 (SASL mechanism DIGEST-MD5); docs/protocol.md 12.4.
"""

from __future__ import annotations

import hashlib
import hmac
import re

import attrs

MESSAGE_BYTES_MAX = 4096  # RFC 2831: the longest response
SERVICE = "bookkeeper"
REALM = "bookkeeper"
DIGEST_URI = f"{SERVICE}/bookkeeper"
FIRST_USE = "00000001"  # of a nonce; there is no second one

_DIRECTIVE = re.compile(
    rb'[ \t\r\n,]*([a-zA-Z-]+)[ \t\r\n]*=[ \t\r\n]*(?:"((?:[^"\\]|\\.)*)"|([^",\s]*))[ \t\r\n]*(?:,|\Z)',
    re.DOTALL,
)
_QUOTED_PAIR = re.compile(rb"\\(.)", re.DOTALL)
_HASH = re.compile(r"[0-9a-f]{32}")


def parse_message(message: bytes) -> dict[str, str]:
    """The directives of a message, by name in lower case.

    Raises:
        ValueError: The message is malformed, too long, or has a directive twice.
    """
    if len(message) > MESSAGE_BYTES_MAX:
        raise ValueError(f"a DIGEST-MD5 message of {len(message)} bytes; {MESSAGE_BYTES_MAX} are allowed")
    found: dict[str, str] = {}
    position = 0
    while position < len(message):
        match = _DIRECTIVE.match(message, position)
        if match is None:
            raise ValueError(f"a DIGEST-MD5 message that does not parse at byte {position}")
        name = match[1].decode("ascii").lower()
        value = match[3] if match[2] is None else _QUOTED_PAIR.sub(rb"\1", match[2])
        if name in found:
            raise ValueError(f"a DIGEST-MD5 message that has {name} twice")
        try:
            found[name] = value.decode()
        except UnicodeDecodeError:
            raise ValueError(f"a DIGEST-MD5 message whose {name} is not UTF-8") from None
        position = match.end()
    return found


def quoted(text: str) -> str:
    """A value in quotation marks."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


@attrs.frozen
class Exchange:
    """The values of one exchange that go into the hash."""

    realm: str
    nonce: str = attrs.field(repr=False)
    cnonce: str = attrs.field(repr=False)
    authzid: str | None = None
    digest_uri: str = DIGEST_URI


def response_hash(username: str, password: str, exchange: Exchange, *, of_server: bool = False) -> str:
    """The 32 hexadecimal digits that prove the knowledge of the password.

    Args:
        of_server: True for ``rspauth``, the proof of the server.
    """
    secret = hashlib.md5(
        b":".join(map(_encode, (username, exchange.realm, password))), usedforsecurity=False
    ).digest()
    first = secret + f":{exchange.nonce}:{exchange.cnonce}".encode()
    if exchange.authzid is not None:
        first += f":{exchange.authzid}".encode()
    second = f"{'' if of_server else 'AUTHENTICATE'}:{exchange.digest_uri}".encode()
    return _hex(f"{_hex(first)}:{exchange.nonce}:{FIRST_USE}:{exchange.cnonce}:auth:{_hex(second)}".encode())


def is_hash(claimed: str, expected: str) -> bool:
    """Compare in a time that depends on neither value."""
    return _HASH.fullmatch(claimed) is not None and hmac.compare_digest(claimed, expected)


def _encode(text: str) -> bytes:
    """RFC 2831: ISO 8859-1 if every character is in it, else UTF-8."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode()


def _hex(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()
