"""TLS of a bookie: from the configured files to an SSL context.

Inside: PEM keys, certificates, authorities, protocol versions, Java's cipher names. Not inside: the upgrade
of a connection to TLS (``connection``).

Python's ssl cannot read Java's key stores. The error names the command that converts one to PEM.

Source: TLSContextFactory.java; docs/protocol.md 12.2.
"""

from __future__ import annotations

import ssl
from pathlib import Path

import attrs

from bookie.errors import BookieConfigError
from ledger.auth.java_stores import load_key, read_store
from ledger.auth.tls import client_context, load_authorities
from ledger.runtime.key_work import load_pem_key
from ledger.runtime.secret_file import SecretOf, read_secret

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_OLD_VERSIONS = frozenset({"SSLv2Hello", "SSLv3", "TLSv1", "TLSv1.1"})


@attrs.frozen(kw_only=True)
class TlsConfig:
    """The configured files and settings."""

    key: Path
    certificate: Path | None = None  # the chain, in PEM; in a key store it is beside the key
    authorities: Path | None = None
    key_password: Path | None = None  # a file with the password
    authorities_password: Path | None = None
    key_type: str = "PEM"  # or PKCS12, JKS
    authorities_type: str = "PEM"
    demand_client_certificate: bool = False
    verify_host_names: bool = False  # the certificates of other bookies must name the dialled hosts
    protocols: tuple[str, ...] = ()  # empty: TLS 1.2 and 1.3
    ciphers: tuple[str, ...] = ()  # OpenSSL's or Java's names, for TLS 1.2


def server_context(config: TlsConfig) -> ssl.SSLContext:
    """The context of a bookie.

    Raises:
        BookieConfigError: A file cannot be read or has invalid content, or a protocol or cipher is unknown.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if config.protocols:
        _set_versions(context, config.protocols)
    _load_key(context, config)
    if config.authorities is not None:
        try:
            load_authorities(
                context, config.authorities, config.authorities_type, _password(config.authorities_password)
            )
        except (OSError, ValueError) as exc:
            raise BookieConfigError(
                f"tlsTrustStore {config.authorities} cannot be used: {_reason(exc)}. Its type must be"
                f" tlsTrustStoreType, {config.authorities_type}"
            ) from exc
    if config.demand_client_certificate:
        if config.authorities is None:
            raise BookieConfigError(
                "tlsClientAuthentication = true: tlsTrustStore is missing, so no client could connect. Set it"
                " to the authorities of the clients' certificates"
            )
        context.verify_mode = ssl.CERT_REQUIRED
    if config.ciphers:
        names = [name for name in map(_openssl_name, config.ciphers) if name is not None]
        try:
            context.set_ciphers(":".join(names) or "DEFAULT")
        except ssl.SSLError as exc:
            raise BookieConfigError(
                f"tlsEnabledCipherSuites: OpenSSL has none of {', '.join(config.ciphers)}"
            ) from exc
    return context


def peer_context(config: TlsConfig) -> ssl.SSLContext:
    """The context of a bookie that connects to other bookies, with its own certificate.

    A certificate of the authorities is enough, unless ``verify_host_names`` is set: as in Apache's clients.

    Raises:
        BookieConfigError: A file cannot be read or has invalid content.
    """
    try:
        return client_context(
            authorities=config.authorities,
            certificate=config.certificate,
            key=config.key,
            key_password=_password(config.key_password),
            check_host_name=config.verify_host_names,
            key_type=config.key_type,
            authorities_type=config.authorities_type,
            authorities_password=_password(config.authorities_password),
            named_by=SecretOf.APACHE,
        )
    except (OSError, ValueError) as exc:
        raise BookieConfigError(
            f"tlsKeyStore, tlsCertificatePath or tlsTrustStore cannot be used: {_reason(exc)}"
        ) from exc


def _load_key(context: ssl.SSLContext, config: TlsConfig) -> None:
    try:
        password = _password(config.key_password)
        if config.key_type == "PEM":
            load_pem_key(
                context,
                config.certificate or config.key,
                config.key,
                password=password,
                named_by=SecretOf.APACHE,
            )
        else:
            load_key(context, read_store(config.key, password, named_by=SecretOf.APACHE))
    except (OSError, ValueError) as exc:
        raise BookieConfigError(
            f"tlsKeyStore {config.key} and tlsCertificatePath {config.certificate} cannot be used:"
            f" {_reason(exc)}. Their type must be tlsKeyStoreType, {config.key_type}. The two must"
            " belong together. A key with a password needs tlsKeyStorePasswordPath"
        ) from exc


def _password(path: Path | None) -> str | None:
    return None if path is None else read_secret(path, SecretOf.APACHE)


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _set_versions(context: ssl.SSLContext, names: tuple[str, ...]) -> None:
    unknown = [name for name in names if name not in _VERSIONS and name not in _OLD_VERSIONS]
    chosen = [_VERSIONS[name] for name in names if name in _VERSIONS]
    if unknown or not chosen:
        raise BookieConfigError(
            f"tlsEnabledProtocols = {','.join(names)}: only TLSv1.2 and TLSv1.3 are supported"
        )
    context.minimum_version, context.maximum_version = min(chosen), max(chosen)


def _openssl_name(name: str) -> str | None:
    """OpenSSL's name of a cipher suite that Java names ``TLS_…_WITH_…``; None for a suite of TLS 1.3."""
    if not name.startswith("TLS_"):
        return name
    if "_WITH_" not in name:
        return None  # of TLS 1.3: always enabled
    exchange, _, cipher = name.removeprefix("TLS_").partition("_WITH_")
    cipher = cipher.replace("AES_", "AES").replace("_CBC_", "_").replace("_", "-")
    return cipher if exchange == "RSA" else f"{exchange.replace('_', '-')}-{cipher}"
