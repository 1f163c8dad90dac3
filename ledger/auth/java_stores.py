"""Key stores and trust stores of Java, PKCS12 and JKS, as PEM text for OpenSSL.

JKS, all numbers big-endian, texts with a length of two bytes in front:

    4  FEEDFEED      4  version 2      4  number of entries
    each entry       4  tag, 1 for a key and 2 for a certificate; alias; 8 date
    of a key         4  length; an EncryptedPrivateKeyInfo; 4 number of certificates; each as below
    certificate      "X.509"; 4 length; DER
    20 SHA-1         of the password in UTF-16, "Mighty Aphrodite" and everything before

Inside: both formats; their first bytes show which, as in Java. Not inside: PEM files, contexts
(``tls``).
Always: the integrity of a store is checked with its password before anything in it is used; a store has at
most ``STORE_BYTES_MAX`` bytes; the work of deriving keys, which a store chooses, is compared with
``ITERATIONS_MAX`` before it begins; no error has a password or a key in it.

Source: sun.security.provider.JavaKeyStore and KeyProtector (their formats); RFC 7292; docs/protocol.md 12.2.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import os
import ssl
import struct
import tempfile
from pathlib import Path

import attrs

STORE_BYTES_MAX = 16 << 20
ITERATIONS_MAX = 5_000_000  # of one PKCS12 store, all keys together; Java's own limit for one. A few seconds
MISSING = (
    "reading a PKCS12 store needs the package cryptography; install it with:"
    " pip install 'dlog-streams[security]'"
)
_UNREADABLE = "the password is wrong, or it is no undamaged PKCS12 store"
_MAGIC = b"\xfe\xed\xfe\xed"
_KEY, _CERTIFICATE = 1, 2
_DIGEST_BYTES = 20
_ENTRIES_MAX = 10_000
_JKS_KEY_BYTES_MAX = 1 << 16  # RSA with 16,384 bits needs 10,000
_DER_ELEMENTS_MAX = 300_000
_DER_DEPTH_MAX = 64
_INTEGER, _OCTETS, _SEQUENCE = 0x02, 0x04, 0x30  # tags
_CONSTRUCTED = 0x20
_NUMBER_BYTES_MAX, _NUMBER_MAX = 8, 1 << 63
_SCRYPT_NUMBERS = 3  # N, r and p; the other derivations have a count, and some a length behind it
# The object id of Sun's protection of keys, 1.3.6.1.4.1.42.2.17.1.1, in DER.
_SUN_PROTECTION = bytes.fromhex("060a2b060104012a02110101")


class StoreError(ValueError):
    """A store cannot be used. The message names the file and the remedy."""


@attrs.frozen
class JavaStore:
    """The key and the certificates of a store, in PEM."""

    key: str | None = attrs.field(repr=False)
    chain: tuple[str, ...]  # of the key, its own certificate first
    trusted: tuple[str, ...]


def read_store(path: Path, password: str | None) -> JavaStore:
    """Read a store of either format.

    Raises:
        OSError: The file cannot be read.
        StoreError: The password is wrong, the file is damaged or has several keys, or the package
            cryptography is missing.
    """
    with path.open("rb") as file:
        content = file.read(STORE_BYTES_MAX + 1)
    if len(content) > STORE_BYTES_MAX:
        raise StoreError(f"{path} has more than {STORE_BYTES_MAX} bytes")
    if content.startswith(b"-----BEGIN"):
        raise StoreError(f"{path} is PEM, not a key store of Java; set its type to PEM")
    try:
        if content.startswith(_MAGIC):
            return _read_jks(content, password)
        return _read_pkcs12(content, password)
    except StoreError as exc:
        raise StoreError(f"{path}: {exc}") from None


def _read_pkcs12(content: bytes, password: str | None) -> JavaStore:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError:
        raise StoreError(MISSING) from None
    _Pkcs12Work(content).check()
    try:
        found = pkcs12.load_pkcs12(content, None if password is None else password.encode())
    except ValueError:  # its message does not say more
        raise StoreError(_UNREADABLE) from None
    pem = serialization.Encoding.PEM
    others = [one.certificate.public_bytes(pem).decode() for one in found.additional_certs]
    if found.key is None:
        return JavaStore(None, (), tuple(others))
    if found.cert is None:
        raise StoreError("it has a key without its certificate")
    key = found.key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    # Which of the others are trusted is in an attribute that cryptography does not show.
    return JavaStore(key.decode(), (found.cert.certificate.public_bytes(pem).decode(), *others), ())


class _Pkcs12Work:
    """The work of deriving keys that a PKCS12 store asks for, read from its bytes without a password.

    Each derivation has a sequence with a salt (OCTET STRING) and its numbers (INTEGER) behind it: MacData,
    PBKDF2-params, PBEParameter, scrypt-params. Sequences within encrypted content are not seen; the store's
    MAC, which is checked first, guards these. Lengths may be indefinite, as some programs write BER.
    """

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._elements = 0
        self._iterations = 0

    def check(self) -> None:
        """Raise ``StoreError`` if the work is above the limit, or the content is not BER."""
        try:
            _, start, stop = self._header(0, len(self._content))
            self._walk(start, len(self._content) if stop is None else stop, 0)
        except ValueError as exc:
            raise exc if isinstance(exc, StoreError) else StoreError(_UNREADABLE) from None

    def _walk(self, at: int, end: int, depth: int) -> int:
        """Read elements until ``end``, or until the mark of an indefinite length; return the place behind."""
        if depth > _DER_DEPTH_MAX:
            raise ValueError("nested too deeply")
        numbers: list[int] | None = None  # behind a salt
        while at < end:
            tag, start, stop = self._header(at, end)
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
                assert stop is not None
                if tag == _OCTETS and self._content[start : start + 1] == bytes([_SEQUENCE]):
                    self._walk_octets(start, stop, depth + 1)
                at = stop
        self._add(numbers)
        return at

    def _walk_octets(self, at: int, end: int, depth: int) -> None:
        """Read a string that may be BER itself; ciphertext and salts are not."""
        try:
            self._walk(at, end, depth)
        except StoreError:
            raise
        except ValueError:
            pass

    def _header(self, at: int, end: int) -> tuple[int, int, int | None]:
        """The tag, the start and the end of an element's content; no end if its length is indefinite."""
        self._elements += 1
        if self._elements > _DER_ELEMENTS_MAX:
            raise StoreError(f"it has more than {_DER_ELEMENTS_MAX} elements")
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
            raise StoreError(
                f"deriving its keys takes {shown} iterations; at most"
                f" {ITERATIONS_MAX} are allowed. It is damaged, or write it again with fewer: keytool"
                " -importkeystore, or openssl pkcs12 -iter 10000"
            )

    @staticmethod
    def _work(numbers: list[int]) -> int:
        return math.prod(numbers) if len(numbers) >= _SCRYPT_NUMBERS else numbers[0]


class _Reader:
    """Fields of a JKS file, in order."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 0

    def take(self, size: int) -> bytes:
        if not 0 <= size <= len(self._content) - self._at:
            raise StoreError("it ends in the middle of an entry")
        self._at += size
        return self._content[self._at - size : self._at]

    def number(self) -> int:
        value: int = struct.unpack(">I", self.take(4))[0]
        return value

    def text(self) -> bytes:
        return self.take(struct.unpack(">H", self.take(2))[0])

    def certificate(self, version: int) -> str:
        if version == 2 and self.text() != b"X.509":
            raise StoreError("it has a certificate of another type than X.509")
        return ssl.DER_cert_to_PEM_cert(self.take(self.number()))


def _read_jks(content: bytes, password: str | None) -> JavaStore:
    if password is None:
        raise StoreError("a JKS store needs its password")
    secret = password.encode("utf-16-be")
    body, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    expected = hashlib.sha1(secret + b"Mighty Aphrodite" + body, usedforsecurity=False).digest()
    if not hmac.compare_digest(digest, expected):
        raise StoreError("the password is wrong, or the JKS store is damaged")
    reader = _Reader(body)
    reader.take(len(_MAGIC))
    version, count = reader.number(), reader.number()
    if version not in (1, 2) or count > _ENTRIES_MAX:
        raise StoreError(f"JKS version {version} with {count} entries is not supported")
    keys: list[tuple[str, tuple[str, ...]]] = []
    trusted: list[str] = []
    for _ in range(count):
        tag = reader.number()
        reader.text()
        reader.take(8)
        if tag == _CERTIFICATE:
            trusted.append(reader.certificate(version))
        elif tag == _KEY:
            key = _unprotect(reader.take(reader.number()), secret)
            chain = tuple(reader.certificate(version) for _ in range(min(reader.number(), _ENTRIES_MAX)))
            keys.append((key, chain))
        else:
            raise StoreError(f"an entry of kind {tag} is not supported")
    if len(keys) > 1:
        raise StoreError(f"it has {len(keys)} keys; keep one in it")
    if keys and not keys[0][1]:
        raise StoreError("it has a key without its certificate")
    if not keys:
        return JavaStore(None, (), tuple(trusted))
    return JavaStore(keys[0][0], keys[0][1], tuple(trusted))


def _unprotect(protected: bytes, secret: bytes) -> str:
    """The key in PEM from an EncryptedPrivateKeyInfo of Sun's own protection."""
    if len(protected) > _JKS_KEY_BYTES_MAX:
        raise StoreError(f"its key has {len(protected)} bytes; at most {_JKS_KEY_BYTES_MAX} are allowed")
    at = protected.find(_SUN_PROTECTION)
    if not 0 <= at <= 16:
        raise StoreError("its key is protected in an unknown way")
    # AlgorithmIdentifier ends with NULL; an OCTET STRING follows.
    at += len(_SUN_PROTECTION)
    if protected[at : at + 2] == b"\x05\x00":
        at += 2
    content = _der_content(protected, at, 0x04)
    if len(content) <= 2 * _DIGEST_BYTES:
        raise StoreError("its key is damaged")
    salt, encrypted, digest = content[:20], content[20:-20], content[-20:]
    stream = b""
    block = salt
    while len(stream) < len(encrypted):
        block = hashlib.sha1(secret + block, usedforsecurity=False).digest()
        stream += block
    plain = bytes(a ^ b for a, b in zip(encrypted, stream, strict=False))
    if not hmac.compare_digest(hashlib.sha1(secret + plain, usedforsecurity=False).digest(), digest):
        raise StoreError("the password of its key differs from the password of the store")
    return ssl.DER_cert_to_PEM_cert(plain).replace("CERTIFICATE-----", "PRIVATE KEY-----")


def _der_content(data: bytes, at: int, tag: int) -> bytes:
    """The content of the DER element at ``at``, which must have this tag."""
    if data[at : at + 1] != bytes([tag]):
        raise StoreError("its key is damaged")
    length = data[at + 1] if at + 1 < len(data) else 0
    at += 2
    if length & 0x80:
        size = length & 0x7F
        length = int.from_bytes(data[at : at + size], "big")
        at += size
    if length != len(data) - at:
        raise StoreError("its key is damaged")
    return data[at:]


def load_key(context: ssl.SSLContext, store: JavaStore) -> None:
    """Load the key and its chain into a context. On Linux the key is never in a file.

    Raises:
        StoreError: There is no key.
        ssl.SSLError: Key and certificate do not belong together.
    """
    if store.key is None:
        raise StoreError("the key store has no key")
    text = (store.key + "".join(store.chain)).encode()
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("key", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, text)
            context.load_cert_chain(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)
        return
    with tempfile.NamedTemporaryFile() as file:  # mode 0600
        file.write(text)
        file.flush()
        context.load_cert_chain(file.name)


def trusted_certificates(store: JavaStore) -> str:
    """The certificates of a trust store, in PEM.

    Raises:
        StoreError: There is none.
    """
    if not store.trusted:
        raise StoreError(
            "the trust store has no certificate to trust; in PKCS12 it must not have a key beside them"
        )
    return "".join(store.trusted)
