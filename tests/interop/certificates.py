"""Certificates for one run, made by ``openssl``: authorities, and the certificates that they sign.

Inside: files in PEM, for both sides, and in PKCS12, for Java. Not inside: which process gets which file.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import attrs

STORE_PASSWORD = "of the stores"
OPENSSL_TIMEOUT_S = 180


@attrs.frozen
class Identity:
    """A certificate, its private key, and a Java key store with both and the authority's certificate."""

    certificate: Path
    key: Path
    store: Path


@attrs.frozen
class Authority:
    """A certificate authority."""

    certificate: Path
    key: Path

    def sign(self, name: str, alternative_name: str, *, unit: str = "0:tests;1:cluster") -> Identity:
        """Make a certificate for a host, such as ``IP:127.0.0.1`` or ``DNS:bookie.test``, or for a client."""
        home = self.certificate.parent
        request, extensions = home / f"{name}.csr", home / f"{name}.ext"
        identity = Identity(home / f"{name}.pem", home / f"{name}.key", home / f"{name}.p12")
        subject = f"/OU={unit}/CN={name}"
        _openssl(
            "req", "-newkey", "rsa:2048", "-nodes", "-keyout", identity.key, "-out", request, "-subj", subject
        )
        extensions.write_text(f"subjectAltName={alternative_name}\n")
        signed_by = ("-CA", self.certificate, "-CAkey", self.key, "-CAcreateserial")
        _openssl(
            "x509", "-req", "-in", request, *signed_by, "-days", "2", "-extfile", extensions,
            "-out", identity.certificate,
        )  # fmt: skip
        _openssl(
            "pkcs12", "-export", "-inkey", identity.key, "-in", identity.certificate,
            "-certfile", self.certificate, "-name", name, "-passout", f"pass:{STORE_PASSWORD}",
            "-out", identity.store,
        )  # fmt: skip
        return identity


def make_authority(home: Path, name: str) -> Authority:
    """Make an authority with a self-signed certificate; its files are in ``home``."""
    home.mkdir(parents=True, exist_ok=True)
    made = Authority(home / f"{name}.pem", home / f"{name}.key")
    files = ("-keyout", made.key, "-out", made.certificate)
    _openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", *files, "-subj", f"/CN={name}", "-days", "2")
    return made


def _openssl(*arguments: str | Path) -> None:
    done = subprocess.run(
        ["openssl", *map(str, arguments)], capture_output=True, text=True, timeout=OPENSSL_TIMEOUT_S
    )
    assert done.returncode == 0, f"openssl {arguments[0]}: {done.stderr}"
