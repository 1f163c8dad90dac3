"""TLS of the HTTP port for operators: from the configured stores to an SSL context.

Inside: stores in JKS, PKCS12 and PEM; the content shows the format, because Apache's keys have no type.
Not inside: the server (``admin``), the keys of ``bk_server.conf`` (``config.admin_config``).
Always: with a trust store, a client without a certificate of its authorities gets no HTTP reply.

Source: VertxHttpServer.java (client certificates are required); docs/security.md.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from bookie.config.admin_config import AdminTls
from bookie.errors import BookieConfigError
from ledger.auth.java_stores import load_key, read_store
from ledger.auth.tls import load_authorities
from ledger.runtime.key_work import load_pem_key
from ledger.runtime.secret_file import SecretOf

_PEM = b"-----BEGIN"


def admin_context(tls: AdminTls) -> ssl.SSLContext:
    """The context of the HTTP server.

    Raises:
        BookieConfigError: A store cannot be read or used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    password = tls.key_store_password
    try:
        if _is_pem(tls.key_store):
            load_pem_key(context, tls.key_store, password=password, named_by=SecretOf.APACHE)
        else:
            load_key(context, read_store(tls.key_store, password, named_by=SecretOf.APACHE))
    except (OSError, ValueError) as exc:
        raise _unusable("httpServerKeyStorePath", tls.key_store, exc) from exc
    if tls.trust_store is not None:
        try:
            kind = "PEM" if _is_pem(tls.trust_store) else "JKS"
            load_authorities(context, tls.trust_store, kind, tls.trust_store_password)
        except (OSError, ValueError) as exc:
            raise _unusable("httpServerTrustStorePath", tls.trust_store, exc) from exc
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _is_pem(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_PEM)) == _PEM


def _unusable(key: str, path: Path, exc: Exception) -> BookieConfigError:
    reason = (exc.strerror if isinstance(exc, OSError) else None) or str(exc)
    return BookieConfigError(
        f"{key} {path} cannot be used: {reason}. It must be a JKS or PKCS12 store, or PEM with"
        " the key and its certificate; a password goes into the key with Password in its name"
    )
