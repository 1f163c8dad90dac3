"""Text of others on a terminal: control characters are shown, not sent.

A payload, a name or metadata may hold escape sequences. A terminal that obeys them moves its cursor, changes
its title, or types for the user; characters of direction show a name other than the stored one.

Inside: the characters and their written form. Not inside: when a command escapes (``output``).
Always: escaped text has no control character but the tab and, where asked for, the newline.

Source: ECMA-48 (C0, C1); UAX 9 (directional formatting characters); CVE-2021-42574.
"""

from __future__ import annotations

import re

# C0 without the tab, DEL, C1; marks and embeddings of direction, separators of lines and paragraphs; lone
# surrogates, which stand for bytes that are not UTF-8 and could not be printed.
_BESIDES_NEWLINE = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_IN_A_LINE = re.compile(f"[\n{_BESIDES_NEWLINE}]")
_IN_LINES = re.compile(f"[{_BESIDES_NEWLINE}]")


def escaped(text: str, *, keep_newlines: bool = False) -> str:
    r"""The text with ``\x1b`` or ``\u202e`` in place of each control character."""
    return (_IN_LINES if keep_newlines else _IN_A_LINE).sub(_written, text)


def escaped_bytes(data: bytes) -> bytes:
    r"""A payload for one line of a terminal: UTF-8 as it is, other bytes and controls as ``\x9b``."""
    return escaped(data.decode("utf-8", "backslashreplace")).encode()


def _written(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
