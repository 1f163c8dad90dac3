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
from ledger.transport.tls import client_context

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_OLD_VERSIONS = frozenset({"SSLv2Hello", "SSLv3", "TLSv1", "TLSv1.1"})


@attrs.frozen(kw_only=True)
class TlsConfig:
    """The configured files and settings."""

    key: Path  # PEM
    certificate: Path  # PEM, the chain
    authorities: Path | None = None  # PEM
    key_password: Path | None = None  # a file with the password
    demand_client_certificate: bool = False
    protocols: tuple[str, ...] = ()  # empty: TLS 1.2 and 1.3
    ciphers: tuple[str, ...] = ()  # OpenSSL's or Java's names, for TLS 1.2


def refuse_store(key: str, store_type: str, path: str | None) -> BookieConfigError:
    """The error for a key store that is not PEM."""
    source = path or "the store"
    conversion = (
        f"openssl pkcs12 -in {source} -nodes -out bookie.pem"
        if store_type == "PKCS12"
        else f"keytool -importkeystore -srckeystore {source} -destkeystore bookie.p12 -deststoretype PKCS12,"
        " then openssl pkcs12 -in bookie.p12 -nodes -out bookie.pem"
    )
    return BookieConfigError(
        f"{key} = {store_type}: only PEM can be read here. Convert it ({conversion}), set {key}=PEM,"
        " tlsKeyStore to the key, tlsCertificatePath to the certificate and tlsTrustStore to the authorities"
    )


def server_context(config: TlsConfig) -> ssl.SSLContext:
    """The context of a bookie.

    Raises:
        BookieConfigError: A file cannot be read or has invalid content, or a protocol or cipher is unknown.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if config.protocols:
        _set_versions(context, config.protocols)
    password = None
    try:
        if config.key_password is not None:
            password = config.key_password.read_text().strip()
        # Without a password OpenSSL would ask the terminal for one.
        context.load_cert_chain(config.certificate, config.key, password=lambda: password or "")
    except (OSError, ssl.SSLError) as exc:
        raise BookieConfigError(
            f"tlsKeyStore {config.key} and tlsCertificatePath {config.certificate} cannot be used:"
            f" {exc.strerror or exc}. Both must be PEM and belong together; a key with a password needs"
            " tlsKeyStorePasswordPath"
        ) from exc
    if config.authorities is not None:
        try:
            context.load_verify_locations(config.authorities)
        except (OSError, ssl.SSLError) as exc:
            raise BookieConfigError(
                f"tlsTrustStore {config.authorities} cannot be used: {exc.strerror or exc}. It must be PEM"
            ) from exc
    if config.demand_client_certificate:
        if config.authorities is None:
            raise BookieConfigError(
                "tlsClientAuthentication = true: tlsTrustStore is missing, so no client could connect. Set it"
                " to the authorities of the clients' certificates, in PEM"
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

    A certificate of the authorities is enough: as in Apache's clients by default, host names are not checked.

    Raises:
        BookieConfigError: A file cannot be read or has invalid content.
    """
    try:
        password = None if config.key_password is None else config.key_password.read_text().strip()
        return client_context(
            authorities=config.authorities,
            certificate=config.certificate,
            key=config.key,
            key_password=password,
            check_host_name=False,
        )
    except (OSError, ssl.SSLError) as exc:
        raise BookieConfigError(
            f"tlsKeyStore, tlsCertificatePath or tlsTrustStore cannot be used: {exc.strerror or exc}"
        ) from exc


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
