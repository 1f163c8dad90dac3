"""TLS contexts for a client of bookies, from PEM files or from Java's key stores.

Inside: the trusted authorities, the client's own certificate, the check of the host name.
Not inside: starting TLS on a connection (``handshake``), the formats of key stores (``java_stores``).
Always: the bookie's certificate is verified; no setting turns that off. Each context that verifies is as
strict as ``ssl.create_default_context`` of the same Python, whatever the files of the authorities are.

Source: TLSContextFactory.java; docs/protocol.md 12.2.
"""

from __future__ import annotations

import ssl
import sys
from pathlib import Path

from ledger.auth.java_stores import load_key, load_trust_store, read_store
from ledger.runtime.key_work import load_pem_key
from ledger.runtime.secret_file import SecretOf


def client_context(
    *,
    authorities: Path | None = None,
    certificate: Path | None = None,
    key: Path | None = None,
    key_password: str | None = None,
    check_host_name: bool = True,
    key_type: str = "PEM",
    authorities_type: str = "PEM",
    authorities_password: str | None = None,
    named_by: SecretOf = SecretOf.OURS,
) -> ssl.SSLContext:
    """Make a context for ``TransportConfig.tls``.

    Args:
        authorities: Certificates to trust (``tlsTrustStore``); by default those of the system.
        certificate: The client's certificate and its chain (``tlsCertificatePath``), for bookies that require
            one.
        key: The client's private key (``tlsKeyStore``), if it is not in the file of the certificate.
        key_password: The password of the private key or of its store.
        key_type: ``PEM``, or ``PKCS12`` or ``JKS``: then ``key`` is a store with key and certificate.
        authorities_type: ``PEM``, or ``PKCS12`` or ``JKS`` for ``authorities``.
        authorities_password: The password of that store.
        named_by: The configuration that names the private key.
        check_host_name: Require that the certificate names the host that is dialled. Java's clients check it
            only with ``tlsHostnameVerificationEnabled``. Turn it off if certificates have no host names.

    Raises:
        OSError: A file cannot be read.
        StoreError: A key store cannot be used.
        KeyWorkError: A key in PEM asks for too many iterations.
        SecretFileError: Others may use the private key.
        ssl.SSLError: A file has the wrong format, or key and certificate do not belong together.
    """
    if authorities is None or authorities_type == "PEM":
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=authorities)
    else:
        context = ssl.SSLContext(
            ssl.PROTOCOL_TLS_CLIENT
        )  # trusts nothing yet, not even the system's authorities
        load_trust_store(context, authorities, authorities_password)
        check_form(context)
    context.check_hostname = check_host_name
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if key_type != "PEM" and key is not None:
        load_key(context, read_store(key, key_password, named_by=named_by))
    elif certificate is not None:
        load_pem_key(context, certificate, key, password=key_password, named_by=named_by)
    return context


def program_context(
    *,
    authorities: Path,
    certificate: Path | None,
    key: Path | None,
    key_password: str | None,
    key_type: str,
    authorities_type: str,
    authorities_password: str | None,
) -> ssl.SSLContext:
    """Make a context for a program that other programs dial: each proves itself by a certificate.

    The arguments are those of ``client_context``, and it raises the same.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    load_authorities(context, authorities, authorities_type, authorities_password)
    if key_type != "PEM" and key is not None:
        load_key(context, read_store(key, key_password, named_by=SecretOf.OURS))
    elif certificate is not None:
        load_pem_key(context, certificate, key, password=key_password, named_by=SecretOf.OURS)
    return context


def check_form(context: ssl.SSLContext) -> None:
    """Check the form of certificates, too, if this Python's own contexts do: from 3.13 on, by RFC 5280.

    A context of ``ssl.create_default_context`` does so already; this is for one that trusts nothing yet.
    """
    if sys.version_info >= (3, 13):
        context.verify_flags |= ssl.VERIFY_X509_STRICT


def load_authorities(context: ssl.SSLContext, path: Path, store_type: str, password: str | None) -> None:
    """Trust the certificates in a file, for a server that verifies its clients.

    Raises:
        OSError, ssl.SSLError: A PEM file cannot be used.
        StoreError: A key store cannot be used.
    """
    if store_type == "PEM":
        context.load_verify_locations(path)
    else:
        load_trust_store(context, path, password)
    check_form(context)
