"""Authorities and certificates for tests, made in memory within milliseconds.

Inside: keys on P-256, certificates for hosts and clients, PEM files. Not inside: Java's key stores.
"""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Sequence
from pathlib import Path

import attrs
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_BEGIN = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
EXPIRED = datetime.datetime(2021, 1, 1, tzinfo=datetime.UTC)
_END = datetime.datetime(2120, 1, 1, tzinfo=datetime.UTC)
_MAY_SIGN = x509.KeyUsage(
    key_cert_sign=True,
    crl_sign=True,
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)


@attrs.frozen
class Signed:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def write_pem(self, path: Path) -> Path:
        """Write key and certificate into one file, in place of an older one."""
        key = self.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        path.write_bytes(key + self.certificate.public_bytes(serialization.Encoding.PEM))
        return path


@attrs.frozen
class TestAuthority:
    """A certificate authority. Made by ``make_authority``."""

    __test__ = False

    own: Signed

    def write_pem(self, path: Path) -> Path:
        """Write the authority's certificate, without its key."""
        path.write_bytes(self.own.certificate.public_bytes(serialization.Encoding.PEM))
        return path

    def sign(self, name: str, *, units: Sequence[str] = (), end: datetime.datetime | None = None) -> Signed:
        """A certificate for the host or client ``name``, with these organizational units."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = [x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit) for unit in units]
        subject.append(x509.NameAttribute(NameOID.COMMON_NAME, name))
        certificate = (
            _builder(subject, self.own.certificate.subject, key, self.own.key, end=end)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
            .sign(self.own.key, hashes.SHA256())
        )
        return Signed(certificate, key)


def private_copy(source: Path, directory: Path) -> Path:
    """A copy of a golden key that only its owner may read: a checkout has modes of its own."""
    copy = directory / source.name
    copy.write_bytes(source.read_bytes())
    copy.chmod(0o600)
    return copy


def is_trusted(client: ssl.SSLContext, server: Signed, name: str, file: Path) -> bool:
    """True if a client's context accepts the certificate of a server with this name; needs no socket."""
    return refusal_of(client, server, name, file) is None


def refusal_of(
    client: ssl.SSLContext, server: Signed, name: str, file: Path
) -> ssl.SSLCertVerificationError | None:
    """Why a client's context refuses the certificate of a server with this name, if it does."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server.write_pem(file))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(outgoing, incoming, server_hostname=name),
        context.wrap_bio(incoming, outgoing, server_side=True),
    )
    for _ in range(3):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLCertVerificationError as exc:
                return exc
    return None


def make_authority(name: str = "authority.test", *, has_key_usage: bool = True) -> TestAuthority:
    """Make an authority with a self-signed certificate. Strict clients refuse one without key usage."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
    builder = _builder(subject, x509.Name(subject), key, key).add_extension(
        x509.BasicConstraints(ca=True, path_length=None), critical=True
    )
    if has_key_usage:
        builder = builder.add_extension(_MAY_SIGN, critical=True)
    return TestAuthority(Signed(builder.sign(key, hashes.SHA256()), key))


def _builder(
    subject: list[x509.NameAttribute[str]],
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    end: datetime.datetime | None = None,
) -> x509.CertificateBuilder:
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name(subject))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_BEGIN)
        .not_valid_after(end or _END)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(authority, critical=False)
    )
