"""TLS contexts for a client of bookies, from PEM files.

Inside: the trusted authorities, the client's own certificate, the check of the host name.
Not inside: starting TLS on a connection (``handshake``); JKS and PKCS12 stores: convert them to PEM.
Always: the bookie's certificate is verified; no setting turns that off.

Source: TLSContextFactory.java; docs/protocol.md 12.2.
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
    """Make a context for ``TransportConfig.tls``.

    Args:
        authorities: Certificates to trust (``tlsTrustStore``); by default those of the system.
        certificate: The client's certificate and its chain (``tlsCertificatePath``), for bookies that require
            one.
        key: The client's private key (``tlsKeyStore``), if it is not in the file of the certificate.
        key_password: The password of the private key.
        check_host_name: Require that the certificate names the host that is dialled. Java's clients check it
            only with ``tlsHostnameVerificationEnabled``. Turn it off if certificates have no host names.

    Raises:
        OSError: A file cannot be read.
        ssl.SSLError: A file has the wrong format, or key and certificate do not belong together.
    """
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=authorities)
    context.check_hostname = check_host_name
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate is not None:
        # Without a password OpenSSL would prompt on the terminal; an empty one makes it raise instead.
        context.load_cert_chain(certificate, key, password=key_password or "")
    return context
