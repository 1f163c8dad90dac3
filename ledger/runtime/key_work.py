"""The work that a private key asks for before it can be used, known before the work begins.

A key with a password names the number of iterations that turn the password into a key. A hostile or damaged
file names thousands of millions, and keeps a core busy for hours.

Inside: the derivations in PKCS8 and PKCS12, PEM files with encrypted keys. Not inside: the derivation itself
(OpenSSL), Java's stores (``ledger.auth.java_stores``).
Always: a file whose work cannot be seen is refused; no error has a password or a key in it.

Source: RFC 5958, RFC 7292, RFC 7914, RFC 8018, X.690.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import ssl
from pathlib import Path

from ledger.pickling import PicklableError
from ledger.runtime.secret_file import SecretOf, load_secret

ITERATIONS_MAX = 5_000_000  # of one file, all keys together; Java's own limit for one. A few seconds
PEM_BYTES_MAX = 16 << 20
_DER_ELEMENTS_MAX = 300_000
_DER_DEPTH_MAX = 64
_INTEGER, _OCTETS, _SEQUENCE = 0x02, 0x04, 0x30  # tags
_CONSTRUCTED = 0x20
_NUMBER_BYTES_MAX, _NUMBER_MAX = 8, 1 << 63
_SCRYPT_NUMBERS = 3  # N, r and p; the other derivations have a count, and some a length after it
_FIELDS_WITHOUT_MAC = 2  # of a PKCS12 store: version and content
_ENCRYPTED_DATA = bytes.fromhex("06092a864886f70d010706")  # 1.2.840.113549.1.7.6
_NO_MAC = (
    "it has no MAC, so encrypted content could hide any work. Write it again with one: keytool"
    " -importkeystore, or openssl pkcs12 -export without -nomac"
)
_PEM_KEY = re.compile(rb"-----BEGIN ENCRYPTED PRIVATE KEY-----(.*?)(?:-----END|\Z)", re.DOTALL)


class KeyWorkError(PicklableError, ValueError):
    """A key must not be used. The message says why."""

    def __init__(self, message: str, *, is_too_much: bool = False) -> None:
        """``is_too_much``: the message lacks the remedy, which depends on the format."""
        super().__init__(message)
        self.is_too_much = is_too_much


def load_pem_key(
    context: ssl.SSLContext,
    certificate: Path,
    key: Path | None = None,
    *,
    password: str | None = None,
    named_by: SecretOf = SecretOf.OURS,
) -> None:
    """Load a certificate and its key in PEM; an encrypted key only if it asks for bounded work.

    Args:
        key: None: it is in the file of the certificate.
        named_by: The configuration that names the key.

    Raises:
        OSError: A file cannot be read, or has the wrong format, or the password is missing or wrong.
        KeyWorkError: The key asks for too much work.
        SecretFileError: Others may use the key.
    """
    path = key or certificate
    content = load_secret(path, named_by, bytes_max=PEM_BYTES_MAX).content
    try:
        for found in _PEM_KEY.finditer(content):
            lines = [line.strip() for line in found[1].splitlines() if b":" not in line]
            KeyWork(base64.b64decode(b"".join(lines), validate=True)).check()
    except KeyWorkError as exc:
        remedy = " write it again with fewer: openssl pkcs8 -topk8 -iter 10000" if exc.is_too_much else ""
        raise KeyWorkError(f"{path}: {exc}{remedy}") from None
    except (ValueError, binascii.Error):
        raise KeyWorkError(f"{path}: its encrypted key is damaged") from None
    # Without a password OpenSSL would ask the terminal for one; an empty one makes it raise instead.
    context.load_cert_chain(certificate, key, password=lambda: password or "")


class KeyWork:
    """The work of deriving keys that some bytes in BER ask for, read without a password.

    Each derivation has a sequence with a salt (OCTET STRING) and its numbers (INTEGER) after it: MacData,
    PBKDF2-params, PBEParameter, scrypt-params. Sequences within encrypted content are not seen; the MAC of a
    PKCS12 store, which is checked first, guards these. Lengths may be indefinite, as some programs write BER.
    """

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._elements = 0
        self._iterations = 0
        self._is_strict = False

    def check(self, *, needs_mac: bool = False) -> None:
        """Check before any key is derived.

        Args:
            needs_mac: The bytes are a PKCS12 store. Without a MAC it may have no encrypted content, and all
                of it must be DER, so that each derivation is seen here.

        Raises:
            KeyWorkError: The work is above the limit, or a MAC is missing.
            ValueError: The bytes are not BER.
        """
        tag, start, stop = self._header(0, len(self._content))
        end = len(self._content) if stop is None else stop
        if needs_mac and tag == _SEQUENCE:
            self._is_strict = self._count(start, end) == _FIELDS_WITHOUT_MAC
            if self._is_strict and _ENCRYPTED_DATA in self._content:
                raise KeyWorkError(_NO_MAC)
        self._walk(start, end, 0)

    def _count(self, at: int, end: int) -> int:
        """The number of elements side by side."""
        count = 0
        while at < end:
            tag, start, stop = self._header(at, end)
            if tag == 0 and start == stop:
                break
            count += 1
            at = self._skip(start, end) if stop is None else stop
        return count

    def _skip(self, at: int, end: int) -> int:
        """The place after the mark that ends an element of indefinite length."""
        depth = 1
        while depth:
            tag, start, stop = self._header(at, end)
            if tag == 0 and start == stop:
                depth -= 1
                at = start
            elif stop is None:
                depth += 1
                at = start
            else:
                at = stop
        return at

    def _walk(self, at: int, end: int, depth: int) -> int:
        """Read elements until ``end``, or until the mark of an indefinite length; return the place after
        it."""
        if depth > _DER_DEPTH_MAX:
            raise ValueError("nested too deeply")
        numbers: list[int] | None = None  # after a salt
        while at < end:
            tag, start, stop = self._header(at, end)
            if self._is_strict and (stop is None or tag == _OCTETS | _CONSTRUCTED):
                raise KeyWorkError(_NO_MAC)  # a derivation could be hidden in pieces
            if tag == 0 and start == stop:
                at = stop
                break
            if tag == _INTEGER and stop is not None and numbers is not None:
                if len(numbers) < _SCRYPT_NUMBERS:  # more have no meaning, and a product of many costs time
                    numbers.append(self._number(start, stop))
                    self._refuse_above(numbers)
            else:
                self._add(numbers)
                numbers = [] if tag & ~_CONSTRUCTED == _OCTETS else None
            if tag & _CONSTRUCTED:
                at = self._walk(start, end if stop is None else stop, depth + 1)
            else:
                assert stop is not None  # set when the first work starts
                if tag == _OCTETS and self._content[start : start + 1] == bytes([_SEQUENCE]):
                    self._walk_octets(start, stop, depth + 1)
                at = stop
        self._add(numbers)
        return at

    def _walk_octets(self, at: int, end: int, depth: int) -> None:
        """Read a string that may be BER itself; ciphertext and salts are not."""
        try:
            self._walk(at, end, depth)
        except KeyWorkError:
            raise
        except ValueError:
            pass

    def _header(self, at: int, end: int) -> tuple[int, int, int | None]:
        """The tag, the start and the end of an element's content; no end if its length is indefinite."""
        self._elements += 1
        if self._elements > _DER_ELEMENTS_MAX:
            raise KeyWorkError(f"it has more than {_DER_ELEMENTS_MAX} elements")
        if at + 2 > end:
            raise ValueError("no header")
        tag, length = self._content[at], self._content[at + 1]
        at += 2
        if length == 0x80 and tag & _CONSTRUCTED:
            return tag, at, None
        if length & 0x80:
            size = length & 0x7F
            length = int.from_bytes(self._content[at : at + size], "big")
            at += size
        if at + length > end:
            raise ValueError("beyond the end")
        return tag, at, at + length

    def _number(self, start: int, stop: int) -> int:
        """The value of an INTEGER, at most ``_NUMBER_MAX``; a negative one, which makes no sense, is that."""
        if stop - start > _NUMBER_BYTES_MAX:
            return _NUMBER_MAX
        return min(int.from_bytes(self._content[start:stop], "big"), _NUMBER_MAX)

    def _add(self, numbers: list[int] | None) -> None:
        if numbers:
            self._iterations += self._work(numbers)
            self._refuse_above([])

    def _refuse_above(self, numbers: list[int]) -> None:
        asked = self._iterations + (self._work(numbers) if numbers else 0)
        if asked > ITERATIONS_MAX:
            shown = asked if asked < _NUMBER_MAX else "2^63 or more"
            raise KeyWorkError(
                f"deriving its keys takes {shown} iterations; at most {ITERATIONS_MAX} are allowed. It is"
                " damaged, or",
                is_too_much=True,
            )

    @staticmethod
    def _work(numbers: list[int]) -> int:
        return math.prod(numbers) if len(numbers) >= _SCRYPT_NUMBERS else numbers[0]
