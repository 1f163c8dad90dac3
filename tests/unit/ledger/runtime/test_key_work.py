"""Keys in PEM that ask for absurd work, and PKCS12 stores whose work cannot be seen."""

from __future__ import annotations

import base64
import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from bookie.auth.tls import TlsConfig, server_context
from bookie.errors import BookieConfigError
from ledger.auth.java_stores import KeyStoreError, read_store
from ledger.auth.tls import client_context
from ledger.metadata_store.errors import StoreSecurityError
from ledger.metadata_store.zookeeper_security import ZooKeeperSecurity
from ledger.runtime.key_work import ITERATIONS_MAX, KeyWork, KeyWorkError, load_pem_key
from tests.fakes.certificates import Signed, make_authority


def der(tag: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    length = bytes([len(body)]) if len(body) < 128 else b"\x82" + len(body).to_bytes(2, "big")
    return bytes([tag]) + length + body


def number(value: int) -> bytes:
    return der(2, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def oid(text: str) -> bytes:
    return der(6, bytes.fromhex(text))


def encrypted_key(kind: str, *numbers: int) -> bytes:
    """An EncryptedPrivateKeyInfo of PBES2 with this derivation."""
    derivation = der(0x30, oid(kind), der(0x30, der(4, bytes(8)), *map(number, numbers)))
    cipher = der(0x30, oid("60864801650304012a"), der(4, bytes(16)))
    return der(0x30, der(0x30, oid("2a864886f70d01050d"), der(0x30, derivation, cipher)), der(4, bytes(64)))


PBKDF2, SCRYPT = "2a864886f70d01050c", "2b06010401da47040b"


def write_pem(path: Path, signed: Signed, key: bytes) -> Path:
    text = base64.encodebytes(key)
    path.write_bytes(
        b"-----BEGIN ENCRYPTED PRIVATE KEY-----\n"
        + text
        + b"-----END ENCRYPTED PRIVATE KEY-----\n"
        + signed.certificate.public_bytes(serialization.Encoding.PEM)
    )
    return path


@pytest.fixture
def signed() -> Signed:
    return make_authority().sign("a.test")


@pytest.mark.parametrize(
    "key",
    [encrypted_key(PBKDF2, ITERATIONS_MAX + 1), encrypted_key(SCRYPT, 1 << 20, 8, 1 << 10)],
    ids=["PBKDF2", "scrypt"],
)
def test_an_encrypted_key_with_absurd_iterations_is_refused_before_the_computation(
    key: bytes, signed: Signed, tmp_path: Path
) -> None:
    """Wherever a key is loaded: as a bookie, as a client of bookies, as a client of ZooKeeper."""
    path = write_pem(tmp_path / "key.pem", signed, key)
    password = tmp_path / "password"
    password.write_text("of the key\n")
    password.chmod(0o600)
    message = r"iterations; at most 5000000 are allowed\. .* openssl pkcs8 -topk8 -iter 10000"
    with pytest.raises(KeyWorkError, match=message):
        client_context(certificate=path, key_password="of the key")
    with pytest.raises(BookieConfigError, match=message):
        server_context(TlsConfig(key=path, key_password=password))
    security = ZooKeeperSecurity(tls=True, tls_certificate=path, tls_key=path, tls_key_password_file=password)
    with pytest.raises(StoreSecurityError, match=message):
        security.tls_context()


def test_an_encrypted_key_of_openssl_is_loaded_with_its_password(signed: Signed, tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    path.write_bytes(
        signed.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"of the key"),
        )
        + signed.certificate.public_bytes(serialization.Encoding.PEM)
    )
    load_pem_key(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), path, password="of the key")
    with pytest.raises(OSError):
        load_pem_key(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), path)


@pytest.mark.parametrize("key", [b"\x30\x05\x02", b"no DER"])
def test_a_damaged_encrypted_key_is_refused(key: bytes, signed: Signed, tmp_path: Path) -> None:
    path = write_pem(tmp_path / "key.pem", signed, key)
    with pytest.raises(KeyWorkError, match="its encrypted key is damaged"):
        load_pem_key(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), path, password="x")
    path.write_bytes(path.read_bytes().replace(b"M", b"=", 1).replace(b"b", b"=", 1))
    with pytest.raises(KeyWorkError, match="its encrypted key is damaged"):
        load_pem_key(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), path, password="x")


def without_mac(store: bytes) -> bytes:
    """The store without its last field."""
    start = 4
    assert store[:2] == b"\x30\x82"
    assert store[start : start + 3] == b"\x02\x01\x03"
    content = start + 3
    assert store[content : content + 2] == b"\x30\x82"
    end = content + 4 + int.from_bytes(store[content + 2 : content + 4], "big")
    return der(0x30, store[start:end])


def test_a_store_without_mac_is_refused_if_it_has_encrypted_content(signed: Signed, tmp_path: Path) -> None:
    path = tmp_path / "store.p12"
    store = pkcs12.serialize_key_and_certificates(
        b"a", signed.key, signed.certificate, None, serialization.BestAvailableEncryption(b"of the store")
    )
    path.write_bytes(store)
    assert read_store(path, "of the store").key is not None
    path.write_bytes(without_mac(store))
    with pytest.raises(KeyStoreError, match=r"store.p12: it has no MAC.*keytool"):
        read_store(path, "of the store")


def test_a_trust_store_without_mac_and_password_is_read(signed: Signed, tmp_path: Path) -> None:
    """As Java writes those that have only certificates."""
    path = tmp_path / "store.p12"
    store = pkcs12.serialize_key_and_certificates(
        None, None, None, [signed.certificate], serialization.NoEncryption()
    )
    path.write_bytes(without_mac(store))
    assert len(read_store(path, None).trusted) == 1


def test_a_store_without_mac_hides_no_derivation_in_pieces() -> None:
    hidden = encrypted_key(PBKDF2, ITERATIONS_MAX + 1)
    pieces = der(0x24, der(4, hidden[:20]), der(4, hidden[20:]))
    content = der(0x30, oid("2a864886f70d010701"), der(0xA0, pieces))
    with pytest.raises(KeyWorkError, match="it has no MAC"):
        KeyWork(der(0x30, number(3), content)).check(needs_mac=True)
    endless = b"\x30\x80" + content[4:] + bytes(2)
    with pytest.raises(KeyWorkError, match="it has no MAC"):
        KeyWork(der(0x30, number(3), endless)).check(needs_mac=True)
