r"""A cookie: the identity of a bookie, its directories and its cluster.

The same text is stored in the node ``cookies/<bookie id>`` and in the file ``VERSION`` of each directory:

```
5
bookieHost: "192.0.2.10:3181"
journalDir: "/data/journal"                    several are separated by commas
ledgerDirs: "2\t/data/ledgers1\t/data/ledgers2"    the count, then each, separated by tabs
instanceId: "6f1cbd0e-6a0e-4f6a-9a4e-2f7f6c4b7c55"    if the cluster has one
indexDirs: "1\t/data/index"                    if the bookie has index directories of its own
```

Inside: encoding, decoding, comparing two cookies. Not inside: reading and writing the places where cookies
are stored (``cookie_check``).
Always: a cookie is written with layout version 5; versions 3 to 5 are read.

Source: Cookie.java; docs/metadata.md 6.1 to 6.3.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import attrs

from bookie.errors import CookieError

LAYOUT_VERSION = 5
_LAYOUT_VERSION_MIN = 3
_FIELD = re.compile(
    r"\s*([A-Za-z_]\w*)\s*:\s*((?:\"(?:[^\"\\\n]|\\.)*\"\s*|'(?:[^'\\\n]|\\.)*'\s*)+|[-\w.+]+)[\s,;]*"
)
_QUOTED = re.compile(r"\"((?:[^\"\\\n]|\\.)*)\"|'((?:[^'\\\n]|\\.)*)'")
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{1,2})|(.))")
_PLAIN_ESCAPES = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"a": b"\a", b"v": b"\v"}
_ESCAPED = {
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\\t",
    ord('"'): '\\"',
    ord("'"): "\\'",
    ord("\\"): "\\\\",
}


@attrs.frozen
class Cookie:
    """The directories are as configured, without ``current``; their order matters."""

    bookie_id: str
    journal_directories: tuple[str, ...]
    ledger_directories: tuple[str, ...]
    index_directories: tuple[str, ...] = ()  # empty: the ledger directories
    instance_id: str | None = None
    layout_version: int = LAYOUT_VERSION

    def differences(self, theirs: Cookie, *, allow_expansion: bool = False) -> list[str]:
        """The reasons why a bookie with this cookie must not use disks with ``theirs``; empty if it may.

        Args:
            allow_expansion: This cookie may have more ledger and index directories.
        """
        found = []
        for name, mine, other in (
            ("bookie id", self.bookie_id, theirs.bookie_id),
            (
                "journal directories",
                ", ".join(self.journal_directories),
                ", ".join(theirs.journal_directories),
            ),
            ("instance id", self.instance_id, theirs.instance_id),
        ):
            if mine != other:
                found.append(_difference(name, mine, other))
        for name, own, others in (
            ("ledger directories", self.ledger_directories, theirs.ledger_directories),
            (
                "index directories",
                self.index_directories or self.ledger_directories,
                theirs.index_directories or theirs.ledger_directories,
            ),
        ):
            same = set(own) >= set(others) if allow_expansion else own == others
            if not same:
                found.append(_difference(name, ", ".join(own), ", ".join(others)))
        return found


def _difference(name: str, mine: str | None, theirs: str | None) -> str:
    return f"{name}: configured {mine or 'none'}; stored {theirs or 'none'}"


def encode_cookie(cookie: Cookie) -> bytes:
    """The text of a cookie, byte for byte as Java writes it."""
    fields = [
        ("bookieHost", cookie.bookie_id),
        ("journalDir", ",".join(cookie.journal_directories)),
        ("ledgerDirs", _encode_directories(cookie.ledger_directories)),
    ]
    if cookie.instance_id is not None:
        fields.append(("instanceId", cookie.instance_id))
    if cookie.index_directories:
        fields.append(("indexDirs", _encode_directories(cookie.index_directories)))
    lines = [f'{name}: "{_escape(value)}"\n' for name, value in fields]
    return f"{LAYOUT_VERSION}\n{''.join(lines)}".encode("ascii")


def decode_cookie(data: bytes) -> Cookie:
    """Parse the text of a cookie.

    Raises:
        CookieError: It does not parse, or its version is not supported.
    """
    text = data.decode("latin-1")  # one character for each byte; `_unescape` decodes the UTF-8 in strings
    first, newline, rest = text.partition("\n")
    if not first.strip().isdecimal() or not first.isascii() or len(first) > 10:
        raise CookieError(f"not a cookie: the first line, {first[:60]!r}, is not a layout version")
    version = int(first.strip())
    if not _LAYOUT_VERSION_MIN <= version <= LAYOUT_VERSION:
        raise CookieError(
            f"cookie of layout version {version}; {_LAYOUT_VERSION_MIN} to {LAYOUT_VERSION} are supported."
            " Upgrade the bookie's disks with Apache's tools, or run the program that wrote them"
        )
    if not newline or not rest.strip():
        raise CookieError("a cookie that ends after its layout version")
    if version == 3:
        lines = rest.split("\n")
        if len(lines) < 3:
            raise CookieError("a cookie of layout version 3 with fewer than its four lines")
        return Cookie(
            lines[0], tuple(lines[1].split(",")), _decode_directories(lines[2]), layout_version=version
        )
    fields = _parse_fields(rest)
    missing = [name for name in ("bookieHost", "journalDir", "ledgerDirs") if name not in fields]
    if missing:
        raise CookieError(f"a cookie without {' and '.join(missing)}: {rest[:200]!r}")
    return Cookie(
        fields["bookieHost"],
        tuple(fields["journalDir"].split(",")),
        _decode_directories(fields["ledgerDirs"]),
        _decode_directories(fields["indexDirs"]) if fields.get("indexDirs") else (),
        fields.get("instanceId"),
        version,
    )


def _encode_directories(directories: Iterable[str]) -> str:
    listed = list(directories)
    return "\t".join((str(len(listed)), *listed))


def _decode_directories(text: str) -> tuple[str, ...]:
    count, *directories = text.rstrip("\t\r\n").split("\t")
    if count != str(len(directories)):
        raise CookieError(f"a cookie with an invalid list of directories: {text[:200]!r}")
    return tuple(directories)


def _parse_fields(text: str) -> dict[str, str]:
    """Parse the part of protobuf's text format that cookies use; skip unknown fields, as newer Java does."""
    fields: dict[str, str] = {}
    position = 0
    text = text.rstrip()
    while position < len(text):
        found = _FIELD.match(text, position)
        if found is None:
            raise CookieError(f"a cookie that does not parse at {text[position : position + 60]!r}")
        if found[2][0] in "\"'":
            parts = [one or other for one, other in _QUOTED.findall(found[2])]
            fields[found[1]] = _unescape("".join(parts))
        position = found.end()
    return fields


def _escape(text: str) -> str:
    return "".join(
        _ESCAPED.get(byte) or (chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}")
        for byte in text.encode()
    )


def _unescape(text: str) -> str:
    def plain(found: re.Match[bytes]) -> bytes:
        if found[1]:
            return bytes((int(found[1], 8) & 0xFF,))
        if found[2]:
            return bytes((int(found[2], 16),))
        return _PLAIN_ESCAPES.get(found[3], found[3])

    try:
        return _ESCAPE.sub(plain, text.encode("latin-1")).decode()
    except UnicodeDecodeError as exc:
        raise CookieError(f"a cookie with a string that is not UTF-8: {text[:200]!r}") from exc
