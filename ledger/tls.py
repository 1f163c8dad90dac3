"""TLS contexts for a client of bookies, from PEM files.

Inside: which authorities are trusted, the client's own certificate, checking the host name.
Not inside: upgrading a connection (``handshake``); JKS and PKCS12 stores: convert them to PEM.
Always: the bookie's certificate is verified; there is no switch to turn that off.

Source: TLSContextFactory.java; operations reference 7.3.
"""

from __future__ import annotations

import ssl
from pathlib import Path


def client_context(
    *,
    authorities: Path | None = None,
    certificate: Path | None = None,
    key: Path | None = None,
    key_password: str | None = None,
    check_host_name: bool = True,
) -> ssl.SSLContext:
    """A context for ``TransportConfig.tls``.

    Args:
        authorities: Certificates to trust (``tlsTrustStore``); those of the system if left out.
        certificate: Our certificate and its chain (``tlsCertificatePath``), for bookies that ask for one.
        key: Our private key (``tlsKeyStore``), if it is not in the same file.
        key_password: Of the private key.
        check_host_name: The certificate must name the host that is dialled. Java's clients do not check
            unless ``tlsHostnameVerificationEnabled``; turn it off where certificates have no such names.

    Raises:
        OSError: A file cannot be read.
        ssl.SSLError: A file is not what it should be, or key and certificate do not belong together.
    """
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=authorities)
    context.check_hostname = check_host_name
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate is not None:
        # Without a password OpenSSL would ask for one on the terminal; an empty one makes it an error.
        context.load_cert_chain(certificate, key, password=key_password or "")
    return context
