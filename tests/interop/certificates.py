"""Certificates made for one run, by ``openssl``: an authority, who it signed, and a stranger nobody trusts.

Inside: files in PEM, as both sides read them, and in PKCS12 for Java. Not inside: who is given which.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import attrs

STORE_PASSWORD = "of the stores"
OPENSSL_TIMEOUT_S = 60


@attrs.frozen
class Identity:
    """A certificate, its private key, and both with the authority's certificate in a store of Java's."""

    certificate: Path
    key: Path
    store: Path


@attrs.frozen
class Authority:
    """Who signs."""

    certificate: Path
    key: Path

    def sign(self, name: str, alternative_name: str, *, unit: str = "0:tests;1:cluster") -> Identity:
        """A certificate for a host, such as ``IP:127.0.0.1`` or ``DNS:bookie.test``; also for clients."""
        home = self.certificate.parent
        request, extensions = home / f"{name}.csr", home / f"{name}.ext"
        its = Identity(home / f"{name}.pem", home / f"{name}.key", home / f"{name}.p12")
        subject = f"/OU={unit}/CN={name}"
        _openssl(
            "req", "-newkey", "rsa:2048", "-nodes", "-keyout", its.key, "-out", request, "-subj", subject
        )
        extensions.write_text(f"subjectAltName={alternative_name}\n")
        signed_by = ("-CA", self.certificate, "-CAkey", self.key, "-CAcreateserial")
        _openssl(
            "x509", "-req", "-in", request, *signed_by, "-days", "2", "-extfile", extensions,
            "-out", its.certificate,
        )  # fmt: skip
        _openssl(
            "pkcs12", "-export", "-inkey", its.key, "-in", its.certificate, "-certfile", self.certificate,
            "-name", name, "-passout", f"pass:{STORE_PASSWORD}", "-out", its.store,
        )  # fmt: skip
        return its


def make_authority(home: Path, name: str) -> Authority:
    """An authority of its own; files go to ``home``."""
    home.mkdir(parents=True, exist_ok=True)
    its = Authority(home / f"{name}.pem", home / f"{name}.key")
    subject = ("-subj", f"/CN={name}", "-days", "2")
    _openssl(
        "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", its.key, "-out", its.certificate, *subject
    )
    return its


def _openssl(*arguments: str | Path) -> None:
    done = subprocess.run(
        ["openssl", *map(str, arguments)], capture_output=True, text=True, timeout=OPENSSL_TIMEOUT_S
    )
    assert done.returncode == 0, f"openssl {arguments[0]}: {done.stderr}"
