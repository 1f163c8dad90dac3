"""Java's key stores: what keytool wrote, what is damaged, what is hostile."""

# covers: ledger/auth/java_stores.py
# covers: ledger/auth/tls.py

from __future__ import annotations

import hashlib
import ssl
import struct
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bookie.auth.tls import TlsConfig, peer_context, server_context
from bookie.errors import BookieConfigError
from ledger.auth.java_stores import JavaStore, KeyStoreError, read_store
from ledger.auth.tls import client_context
from ledger.runtime.key_work import ITERATIONS_MAX
from tests.fakes.certificates import Signed, make_authority, private_copy
from tests.places import GOLDEN_FILES

GOLDEN = GOLDEN_FILES / "tls"
PASSWORD = "of the stores"


def subject_of(pem: str) -> str:
    context = ssl.create_default_context(cadata=pem)
    return str(context.get_ca_certs())


def sealed(body: bytes, password: str = PASSWORD) -> bytes:
    """A JKS file with its digest."""
    return body + hashlib.sha1(password.encode("utf-16-be") + b"Mighty Aphrodite" + body).digest()


def write_pkcs12(path: Path, signed: Signed, *, password: bytes = PASSWORD.encode()) -> Path:
    path.write_bytes(
        pkcs12.serialize_key_and_certificates(
            b"bookie",
            signed.key,
            signed.certificate,
            None,
            serialization.BestAvailableEncryption(password),
        )
    )
    return path


@pytest.mark.parametrize("name", ["bookie.jks", "bookie.p12"])
def test_a_key_store_of_keytool(name: str) -> None:
    store = read_store(GOLDEN / name, PASSWORD)
    assert store.key is not None
    assert store.key.startswith("-----BEGIN PRIVATE KEY-----")
    assert len(store.chain) == 1
    assert store.key not in repr(store)
    config = TlsConfig(key=GOLDEN / name, key_type="JKS", key_password=GOLDEN / "store-password")
    assert server_context(config).minimum_version is ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize("name", ["trusted.jks", "trusted.p12"])
def test_a_trust_store_of_keytool(name: str) -> None:
    store = read_store(GOLDEN / name, PASSWORD)
    assert (store.key, store.chain) == (None, ())
    assert "Test authority" in subject_of("".join(store.trusted))
    context = client_context(
        authorities=GOLDEN / name, authorities_type="PKCS12", authorities_password=PASSWORD
    )
    assert len(context.get_ca_certs()) == 1


def test_both_ends_speak_tls_from_java_stores() -> None:
    server = server_context(
        TlsConfig(key=GOLDEN / "bookie.jks", key_type="JKS", key_password=GOLDEN / "store-password")
    )
    client = client_context(
        authorities=GOLDEN / "trusted.p12", authorities_type="PKCS12", authorities_password=PASSWORD
    )
    assert handshake(server, client) == "TLSv1.3"


@pytest.mark.parametrize("name", ["bookie.jks", "bookie.p12", "trusted.jks", "trusted.p12"])
@pytest.mark.parametrize("password", ["wrong", "", None])
def test_a_wrong_password_is_refused(name: str, password: str | None) -> None:
    with pytest.raises(KeyStoreError, match="password") as caught:
        read_store(GOLDEN / name, password)
    assert str(caught.value).startswith(str(GOLDEN / name))


@pytest.mark.parametrize("name", ["bookie.jks", "trusted.jks"])
def test_every_changed_byte_of_a_jks_store_is_noticed(name: str, tmp_path: Path) -> None:
    content = (GOLDEN / name).read_bytes()
    path = tmp_path / "store"
    for at in range(4, len(content), 7):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(KeyStoreError, match="wrong, or the JKS store is damaged"):
            read_store(path, PASSWORD)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (struct.pack(">III", 0xFEEDFEED, 2, 0xFFFFFFFF), "is not supported"),
        (struct.pack(">III", 0xFEEDFEED, 3, 0), "is not supported"),
        (struct.pack(">III", 0xFEEDFEED, 2, 1), "ends in the middle"),
        (struct.pack(">IIIIHQ", 0xFEEDFEED, 2, 1, 3, 0, 0), "of kind 3"),
        (struct.pack(">IIIIHQI", 0xFEEDFEED, 2, 1, 1, 0, 0, 0xFFFFFFFF), "ends in the middle"),
        (struct.pack(">IIIIHQI", 0xFEEDFEED, 2, 1, 1, 0, 0, 4) + b"abcd", "protected in an unknown way"),
        (struct.pack(">IIIIHQH", 0xFEEDFEED, 2, 1, 2, 0, 0, 3) + b"PGP", "another type than X.509"),
    ],
)
def test_a_sealed_store_with_lying_lengths_is_refused(body: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "store.jks"
    path.write_bytes(sealed(body))
    with pytest.raises(KeyStoreError, match=message):
        read_store(path, PASSWORD)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200))
def test_any_sealed_bytes_are_a_store_or_refused(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "store.jks"
    path.write_bytes(sealed(struct.pack(">III", 0xFEEDFEED, 2, 1) + tail))
    try:
        assert isinstance(read_store(path, PASSWORD), JavaStore)
    except KeyStoreError:
        pass


def test_a_pem_file_and_an_endless_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(KeyStoreError, match="is PEM"):
        read_store(GOLDEN / "bookie.pem", PASSWORD)
    with pytest.raises(KeyStoreError, match="has more than"):
        read_store(Path("/dev/zero"), PASSWORD)


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str = "bookie.test") -> str | None:
    """The version of TLS on which both ends agree. Raises ``ssl.SSLError`` if one refuses the other."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    bookie = server.wrap_bio(incoming, outgoing, server_side=True)
    peer = client.wrap_bio(outgoing, incoming, server_hostname=name)
    for _ in range(3):
        for end in (peer, bookie):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                pass
    return peer.version()


def trusting(path: Path) -> ssl.SSLContext:
    return client_context(authorities=path, authorities_type="PKCS12", authorities_password=PASSWORD)


@pytest.mark.parametrize("name", ["bookie.jks", "bookie.p12"])
def test_a_trust_store_with_a_key_trusts_the_certificate_of_that_key_as_java_does(name: str) -> None:
    server = server_context(
        TlsConfig(key=GOLDEN / "bookie.jks", key_type="JKS", key_password=GOLDEN / "store-password")
    )
    assert handshake(server, trusting(GOLDEN / name)) == "TLSv1.3"


def test_the_rest_of_the_chain_of_a_key_is_not_trusted(tmp_path: Path) -> None:
    authority = make_authority()
    mine, others = authority.sign("bookie.test"), authority.sign("bookie.test")
    store = tmp_path / "store.p12"
    store.write_bytes(
        pkcs12.serialize_key_and_certificates(
            b"mine",
            mine.key,
            mine.certificate,
            [authority.own.certificate],
            serialization.BestAvailableEncryption(PASSWORD.encode()),
        )
    )

    def server(signed: Signed, name: str) -> ssl.SSLContext:
        key = private_copy(write_pkcs12(tmp_path / name, signed), tmp_path)
        return server_context(TlsConfig(key=key, key_type="PKCS12", key_password=GOLDEN / "store-password"))

    assert handshake(server(mine, "mine.p12"), trusting(store)) == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server(others, "others.p12"), trusting(store))


@pytest.mark.parametrize(
    ("name", "is_trusted"),
    [
        (b"imported", True),
        (b"CN=Authority", False),
        (b"1.2.840.113549.1.9.1=#1603612e62,CN=A", False),
        (None, False),
    ],
)
def test_of_the_other_certificates_only_one_with_an_alias_is_trusted(
    tmp_path: Path, name: bytes | None, is_trusted: bool
) -> None:
    authority = make_authority()
    mine = authority.sign("bookie.test")
    store = tmp_path / "store.p12"
    store.write_bytes(
        pkcs12.serialize_key_and_certificates(
            b"mine",
            mine.key,
            mine.certificate,
            [pkcs12.PKCS12Certificate(authority.own.certificate, name)],
            serialization.BestAvailableEncryption(PASSWORD.encode()),
        )
    )
    trusted = trusting(store).get_ca_certs(binary_form=True)
    other = authority.own.certificate.public_bytes(serialization.Encoding.DER)
    assert (other in trusted) is is_trusted


@pytest.mark.slow
def test_a_store_without_a_key_is_no_key_store_and_an_empty_one_trusts_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyStoreError, match="has no key"):
        client_context(
            key=private_copy(GOLDEN / "trusted.p12", tmp_path), key_type="PKCS12", key_password=PASSWORD
        )
    empty = tmp_path / "empty.jks"
    empty.write_bytes(sealed(struct.pack(">III", 0xFEEDFEED, 2, 0)))
    with pytest.raises(KeyStoreError, match="no certificate to trust"):
        trusting(empty)
    key = write_pkcs12(tmp_path / "store.p12", make_authority().sign("bookie.test"))
    context = client_context(key=key, key_type="PKCS12", key_password=PASSWORD)
    assert context.verify_mode is ssl.CERT_REQUIRED


def pkcs12_with(path: Path, signed: Signed, *, mac: int, content: int) -> Path:
    """Write a store by hand: OpenSSL would need minutes to write the counts that it must not obey."""

    def der(tag: int, *parts: bytes) -> bytes:
        body = b"".join(parts)
        size = len(body)
        length = bytes([size]) if size < 128 else bytes([0x82]) + size.to_bytes(2, "big")
        return bytes([tag]) + length + body

    def number(value: int) -> bytes:
        return der(2, value.to_bytes(value.bit_length() // 8 + 1, "big"))

    def oid(text: str) -> bytes:
        return der(6, bytes.fromhex(text))

    data = "2a864886f70d010701"
    bag_kind = oid("2a864886f70d010c0a0102")
    scheme = der(0x30, oid("2a864886f70d010c0103"), der(0x30, der(4, bytes(8)), number(content)))
    encrypted = der(0x30, scheme, der(4, signed.certificate.public_bytes(serialization.Encoding.DER)[:64]))
    bags = der(0x30, der(0x30, bag_kind, der(0xA0, encrypted)))
    safe = der(0x30, der(0x30, oid(data), der(0xA0, der(4, bags))))
    digest = der(0x30, der(0x30, oid("2b0e03021a"), der(5)), der(4, bytes(20)))
    path.write_bytes(
        der(
            0x30,
            number(3),
            der(0x30, oid(data), der(0xA0, der(4, safe))),
            der(0x30, digest, der(4, bytes(8)), number(mac)),
        )
    )
    return path


@pytest.mark.parametrize(
    ("mac", "content"),
    [(2_000_000_000, 1), (1, 2_000_000_000), (ITERATIONS_MAX, 1), (1, ITERATIONS_MAX), (1 << 900, 1)],
    ids=["mac", "key", "both", "both turned round", "a number of 113 bytes"],
)
def test_a_pkcs12_store_with_absurd_iterations_is_refused_before_the_computation(
    mac: int, content: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A count of two thousand million would keep a core busy for half an hour."""
    path = pkcs12_with(tmp_path / "store.p12", make_authority().sign("a.test"), mac=mac, content=content)
    computed: list[object] = []
    monkeypatch.setattr(pkcs12, "load_pkcs12", lambda *arguments: computed.append(arguments))
    with pytest.raises(
        KeyStoreError, match=r"store.p12: .* iterations; at most 5000000 .* openssl pkcs12 -iter"
    ):
        read_store(path, PASSWORD)
    assert computed == []


def test_the_iterations_of_a_pkcs12_store_are_added(tmp_path: Path) -> None:
    path = tmp_path / "store.p12"
    signed = make_authority().sign("a.test")
    with pytest.raises(KeyStoreError, match="password is wrong"):
        read_store(pkcs12_with(path, signed, mac=1000, content=1000), PASSWORD)
    with pytest.raises(KeyStoreError, match=f"takes {ITERATIONS_MAX + 1} iterations"):
        read_store(pkcs12_with(path, signed, mac=1, content=ITERATIONS_MAX), PASSWORD)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bookie.p12", "trusted.p12"])
def test_every_changed_count_or_length_of_a_pkcs12_store_is_noticed(name: str, tmp_path: Path) -> None:
    """The top bit of any byte, of a length or of a count, costs no long computation."""
    content = (GOLDEN / name).read_bytes()
    path = tmp_path / "store.p12"
    for at in range(0, len(content), 29):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x80]) + content[at + 1 :])
        with pytest.raises(KeyStoreError):
            read_store(path, PASSWORD)


@pytest.mark.slow
def test_a_pkcs12_store_nested_without_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.p12"
    path.write_bytes(b"\x30\x80" * 100_000)
    with pytest.raises(KeyStoreError, match="no undamaged PKCS12 store"):
        read_store(path, PASSWORD)
    path.write_bytes(b"\x30\x80" + b"\x05\x00" * 300_001)
    with pytest.raises(KeyStoreError, match="more than 300000 elements"):
        read_store(path, PASSWORD)


def test_the_check_of_a_pkcs12_store_computes_with_few_small_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A product of many numbers, or of numbers of a megabyte, would take as long as the KDF."""
    multiplied: list[int] = []

    def noted(numbers: list[int]) -> int:
        multiplied.extend(numbers)
        return len(numbers)

    monkeypatch.setattr("ledger.runtime.key_work.math.prod", noted)
    path = tmp_path / "store.p12"
    long = b"\x02\x83\x10\x00\x00" + b"\x7f" * (1 << 20)
    for numbers in (b"\x02\x01\x00" * 1_000, b"\x02\x01\x01" + long + long):
        path.write_bytes(b"\x30\x80\x30\x80\x04\x00" + numbers + bytes(4))
        with pytest.raises(KeyStoreError, match="no undamaged PKCS12 store"):
            read_store(path, PASSWORD)
    assert 0 < len(multiplied) < 20
    assert max(multiplied) < 1 << 64


def test_a_jks_store_with_an_endless_key_is_refused(tmp_path: Path) -> None:
    key = struct.pack(">IIIIHQI", 0xFEEDFEED, 2, 1, 1, 0, 0, 70_000) + bytes(70_000)
    path = tmp_path / "store.jks"
    path.write_bytes(sealed(key))
    with pytest.raises(KeyStoreError, match="its key has 70000 bytes; at most 65536"):
        read_store(path, PASSWORD)


def test_a_bookie_names_the_keys_of_a_store_that_it_cannot_use(tmp_path: Path) -> None:
    wrong = tmp_path / "password"
    wrong.write_text("wrong\n")
    config = TlsConfig(key=GOLDEN / "bookie.jks", key_type="JKS", key_password=wrong)
    with pytest.raises(BookieConfigError, match=r"tlsKeyStore.*password is wrong.*tlsKeyStorePasswordPath"):
        server_context(config)
    with pytest.raises(BookieConfigError, match="password is wrong"):
        peer_context(config)
    trust = TlsConfig(
        key=GOLDEN / "bookie.pem",
        certificate=GOLDEN / "bookie.pem",
        authorities=GOLDEN / "trusted.jks",
        authorities_type="JKS",
        authorities_password=wrong,
    )
    with pytest.raises(BookieConfigError, match=r"tlsTrustStore.*password is wrong.*tlsTrustStoreType, JKS"):
        server_context(trust)


def test_without_cryptography_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name.startswith("cryptography"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(KeyStoreError, match=r"pip install '\.\[security\]'"):
        read_store(GOLDEN / "bookie.p12", PASSWORD)
    assert read_store(GOLDEN / "bookie.jks", PASSWORD).key  # JKS needs no package
