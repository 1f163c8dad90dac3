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
most ``STORE_BYTES_MAX`` bytes; the work of deriving keys, which a store chooses, is compared with a limit
before it begins (``ledger.runtime.key_work``); no error has a password or a key in it.

Source: sun.security.provider.JavaKeyStore and KeyProtector (their formats); RFC 7292; docs/protocol.md 12.2.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import ssl
import struct
import tempfile
from pathlib import Path

import attrs

from ledger.runtime.key_work import KeyWork, KeyWorkError
from ledger.runtime.secret_file import SecretFileError, SecretOf, load_secret

STORE_BYTES_MAX = 16 << 20
MISSING = (
    "reading a PKCS12 store needs the package cryptography; install it with:"
    " pip install '.[security]' in a checkout of DLog"
)
_UNREADABLE = "the password is wrong, or it is no undamaged PKCS12 store"
_REMEDY = "write it again with fewer: keytool -importkeystore, or openssl pkcs12 -iter 10000"
_MAGIC = b"\xfe\xed\xfe\xed"
_KEY, _CERTIFICATE = 1, 2
_DIGEST_BYTES = 20
_ENTRIES_MAX = 10_000
_JKS_KEY_BYTES_MAX = 1 << 16  # RSA with 16,384 bits needs 10,000
# The object id of Sun's protection of keys, 1.3.6.1.4.1.42.2.17.1.1, in DER.
_SUN_PROTECTION = bytes.fromhex("060a2b060104012a02110101")


class KeyStoreError(ValueError):
    """A store cannot be used. The message names the file and the remedy."""


@attrs.frozen
class JavaStore:
    """The key and the certificates of a store, in PEM."""

    key: str | None = attrs.field(repr=False)
    chain: tuple[str, ...]  # of the key, its own certificate first
    trusted: tuple[str, ...]


def read_store(path: Path, password: str | None, *, named_by: SecretOf | None = None) -> JavaStore:
    """Read a store of either format.

    Args:
        named_by: The configuration that names the store of a private key; None for a store of authorities,
            which are no secret.

    Raises:
        OSError: The file cannot be read.
        StoreError: The password is wrong, the file is damaged or has several keys, or the package
            cryptography is missing; or others may use a store with a key (``ledger.runtime.secret_file``).
    """
    if named_by is None:
        with path.open("rb") as file:
            content = file.read(STORE_BYTES_MAX + 1)
    else:
        try:
            content = load_secret(path, named_by, bytes_max=STORE_BYTES_MAX).content
        except SecretFileError as exc:
            raise KeyStoreError(str(exc)) from None
    return _read(path, content, password)


def _read(path: Path, content: bytes, password: str | None, *, is_trust_store: bool = False) -> JavaStore:
    if len(content) > STORE_BYTES_MAX:
        raise KeyStoreError(f"{path} has more than {STORE_BYTES_MAX} bytes")
    if content.startswith(b"-----BEGIN"):
        raise KeyStoreError(f"{path} is PEM, not a key store of Java; set its type to PEM")
    read = _read_jks if content.startswith(_MAGIC) else _read_pkcs12
    try:
        return read(content, password, is_trust_store=is_trust_store)
    except KeyStoreError as exc:
        raise KeyStoreError(f"{path}: {exc}") from None


def _read_pkcs12(content: bytes, password: str | None, *, is_trust_store: bool = False) -> JavaStore:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError:
        raise KeyStoreError(MISSING) from None
    try:
        KeyWork(content).check(needs_mac=True)
    except KeyWorkError as exc:
        raise KeyStoreError(f"{exc} {_REMEDY}" if exc.is_too_much else str(exc)) from None
    except ValueError:
        raise KeyStoreError(_UNREADABLE) from None
    try:
        found = pkcs12.load_pkcs12(content, None if password is None else password.encode())
    except ValueError:  # its message does not say more
        raise KeyStoreError(_UNREADABLE) from None
    pem = serialization.Encoding.PEM
    if is_trust_store and found.key is not None:
        # Java marks the entries to trust in an attribute that cryptography does not show. It names them by
        # their aliases, and the certificates of a key's chain by their subjects, which have a "=". So an
        # entry whose alias has one is not trusted.
        entries = [] if found.cert is None else [found.cert.certificate]
        entries += [
            one.certificate
            for one in found.additional_certs
            if one.friendly_name and b"=" not in one.friendly_name
        ]
        return JavaStore(None, (), tuple(one.public_bytes(pem).decode() for one in entries))
    others = [one.certificate.public_bytes(pem).decode() for one in found.additional_certs]
    if found.key is None:
        return JavaStore(None, (), tuple(others))
    if found.cert is None:
        raise KeyStoreError("it has a key without its certificate")
    key = found.key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    # Which of the others are trusted is in an attribute that cryptography does not show.
    return JavaStore(key.decode(), (found.cert.certificate.public_bytes(pem).decode(), *others), ())


class _Reader:
    """Fields of a JKS file, in order."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 0

    def take(self, size: int) -> bytes:
        if not 0 <= size <= len(self._content) - self._at:
            raise KeyStoreError("it ends in the middle of an entry")
        self._at += size
        return self._content[self._at - size : self._at]

    def number(self) -> int:
        value: int = struct.unpack(">I", self.take(4))[0]
        return value

    def text(self) -> bytes:
        return self.take(struct.unpack(">H", self.take(2))[0])

    def certificate(self, version: int) -> str:
        if version == 2 and self.text() != b"X.509":
            raise KeyStoreError("it has a certificate of another type than X.509")
        return ssl.DER_cert_to_PEM_cert(self.take(self.number()))


def _read_jks(content: bytes, password: str | None, *, is_trust_store: bool = False) -> JavaStore:
    if password is None:
        raise KeyStoreError("a JKS store needs its password")
    secret = password.encode("utf-16-be")
    body, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    expected = hashlib.sha1(secret + b"Mighty Aphrodite" + body, usedforsecurity=False).digest()
    if not hmac.compare_digest(digest, expected):
        raise KeyStoreError("the password is wrong, or the JKS store is damaged")
    reader = _Reader(body)
    reader.take(len(_MAGIC))
    version, count = reader.number(), reader.number()
    if version not in (1, 2) or count > _ENTRIES_MAX:
        raise KeyStoreError(f"JKS version {version} with {count} entries is not supported")
    keys: list[tuple[str, tuple[str, ...]]] = []
    trusted: list[str] = []
    for _ in range(count):
        tag = reader.number()
        reader.text()
        reader.take(8)
        if tag == _CERTIFICATE:
            trusted.append(reader.certificate(version))
        elif tag == _KEY:
            protected = reader.take(reader.number())
            key = "" if is_trust_store else _unprotect(protected, secret)
            chain = tuple(reader.certificate(version) for _ in range(min(reader.number(), _ENTRIES_MAX)))
            if is_trust_store:
                trusted += chain[:1]
            else:
                keys.append((key, chain))
        else:
            raise KeyStoreError(f"an entry of kind {tag} is not supported")
    if len(keys) > 1:
        raise KeyStoreError(f"it has {len(keys)} keys; keep one in it")
    if keys and not keys[0][1]:
        raise KeyStoreError("it has a key without its certificate")
    if not keys:
        return JavaStore(None, (), tuple(trusted))
    return JavaStore(keys[0][0], keys[0][1], tuple(trusted))


def _unprotect(protected: bytes, secret: bytes) -> str:
    """The key in PEM from an EncryptedPrivateKeyInfo of Sun's own protection."""
    if len(protected) > _JKS_KEY_BYTES_MAX:
        raise KeyStoreError(f"its key has {len(protected)} bytes; at most {_JKS_KEY_BYTES_MAX} are allowed")
    at = protected.find(_SUN_PROTECTION)
    if not 0 <= at <= 16:
        raise KeyStoreError("its key is protected in an unknown way")
    # AlgorithmIdentifier ends with NULL; an OCTET STRING follows.
    at += len(_SUN_PROTECTION)
    if protected[at : at + 2] == b"\x05\x00":
        at += 2
    content = _der_content(protected, at, 0x04)
    if len(content) <= 2 * _DIGEST_BYTES:
        raise KeyStoreError("its key is damaged")
    salt, encrypted, digest = content[:20], content[20:-20], content[-20:]
    stream = b""
    block = salt
    while len(stream) < len(encrypted):
        block = hashlib.sha1(secret + block, usedforsecurity=False).digest()
        stream += block
    plain = bytes(a ^ b for a, b in zip(encrypted, stream, strict=False))
    if not hmac.compare_digest(hashlib.sha1(secret + plain, usedforsecurity=False).digest(), digest):
        raise KeyStoreError("the password of its key differs from the password of the store")
    return ssl.DER_cert_to_PEM_cert(plain).replace("CERTIFICATE-----", "PRIVATE KEY-----")


def _der_content(data: bytes, at: int, tag: int) -> bytes:
    """The content of the DER element at ``at``, which must have this tag."""
    if data[at : at + 1] != bytes([tag]):
        raise KeyStoreError("its key is damaged")
    length = data[at + 1] if at + 1 < len(data) else 0
    at += 2
    if length & 0x80:
        size = length & 0x7F
        length = int.from_bytes(data[at : at + size], "big")
        at += size
    if length != len(data) - at:
        raise KeyStoreError("its key is damaged")
    return data[at:]


def load_key(context: ssl.SSLContext, store: JavaStore) -> None:
    """Load the key and its chain into a context. On Linux the key is never in a file.

    Raises:
        StoreError: There is no key.
        ssl.SSLError: Key and certificate do not belong together.
    """
    if store.key is None:
        raise KeyStoreError("the key store has no key")
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


def load_trust_store(context: ssl.SSLContext, path: Path, password: str | None) -> None:
    """Trust what Java's TrustManager would trust by this store.

    That is each certificate that was imported, and the own certificate of each key, without the rest of its
    chain. Such a certificate is trusted as it stands, also without its authority. Keys are not used.

    Raises:
        OSError: The file cannot be read.
        StoreError: As ``read_store``; or there is no certificate to trust.

    Source: OpenJDK, sun.security.validator.TrustStoreUtil.
    """
    with path.open("rb") as file:
        content = file.read(STORE_BYTES_MAX + 1)
    trusted = _read(path, content, password, is_trust_store=True).trusted
    if not trusted:
        raise KeyStoreError(f"the trust store {path} has no certificate to trust")
    context.load_verify_locations(cadata="".join(trusted))
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
