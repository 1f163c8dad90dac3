"""TLS on a bookie's side: from the files of the configuration to a context.

Inside: PEM keys, certificates, authorities, protocol versions, Java's cipher names. Not inside: when TLS
begins on a connection (``server``).

Java's own key stores cannot be read by Python's ssl; the error says how to turn one into PEM.

Source: TLSContextFactory.java; reference on operations 5.11 and 7.3.
"""

from __future__ import annotations

import ssl
from pathlib import Path

import attrs

from bookie.errors import ConfigError
from ledger.tls import client_context

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_OLD_VERSIONS = frozenset({"SSLv2Hello", "SSLv3", "TLSv1", "TLSv1.1"})


@attrs.frozen(kw_only=True)
class TlsConfig:
    """Files and wishes, as configured."""

    key: Path  # PEM
    certificate: Path  # PEM, the chain
    authorities: Path | None = None  # PEM
    key_password: Path | None = None  # a file that holds it
    demand_client_certificate: bool = False
    protocols: tuple[str, ...] = ()  # empty: TLS 1.2 and 1.3
    ciphers: tuple[str, ...] = ()  # names of OpenSSL or of Java; TLS 1.3 has its own


def refuse_store(key: str, store_type: str, path: str | None) -> ConfigError:
    """The error for a key store that is not PEM."""
    source = path or "the store"
    turn = (
        f"openssl pkcs12 -in {source} -nodes -out bookie.pem"
        if store_type == "PKCS12"
        else f"keytool -importkeystore -srckeystore {source} -destkeystore bookie.p12 -deststoretype PKCS12,"
        " then openssl pkcs12 -in bookie.p12 -nodes -out bookie.pem"
    )
    return ConfigError(
        f"{key} = {store_type}: only PEM can be read here. Convert it ({turn}), set {key}=PEM,"
        " tlsKeyStore to the key, tlsCertificatePath to the certificate and tlsTrustStore to the authorities"
    )


def server_context(config: TlsConfig) -> ssl.SSLContext:
    """The context of a bookie.

    Raises:
        ConfigError: A file that cannot be read or is not what it should be, an unknown protocol or cipher.
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
        raise ConfigError(
            f"tlsKeyStore {config.key} and tlsCertificatePath {config.certificate} cannot be used:"
            f" {exc.strerror or exc}. Both must be PEM and belong together; a key with a password needs"
            " tlsKeyStorePasswordPath"
        ) from exc
    if config.authorities is not None:
        try:
            context.load_verify_locations(config.authorities)
        except (OSError, ssl.SSLError) as exc:
            raise ConfigError(
                f"tlsTrustStore {config.authorities} cannot be used: {exc.strerror or exc}. It must be PEM"
            ) from exc
    if config.demand_client_certificate:
        if config.authorities is None:
            raise ConfigError(
                "tlsClientAuthentication = true: tlsTrustStore is missing, nobody could be trusted"
            )
        context.verify_mode = ssl.CERT_REQUIRED
    if config.ciphers:
        names = [name for name in map(_openssl_name, config.ciphers) if name is not None]
        try:
            context.set_ciphers(":".join(names) or "DEFAULT")
        except ssl.SSLError as exc:
            raise ConfigError(
                f"tlsEnabledCipherSuites: OpenSSL knows none of {', '.join(config.ciphers)}"
            ) from exc
    return context


def peer_context(config: TlsConfig) -> ssl.SSLContext:
    """The context of a bookie that asks other bookies, with its own certificate.

    Host names are not checked, as in Apache's clients by default; whom the authorities vouch for is believed.

    Raises:
        ConfigError: A file cannot be read or is not what it should be.
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
        raise ConfigError(
            f"tlsKeyStore, tlsCertificatePath or tlsTrustStore cannot be used: {exc.strerror or exc}"
        ) from exc


def _set_versions(context: ssl.SSLContext, names: tuple[str, ...]) -> None:
    unknown = [name for name in names if name not in _VERSIONS and name not in _OLD_VERSIONS]
    chosen = [_VERSIONS[name] for name in names if name in _VERSIONS]
    if unknown or not chosen:
        raise ConfigError(f"tlsEnabledProtocols = {','.join(names)}: TLSv1.2 and TLSv1.3 are spoken here")
    context.minimum_version, context.maximum_version = min(chosen), max(chosen)


def _openssl_name(name: str) -> str | None:
    """OpenSSL's name of a cipher suite that Java calls ``TLS_…_WITH_…``; None for one of TLS 1.3."""
    if not name.startswith("TLS_"):
        return name
    if "_WITH_" not in name:
        return None  # of TLS 1.3: always on
    exchange, _, cipher = name.removeprefix("TLS_").partition("_WITH_")
    cipher = cipher.replace("AES_", "AES").replace("_CBC_", "_").replace("_", "-")
    return cipher if exchange == "RSA" else f"{exchange.replace('_', '-')}-{cipher}"
