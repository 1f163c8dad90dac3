"""Encryption of payloads: AES-256-GCM, with keys that a provider holds.

Inside: the provider's protocol, the provider in a file, the bytes of an encrypted payload.
Not inside: which records are encrypted (``write.log_writer``) and decrypted (``read.log_reader``).
Always: no error, log line or ``repr`` shows a key; a payload that was moved to another log, or got another
transaction id, does not decrypt; no two records are encrypted with the same key and nonce.

offset  size  field
     0     4  "DLE" and the version, 1
     4     1  length k of the key's id
     5     k  id of the key, in UTF-8
   5+k    16  salt: random, one for each writer
  21+k     8  counter: the number of the record of this writer
  29+k     n  ciphertext, as long as the payload
29+k+n    16  tag

The cipher's key is HKDF-SHA-256 of the provider's key, with the salt, and with "dlog payload 1" and the log's
origin as info. So a nonce is a counter and never repeats, also with many writers and one key for years. The
associated data is the header, the log's origin and the transaction id. The origin is the log's name, unless
logs were renamed (``namespace.origin``). The key and the headers of a record are encrypted in the same way,
with ``attributes`` after the associated data; that of their payload ends with ``with`` and these bytes.

Source: NIST SP 800-38D; RFC 5869. Ours: Apache's readers get these bytes as the payload.
"""

from __future__ import annotations

import base64
import binascii
import os
import struct
from collections import OrderedDict
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from dlog.errors import ConfigError, DecryptionError, EncryptionKeyError
from dlog.format.attributes import decode_attributes
from dlog.format.record import Record, RecordWithAttributes, RecordWithSealedAttributes
from ledger.runtime.secret_file import SecretFileError, SecretOf, load_secret

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    from namespace.dlsn import DLSN

KEY_BYTES = 32
KEY_ID_BYTES_MAX = 64
OVERHEAD_BYTES_MAX = 4 + 1 + KEY_ID_BYTES_MAX + 16 + 8 + 16
"""The most that encryption adds to a payload."""

ENTRY_POINTS = "dlog.key_providers"

SEALED_MAGIC = b"DLE\x01"
_SALT_BYTES, _COUNTER, _TAG_BYTES = 16, struct.Struct(">Q"), 16
_TXID = struct.Struct(">q")
_ATTRIBUTES, _WITH = b"attributes", b"with"  # no two of the associated data are equal
_CIPHERS_MAX = 64  # derived keys that a reader keeps: one for each writer it meets
_KEY_FILE_BYTES_MAX = 1 << 20


@runtime_checkable
class KeyProvider(Protocol):
    """Where keys come from. Its calls block, so they should answer from memory.

    A key is 32 secret bytes. Its id is public and is stored with each record. A key must stay available under
    its id as long as records that it encrypted are read.
    """

    def current(self) -> tuple[str, bytes]:
        """The id of the key for new writers, and the key. Called once for each writer."""

    def key(self, key_id: str) -> bytes:
        """The key with this id. ``KeyError`` if there is none."""


class KeyFile:
    """Keys in a file that only its owner may read: one a line, an id and 64 hexadecimal digits or base64.

    The last line is the current key. To rotate, append a line; keep the old ones. The file is read again when
    it has changed, so running readers find new keys. Lines that begin with ``#`` are comments.

    Raises:
        ConfigError: The file cannot be read, is open to other users, or has a line that is no key.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._state: tuple[int, int, int] = (0, 0, 0)
        self._keys: dict[str, bytes] = {}
        self._load()

    def __repr__(self) -> str:
        return f"<KeyFile {self._path}, {len(self._keys)} keys>"

    def current(self) -> tuple[str, bytes]:
        self._load()
        key_id = next(reversed(self._keys))
        return key_id, self._keys[key_id]

    def key(self, key_id: str) -> bytes:
        if key_id not in self._keys:
            self._load()
        return self._keys[key_id]

    def _load(self) -> None:
        try:
            found = load_secret(self._path, SecretOf.OURS, bytes_max=_KEY_FILE_BYTES_MAX)
        except SecretFileError as exc:
            raise ConfigError(f"key file {exc}") from None
        except OSError as exc:
            raise ConfigError(f"key file {self._path} cannot be read: {exc.strerror or exc}") from None
        if found.state != self._state:
            self._keys = self._parsed(found.content.decode("utf-8", "replace"))
            self._state = found.state

    def _parsed(self, text: str) -> dict[str, bytes]:
        keys: dict[str, bytes] = {}
        for number, line in enumerate(text.splitlines(), 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            # The line is not quoted: it may hold a key.
            key = _decoded(words[1]) if len(words) == 2 else None
            if key is None:
                raise ConfigError(
                    f"key file {self._path}, line {number}: expected an id and {KEY_BYTES} bytes as"
                    " hexadecimal digits or base64"
                )
            if words[0] in keys:
                raise ConfigError(f"key file {self._path}, line {number}: a second key {words[0]!r}")
            _check_key_id(words[0])
            keys[words[0]] = key
        if not keys:
            raise ConfigError(f"key file {self._path} has no key; write a line such as: 2026 HEXDIGITS")
        return keys


def load_key_provider(text: str) -> KeyProvider:
    """The provider that a text names: ``file:PATH``, or ``NAME:ARGUMENT`` for one of another package.

    Other packages offer providers in the entry-point group ``dlog.key_providers``: a callable that takes the
    argument.

    Raises:
        ConfigError: No provider has the name, or it does not accept the argument.
    """
    name, colon, argument = text.partition(":")
    if name == "file" and colon:
        return KeyFile(argument)
    found = [point for point in entry_points(group=ENTRY_POINTS) if point.name == name]
    if not found:
        raise ConfigError(
            f"no key provider {name!r}; give file:PATH, or install a package with an entry point {name!r} in"
            f" the group {ENTRY_POINTS}"
        )
    provider = found[0].load()(argument)
    if not isinstance(provider, KeyProvider):
        raise ConfigError(f"key provider {name!r} has no methods current() and key()")
    return provider


class PayloadSealer:
    """Encrypts the payloads of one writer. The provider is asked for its current key once, here.

    Args:
        origin: The name that the log's records are bound to (``namespace.origin``).

    Raises:
        ConfigError: The package ``cryptography`` is missing.
        EncryptionKeyError: The provider has no usable key.
    """

    def __init__(self, origin: str, provider: KeyProvider) -> None:
        try:
            key_id, key = provider.current()
        except KeyError as exc:
            raise EncryptionKeyError("", "the key provider has no current key") from exc
        _check_key_id(key_id)
        salt = os.urandom(_SALT_BYTES)
        encoded = key_id.encode()
        self.key_id = key_id
        self._head = SEALED_MAGIC + bytes((len(encoded),)) + encoded + salt
        self._origin_data = _origin_data(origin)
        self._cipher = _derived(key_id, key, salt, origin)
        self._count = 0

    def __repr__(self) -> str:
        return f"<PayloadSealer with key {self.key_id!r}, {self._count} records>"

    def seal_any(self, payload: bytes, txid: int, attributes: bytes | None) -> tuple[bytes, bytes | None]:
        """``seal`` or ``seal_with_attributes``: the stored payload and the stored attributes."""
        if attributes is None:
            return self.seal(payload, txid), None
        return self.seal_with_attributes(payload, txid, attributes)

    def seal_with_attributes(self, payload: bytes, txid: int, attributes: bytes) -> tuple[bytes, bytes]:
        """The bytes to store of a payload, and of the key and headers of its record.

        The payload decrypts only together with them.
        """
        sealed = self.seal(attributes, txid, _ATTRIBUTES)
        return self.seal(payload, txid, _WITH + sealed), sealed

    def seal(self, payload: bytes, txid: int, bound: bytes = b"") -> bytes:
        """The bytes to store; at most ``OVERHEAD_BYTES_MAX`` more than the payload.

        Args:
            bound: More associated data: the payload decrypts only with the same.
        """
        counter = _COUNTER.pack(self._count)
        self._count += 1
        head = self._head + counter
        return head + self._cipher.encrypt(
            b"\0\0\0\0" + counter, payload, head + self._origin_data + _TXID.pack(txid) + bound
        )


def sealed_with(stored: bytes) -> str | None:
    """The id of the key that a stored payload names, if it has the form of an encrypted one; else None."""
    size = stored[4] if len(stored) > 4 else 0
    if stored[:4] != SEALED_MAGIC or len(stored) < 5 + size + _SALT_BYTES + _COUNTER.size + _TAG_BYTES:
        return None
    return stored[5 : 5 + size].decode("utf-8", "replace")


class PayloadOpener:
    """Decrypts the payloads of one log for one reader.

    Args:
        log: The log's name, for errors.
        origin: The name that its records are bound to; None for the log's name.
    """

    def __init__(self, log: str, provider: KeyProvider, *, origin: str | None = None) -> None:
        _import_cipher()
        self._log, self._provider = log, provider
        self._origin = log if origin is None else origin
        self._origin_data = _origin_data(self._origin)
        self._ciphers: OrderedDict[bytes, AESGCM] = OrderedDict()  # by the header before the counter

    def open_record(self, record: Record) -> Record:
        """A record as it was written; its key and headers only with the payload that they were stored with.

        Raises: as ``open``.
        """
        dlsn, txid = record.dlsn, record.txid
        if record.__class__ is Record:
            return Record(dlsn, txid, self.open(record.payload, txid, dlsn), record.sequence_id)
        if not isinstance(record, RecordWithSealedAttributes):
            raise DecryptionError(
                self._log, dlsn, None, "the key and headers of the record are not encrypted"
            )
        payload = self.open(record.payload, txid, dlsn, _WITH + record.sealed)
        attributes = decode_attributes(self.open(record.sealed, txid, dlsn, _ATTRIBUTES))
        return RecordWithAttributes(dlsn, txid, payload, record.sequence_id, *attributes)

    def open(self, stored: bytes, txid: int, dlsn: DLSN, bound: bytes = b"") -> bytes:
        """The payload.

        Raises:
            EncryptionKeyError: The provider has no key with the record's key id.
            DecryptionError: The payload is not encrypted, was changed or moved, or the key is another one
                than it was written with.
        """
        size = stored[4] if len(stored) > 4 else 0
        salt_end = 5 + size + _SALT_BYTES
        start = salt_end + _COUNTER.size
        if stored[:4] != SEALED_MAGIC or len(stored) < start + _TAG_BYTES:
            raise DecryptionError(self._log, dlsn, None, "the payload is not encrypted")
        cipher = self._ciphers.get(stored[:salt_end])
        if cipher is None:
            cipher = self._cipher_for(stored[:salt_end], stored[5 : 5 + size], dlsn)
        try:
            return cipher.decrypt(
                b"\0\0\0\0" + stored[salt_end:start],
                stored[start:],
                stored[:start] + self._origin_data + _TXID.pack(txid) + bound,
            )
        except _invalid_tag():
            raise DecryptionError(
                self._log,
                dlsn,
                stored[5 : 5 + size].decode(),
                "the payload does not match its tag: it, or the key or headers of its record, was changed,"
                " or moved from another log or"
                " transaction id, or the key with this id is another one now, or another program"
                f" has renamed the log (the payload was taken for one of {self._origin!r})",
            ) from None

    def _cipher_for(self, head: bytes, encoded_id: bytes, dlsn: DLSN) -> AESGCM:
        try:
            key_id = encoded_id.decode()
            _check_key_id(key_id)
        except (UnicodeDecodeError, ConfigError):
            raise DecryptionError(self._log, dlsn, None, "the id of its key is damaged") from None
        try:
            key = self._provider.key(key_id)
        except KeyError:
            raise EncryptionKeyError(
                key_id, f"log {self._log!r}, {dlsn}: the key provider has no key with this id"
            ) from None
        cipher = _derived(key_id, key, head[-_SALT_BYTES:], self._origin)
        self._ciphers[head] = cipher
        if len(self._ciphers) > _CIPHERS_MAX:
            self._ciphers.popitem(last=False)
        return cipher


def _decoded(text: str) -> bytes | None:
    for decode in (bytes.fromhex, lambda each: base64.b64decode(each, validate=True)):
        try:
            key = decode(text)
        except (ValueError, binascii.Error):
            continue
        if len(key) == KEY_BYTES:
            return key
    return None


def _check_key_id(key_id: str) -> None:
    if not 0 < len(key_id.encode("utf-8", "replace")) <= KEY_ID_BYTES_MAX or not key_id.isprintable():
        raise ConfigError(f"key id {key_id!r}: 1 to {KEY_ID_BYTES_MAX} bytes of printable text")


def _origin_data(origin: str) -> bytes:
    name = origin.encode()
    return len(name).to_bytes(4, "big") + name


def _derived(key_id: str, key: bytes, salt: bytes, origin: str) -> AESGCM:
    if len(key) != KEY_BYTES:
        raise EncryptionKeyError(key_id, f"the key has {len(key)} bytes; AES-256 takes {KEY_BYTES}")
    cipher = _import_cipher()
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    info = b"dlog payload 1" + _origin_data(origin)
    return cipher(HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=salt, info=info).derive(key))


def _import_cipher() -> type[AESGCM]:
    # Imported at the first use: few programs encrypt, and the package is an extra.
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as exc:
        raise ConfigError(
            "encryption needs the package cryptography: pip install '.[security]' in a checkout of DLog"
        ) from exc
    return AESGCM


def _invalid_tag() -> type[Exception]:
    from cryptography.exceptions import InvalidTag

    return InvalidTag
