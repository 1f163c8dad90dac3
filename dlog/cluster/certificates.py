"""The files of a secured local cluster: an authority, the bookies' certificate, a client's, and its settings.

::

    DIRECTORY/security/authority.pem, authority.key   the authority of this cluster, for more clients
                       bookie.pem, bookie.key         the certificate of all bookies, for 127.0.0.1
                       client.pem, client.key         the certificate of a client, CN=local
                       bookies.toml                   TLS with these bookies (DLOG_BOOKIE_SECURITY)
                       client.toml                    the URI, and bookies.toml (DLOG_CONFIG)

Inside: keys, certificates, their files. Not inside: the keys of ``bk_server.conf`` (``layout``), processes.
Always: the directory appears whole or not; it is for its owner only, and so is each file in it.

Source: docs/security.md, "A secured cluster from nothing", does the same with OpenSSL.
"""

from __future__ import annotations

import datetime
import ipaddress
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from dlog.cluster.layout import LOCALHOST, ClusterPaths
from ledger.runtime.clock import wall_ms
from ledger.runtime.private_files import make_private_directories
from ledger.runtime.secret_file import create_secret

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

LIFETIME_DAYS = 3650
CLIENT_NAME = "local"
_BOOKIES = """\
# TLS with the bookies of this cluster, written by `dlog cluster start --secure`
tls = true
tls_authorities = "authority.pem"
tls_certificate = "client.pem"
tls_key = "client.key"
"""
_CLIENT = """\
# Settings of a client of this cluster, written by `dlog cluster start --secure`: export DLOG_CONFIG={path}
uri = "{uri}"
bookie_security = "bookies.toml"
"""


def write_security(paths: ClusterPaths, uri: str) -> None:
    """Make the authority, the certificates and the client's settings, unless they are there.

    Raises:
        ImportError: The package cryptography is missing.
        OSError: A file cannot be written.
    """
    target = paths.security
    if target.exists():
        return
    partial = target.with_suffix(".new")  # of a start that was interrupted, if it exists
    if partial.exists():
        shutil.rmtree(partial)
    make_private_directories(partial)
    authority = _Authority()
    authority.write(partial / "authority")
    authority.sign("bookie", [LOCALHOST]).write(partial / "bookie")
    authority.sign(CLIENT_NAME, []).write(partial / "client")
    create_secret(partial / "bookies.toml", _BOOKIES)
    create_secret(partial / "client.toml", _CLIENT.format(path=paths.client_settings, uri=uri))
    partial.rename(target)


class _Signed:
    """A key on P-256 and its certificate."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self.key, self.certificate = key, certificate

    def write(self, path: Path) -> None:
        from cryptography.hazmat.primitives import serialization

        pem = serialization.Encoding.PEM
        key = self.key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        create_secret(path.with_suffix(".key"), key.decode("ascii"))
        create_secret(path.with_suffix(".pem"), self.certificate.public_bytes(pem).decode("ascii"))


class _Authority(_Signed):
    """A new authority."""

    def __init__(self) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        name = _name("authority of a local cluster")
        may_sign = x509.KeyUsage(
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
        builder = _builder(name, name, key, key)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(may_sign, critical=True)
        super().__init__(key, builder.sign(key, hashes.SHA256()))

    def sign(self, name: str, addresses: list[str]) -> _Signed:
        """A certificate for ``name`` and these IP addresses."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.IPAddress(ipaddress.ip_address(one)) for one in addresses]
        builder = _builder(_name(name), self.certificate.subject, key, self.key)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return _Signed(key, builder.sign(self.key, hashes.SHA256()))


def _name(common_name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer_key: ec.EllipticCurvePrivateKey,
) -> x509.CertificateBuilder:
    from cryptography import x509

    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    now = datetime.datetime.fromtimestamp(wall_ms() // 1000, datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=LIFETIME_DAYS))
        # Python 3.13 and newer accept no certificate without these two.
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(authority, critical=False)
    )
